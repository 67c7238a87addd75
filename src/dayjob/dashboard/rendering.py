"""From templates to pages. Every value is escaped; only the charts, made of numbers here, are markup."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from dayjob._version import __version__
from dayjob.dashboard.desk import desk_of
from dayjob.dashboard.security import VISIT, Refused, Visit, route_path
from dayjob.inspect.json_fields import span
from dayjob.model.durations import SECOND, to_datetime
from dayjob.model.job import JobState
from dayjob.runtime.clock import SYSTEM

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"

SHOWN_CHARACTERS = 50_000
"""How much of a payload, a result or an error a page shows."""

SAID = {
    "cancelled": "The job is cancelled.",
    "asked": "The job runs, and was asked to stop.",
    "not-cancelled": "Nothing to cancel: the job has finished or is not there.",
    "requeued": "The job is pending again, with all its attempts.",
    "not-requeued": "Nothing to requeue: this is no dead job.",
    "rerun": "This is the new job, like the one before.",
    "not-rerun": "Only a finished job that is still kept can run again.",
    "paused": "The queue is paused: it takes jobs, and hands none out.",
    "resumed": "The queue goes on.",
    "schedule-paused": "The schedule is paused.",
    "schedule-resumed": "The schedule goes on, from its next due time on.",
    "triggered": "The recurring job is enqueued: this is it.",
    "no-schedule": "There is no such schedule.",
    "dead-requeued": "{n} dead jobs are pending again.",
    "dead-purged": "{n} dead jobs are removed.",
    "under-way": "That takes a while, and goes on: {n} so far. This page shows how far it is.",
    "busy": "Enough bulk work is under way: wait until some of it has ended.",
    "failed": "It ended early, after {n} jobs. The log says why.",
    "out": "You are logged out.",
}
"""What a page says after something was done; the address carries the word, never the sentence."""

_NAV = (
    ("overview", "/", "Overview"),
    ("jobs", "/jobs", "Jobs"),
    ("dead", "/dead", "Dead letters"),
    ("schedules", "/schedules", "Schedules"),
    ("workers", "/workers", "Workers"),
)


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number, "rate": rate, "span": span, "pretty": pretty, "cut": cut}
    made.globals |= {"time": time_of, "JobState": JobState}
    return made


def number(value: int) -> str:
    return f"{value:,}"


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 0.05 or not value else "<0.1"


def time_of(micros: int | None, now: int | None = None) -> dict[str, str] | None:
    """An instant for ``<time>``: for programs, in full, and relative to now."""
    if micros is None:
        return None
    at = to_datetime(micros)
    seconds = ((SYSTEM.now() if now is None else now) - micros) / SECOND
    relative = f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"
    return {
        "iso": at.isoformat(timespec="milliseconds"),
        "full": f"{at:%Y-%m-%d %H:%M:%S} UTC",
        "relative": relative,
    }


def pretty(value: Any) -> str:
    """JSON for people."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def cut(text: str) -> dict[str, Any]:
    """As much of a text as a page shows, and how much it is in all."""
    return {"text": text[:SHOWN_CHARACTERS], "is_cut": len(text) > SHOWN_CHARACTERS, "length": len(text)}


_templates = _environment()
_static_versions: dict[str, str] = {}


def url(request: Request, path: str, query: Mapping[str, Any] | None = None, **more: Any) -> str:
    """A link below wherever the dashboard is mounted; what is None is left out of the query."""
    given = {name: value for name, value in {**(query or {}), **more}.items() if value not in (None, "")}
    base = quote(request.scope.get("root_path", "").rstrip("/")) + quote(path)
    return f"{base}?{urlencode(given)}" if given else base


def asked(request: Request, name: str) -> str | None:
    """A text of the address; nothing is named by none, nor with a NUL, which no store keeps."""
    return request.query_params.get(name, "").replace("\0", "\N{REPLACEMENT CHARACTER}") or None


def static(request: Request, name: str) -> str:
    if name not in _static_versions:
        _static_versions[name] = sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return url(request, f"/static/{name}", v=_static_versions[name])


def page(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    desk = desk_of(request)
    visit: Visit | None = request.scope.get(VISIT)
    said = SAID.get(request.query_params.get("said", ""))
    count = request.query_params.get("n", "")
    text = _templates.get_template(template).render(
        request=request,
        url=lambda path, query=None, **more: url(request, path, query, **more),
        static=lambda name: static(request, name),
        nav=_NAV,
        active=values.pop("active", None),
        visit=visit,
        csrf="" if visit is None else visit.csrf,
        may_act=visit is not None and visit.who is not None and not visit.read_only,
        store=desk.source.shown if visit is not None and visit.who is not None else None,
        version=__version__,
        said=said and said.format(n=f"{int(count):,}" if count.isdecimal() and len(count) < 12 else "Some"),
        chores=desk.chores,
        live=values.pop("live", None),
        shape=values.pop("shape", ""),
        **values,
    )
    return HTMLResponse(text, status)


def problem(request: Request, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """What went wrong: a page for people, JSON for programs."""
    made: Response
    accepts = request.headers.get("accept", "")
    if route_path(request.scope).startswith("/api/") or "text/html" not in accepts:
        made = JSONResponse({"error": text}, status)
    else:
        made = page(request, "problem.html", status, code=status, text=text)
    made.headers.update(headers or {})
    return made


def refusal(request: Request, refused: Refused) -> Response:
    return problem(request, refused.status, str(refused), refused.headers)
