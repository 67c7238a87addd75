"""Render templates. Every value is escaped; only the charts, drawn from numbers, are markup."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from dayjob._version import __version__
from dayjob.dashboard.security import CONTEXT, Refused, RequestContext, route_path
from dayjob.dashboard.state import state_of
from dayjob.inspect.json_fields import ago, indented, instant, span
from dayjob.inspect.redaction import HIDDEN
from dayjob.model.durations import to_datetime
from dayjob.model.job import JobState

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"

SHOWN_CHARACTERS = 50_000
"""How many characters of a payload, a result or an error a page shows."""

MESSAGES = {
    "cancelled": "Job cancelled.",
    "cancel-requested": "Cancel requested. The running job will stop.",
    "not-cancelled": "Not cancelled: the job has finished or does not exist.",
    "requeued": "Job requeued with all its attempts.",
    "not-requeued": "Not requeued: the job is not dead.",
    "rerun": "Enqueued as a new job, shown here.",
    "not-rerun": "Not enqueued: only a finished, retained job can run again.",
    "paused": "Queue paused. It accepts jobs, but workers claim none.",
    "resumed": "Queue resumed.",
    "schedule-paused": "Schedule paused.",
    "schedule-resumed": "Schedule resumed. It fires at its next due time.",
    "triggered": "Job enqueued from its schedule, shown here.",
    "no-schedule": "Schedule not found.",
    "limit-set": "Limit stored. It takes effect at once, also for jobs that wait.",
    "limit-removed": "Limit removed. Its jobs have room.",
    "no-limit": "Limit not found.",
    "dead-requeued": "Dead jobs requeued: {n}.",
    "dead-purged": "Dead jobs deleted: {n}.",
    "jobs-cancel": "Jobs cancelled: {n}. Running jobs get a request, and stop by themselves.",
    "jobs-requeue": "Dead jobs requeued: {n}.",
    "jobs-purge": "Dead jobs deleted: {n}.",
    "in-progress": "Operation started.",
    "stopped": "Operation stopped. The jobs that it changed stay changed.",
    "not-stopped": "Not stopped: the operation has ended.",
    "busy": "Too many bulk operations are running. Wait until one has finished.",
    "failed": "Operation failed after {n} jobs. See the log.",
    "logged-out": "Logged out.",
}
"""The flash messages by code. The URL carries only the code, so no link can inject a text."""

_NAV = (
    ("overview", "/", "Overview"),
    ("jobs", "/jobs", "Jobs"),
    ("dead", "/dead", "Dead"),
    ("tasks", "/tasks", "Tasks"),
    ("schedules", "/schedules", "Schedules"),
    ("limits", "/limits", "Limits"),
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
    made.filters |= {
        "number": number,
        "rate": rate,
        "span": span,
        "duration": duration,
        "percent": percent,
        "pretty": pretty,
        "truncate_text": truncate_text,
    }
    made.globals |= {"time": time_of, "JobState": JobState, "hidden": HIDDEN}
    return made


def number(value: int) -> str:
    return f"{value:,}"


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 0.05 or not value else "<0.1"


def milliseconds(seconds: float) -> str:
    millis = seconds * 1000
    return f"{millis:.1f} ms" if millis < 10 else f"{millis:,.0f} ms"


def duration(seconds: float) -> str:
    """Return a duration as text, also a short one."""
    return milliseconds(seconds) if seconds < 1 else span(seconds)


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or not share else f"{share:.1%}"


def time_of(micros: int | None) -> dict[str, str | None] | None:
    """Return an instant for ``<time>``: ISO, in full, and relative to now."""
    if micros is None:
        return None
    iso = to_datetime(micros).isoformat(timespec="milliseconds")
    return {"iso": iso, "full": instant(micros), "relative": ago(micros)}


def pretty(value: Any) -> str:
    """Return a value as indented JSON, as much as a page shows of it and a little more."""
    return indented(value, SHOWN_CHARACTERS)


def truncate_text(text: str) -> dict[str, Any]:
    """Return the part of a text that a page shows, and whether it is all of it."""
    return {"text": text[:SHOWN_CHARACTERS], "is_truncated": len(text) > SHOWN_CHARACTERS}


_templates = _environment()
_static_versions: dict[str, str] = {}


def url(request: Request, path: str, query: Mapping[str, Any] | None = None, **more: Any) -> str:
    """Return a link below the dashboard's mount point. Empty values are left out of the query."""
    given = {name: value for name, value in {**(query or {}), **more}.items() if value not in (None, "")}
    base = quote(request.scope.get("root_path", "").rstrip("/")) + quote(path)
    return f"{base}?{urlencode(given)}" if given else base


def query_value(request: Request, name: str) -> str | None:
    """Return a query parameter, None if it is empty. NUL is replaced, because no store accepts it."""
    return request.query_params.get(name, "").replace("\0", "\N{REPLACEMENT CHARACTER}") or None


def static(request: Request, name: str) -> str:
    if name not in _static_versions:
        _static_versions[name] = sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return url(request, f"/static/{name}", v=_static_versions[name])


def page(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    state = state_of(request)
    context: RequestContext | None = request.scope.get(CONTEXT)
    known_user = context is not None and context.user is not None
    message = MESSAGES.get(request.query_params.get("message", ""))
    count = request.query_params.get("n", "")
    text = _templates.get_template(template).render(
        request=request,
        url=lambda path, query=None, **more: url(request, path, query, **more),
        static=lambda name: static(request, name),
        nav=_NAV,
        active=values.pop("active", None),
        context=context,
        csrf="" if context is None else context.csrf,
        may_act=context is not None and known_user and not context.read_only,
        store=state.public_url if known_user else None,
        version=__version__,
        message=message
        and message.format(n=f"{int(count):,}" if count.isdecimal() and len(count) < 12 else "some"),
        bulk=state.bulk,
        live=values.pop("live", None),
        live_query=values.pop("live_query", {}),
        shape=values.pop("shape", ""),
        **values,
    )
    return HTMLResponse(text, status)


def problem(request: Request, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error response: a page for browsers, JSON for other clients."""
    made: Response
    accepts = request.headers.get("accept", "")
    if route_path(request.scope).startswith("/api/") or "text/html" not in accepts:
        made = JSONResponse({"error": text}, status)
    else:
        made = page(request, "problem.html", status, code=status, text=text)
    made.headers.update(headers or {})
    return made


def no_job(request: Request, name: str = "Job") -> Response:
    return problem(request, 404, f"{name} not found. It never existed, or it finished and is not retained.")


def refusal(request: Request, refused: Refused) -> Response:
    return problem(request, refused.status, str(refused), refused.headers)
