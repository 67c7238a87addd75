"""The updates of the live pages: texts by name, charts, and a hash of the page's structure (``shape``).

A page whose shape differs from the update's is fetched again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dayjob.dashboard import charts
from dayjob.dashboard.feeds import Key
from dayjob.dashboard.rendering import number, query_value, rate
from dayjob.dashboard.state import READ_BUDGET, DashboardState, state_of
from dayjob.dashboard.tiles import tiles
from dayjob.event_stream import EventStream
from dayjob.inspect import Overview, WorkerView
from dayjob.inspect.json_fields import span
from dayjob.model.explanation import Explanation
from dayjob.model.job import Job
from dayjob.model.limits import LimitInfo
from dayjob.model.recurring import Schedule

STATES = ("dead", "running", "pending", "limited", "scheduled", "done", "cancelled")
"""In the order of their importance."""


def shape_of(*parts: object) -> str:
    return sha256(repr(parts).encode(errors="replace")).hexdigest()[:16]


def queue_key(name: str) -> str:
    """Return a key that is safe in an HTML attribute. Names may contain any character."""
    return "q" + sha256(name.encode(errors="replace")).hexdigest()[:12]


# Each page has a function that returns its update: what the page shows at first, and its stream later.


def overview_update(overview: Overview, state: DashboardState, queue: str | None) -> dict[str, Any]:
    """Colours are part of the shape: an update of texts does not change them."""
    shown = tiles(overview, queue)
    values = _bulk_values(state)
    for tile in shown:
        values |= {f"tile-{tile.key}": tile.value, f"tile-{tile.key}-note": tile.note}
    values |= {f"total-{each}": number(getattr(overview.total, each)) for each in STATES}
    for view in overview.queues:
        key = queue_key(view.name)
        values |= {f"{key}-{each}": number(getattr(view.stats, each)) for each in STATES}
        values[f"{key}-rate"] = rate(view.done_per_second)
        values[f"{key}-wait"] = "" if view.waiting_seconds is None else span(view.waiting_seconds)
    queues = [(view.name, view.paused, view.stuck, view.stats.dead > 0) for view in overview.queues]
    return {"values": values, "shape": shape_of([tile.level for tile in shown], queues)}


def job_update(job: Job, why: Explanation) -> dict[str, Any]:
    values, progress = {"why": why.text}, {}
    if job.progress is not None:
        values["progress-text"] = f"{job.progress[0]:.0%} {job.progress[1]}"
        progress["progress"] = job.progress[0]
    codes = [reason.code for reason in why.reasons]
    shape = shape_of(job.state, job.attempts, job.epoch, job.cancel_requested, job.progress is None, codes)
    return {"values": values, "progress": progress, "shape": shape}


def workers_update(views: list[WorkerView]) -> dict[str, Any]:
    keys = {queue_key(view.info.id): view.info for view in views}
    return {
        "values": {key: f"{info.running} of {info.slots}" for key, info in keys.items()},
        "progress": {f"meter-{key}": info.running for key, info in keys.items()},
        "shape": shape_of([(view.info.id, sorted(job.key for job in view.jobs)) for view in views]),
    }


def schedules_update(found: list[Schedule]) -> dict[str, Any]:
    parts = [(each.id, each.next_us, each.last_us, each.paused, each.problem) for each in found]
    return {"shape": shape_of(parts)}


def limits_update(found: list[LimitInfo]) -> dict[str, Any]:
    values: dict[str, str] = {}
    for info in found:
        key = queue_key(info.name)
        values |= {f"{key}-running": number(info.running), f"{key}-limited": number(info.limited)}
    return {"values": values, "shape": shape_of([(info.name, info.settings) for info in found])}


def operations_update(state: DashboardState) -> dict[str, Any]:
    running, latest = state.bulk.running, state.bulk.latest
    return {
        "values": _bulk_values(state),
        "progress": {f"progress-{each.id}": each.share for each in running},
        "shape": shape_of([each.id for each in running], [each.id for each in latest]),
    }


def _bulk_values(state: DashboardState) -> dict[str, str]:
    return {f"operation-{each.id}": each.status for each in (*state.bulk.running, *state.bulk.latest)}


# The reads of the streams.


async def _overview(state: DashboardState, queue: str | None) -> dict[str, Any]:
    """The lists of jobs show its values too."""
    inspector = await state.inspector()
    overview = await inspector.overview(budget=READ_BUDGET)
    points = await inspector.chart(queue, budget=READ_BUDGET)
    drawn = {
        "chart-throughput": str(charts.throughput(points)),
        "chart-pending": str(charts.pending(points)),
        "chart-latency": str(charts.latency(points)),
    }
    return {**overview_update(overview, state, queue), "charts": drawn}


async def _job(state: DashboardState, id: str) -> dict[str, Any]:
    found = await (await state.inspector()).job(id)
    return {"shape": "gone"} if found is None else job_update(*found)


async def _list(state: DashboardState, topic: str) -> dict[str, Any]:
    if topic == "operations":
        return operations_update(state)
    inspector = await state.inspector()
    if topic == "workers":
        return workers_update(await inspector.workers())
    if topic == "limits":
        return limits_update(await inspector.broker.limits())
    return schedules_update(await inspector.broker.schedules())


# Routes.


async def _stream(request: Request) -> Response:
    topic, queue = request.path_params["topic"], query_value(request, "queue")
    if topic == "overview":
        return _streamed(request, (topic, queue or ""), _overview, queue)
    if topic in ("workers", "schedules", "limits", "operations"):
        return _streamed(request, (topic,), _list, topic)
    return Response(status_code=404)


async def _stream_job(request: Request) -> Response:
    id = request.path_params["id"]
    return _streamed(request, ("job", id), _job, id)


def _streamed(request: Request, key: Key, read: Callable[..., Any], *parameters: str | None) -> Response:
    state = state_of(request)
    state.feeds.check_capacity()
    return EventStream(state.feeds.stream(key, partial(read, state, *parameters)))


def routes() -> list[Route]:
    return [
        Route("/events/{topic}", _stream, methods=["GET"]),
        Route("/jobs/{id}/events", _stream_job, methods=["GET"]),
    ]
