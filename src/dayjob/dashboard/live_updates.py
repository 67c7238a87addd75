"""The updates of the live pages: texts by name, charts, and a hash of the page's structure (``shape``).

A page whose shape differs from the update's is fetched again.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dayjob.dashboard import charts
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


# The overview. The lists of jobs show its values too.


def overview_values(overview: Overview, state: DashboardState, queue: str | None) -> dict[str, str]:
    values = bulk_values(state)
    for tile in tiles(overview, queue):
        values |= {f"tile-{tile.key}": tile.value, f"tile-{tile.key}-note": tile.note}
    values |= {f"total-{each}": number(getattr(overview.total, each)) for each in STATES}
    for view in overview.queues:
        key = queue_key(view.name)
        values |= {f"{key}-{each}": number(getattr(view.stats, each)) for each in STATES}
        values[f"{key}-rate"] = rate(view.done_per_second)
        values[f"{key}-wait"] = "" if view.waiting_seconds is None else span(view.waiting_seconds)
    return values


def bulk_values(state: DashboardState) -> dict[str, str]:
    return {f"operation-{each.id}": each.status for each in (*state.bulk.running, *state.bulk.latest)}


def queue_key(name: str) -> str:
    """Return a key that is safe in an HTML attribute. Names may contain any character."""
    return "q" + sha256(name.encode(errors="replace")).hexdigest()[:12]


def overview_shape(overview: Overview, queue: str | None) -> str:
    """Colours are part of the shape: an update of texts does not change them."""
    levels = [tile.level for tile in tiles(overview, queue)]
    return shape_of(
        levels, [(view.name, view.paused, view.stuck, view.stats.dead > 0) for view in overview.queues]
    )


async def _overview(state: DashboardState, queue: str | None) -> dict[str, Any]:
    inspector = await state.inspector()
    overview = await inspector.overview(budget=READ_BUDGET)
    points = await inspector.chart(queue, budget=READ_BUDGET)
    drawn = {
        "chart-throughput": str(charts.throughput(points)),
        "chart-pending": str(charts.pending(points)),
        "chart-latency": str(charts.latency(points)),
    }
    return {
        "values": overview_values(overview, state, queue),
        "charts": drawn,
        "shape": overview_shape(overview, queue),
    }


# One job.


def job_values(job: Job, why: Explanation) -> dict[str, str]:
    values = {"why": why.text}
    if job.progress is not None:
        values["progress-text"] = f"{job.progress[0]:.0%} {job.progress[1]}"
    return values


def job_shape(job: Job | None, why: Explanation | None) -> str:
    if job is None:
        return "gone"
    codes = () if why is None else [reason.code for reason in why.reasons]
    return shape_of(job.state, job.attempts, job.epoch, job.cancel_requested, job.progress is None, codes)


async def _job(state: DashboardState, id: str) -> dict[str, Any]:
    found = await (await state.inspector()).job(id)
    if found is None:
        return {"shape": job_shape(None, None)}
    job, why = found
    progress = {} if job.progress is None else {"progress": job.progress[0]}
    return {"values": job_values(job, why), "progress": progress, "shape": job_shape(job, why)}


# Workers, schedules and limits.


def workers_values(views: list[WorkerView]) -> dict[str, str]:
    return {queue_key(view.info.id): f"{view.info.running} of {view.info.slots}" for view in views}


def workers_shape(views: list[WorkerView]) -> str:
    return shape_of([(view.info.id, sorted(job.key for job in view.jobs)) for view in views])


async def _workers(state: DashboardState) -> dict[str, Any]:
    views = await (await state.inspector()).workers()
    meters = {f"meter-{queue_key(view.info.id)}": view.info.running for view in views}
    return {"values": workers_values(views), "progress": meters, "shape": workers_shape(views)}


def schedules_shape(found: list[Schedule]) -> str:
    return shape_of([(each.id, each.next_us, each.last_us, each.paused, each.problem) for each in found])


def limits_shape(found: list[LimitInfo]) -> str:
    return shape_of([(info.name, info.settings) for info in found])


def limits_values(found: list[LimitInfo]) -> dict[str, str]:
    values: dict[str, str] = {}
    for info in found:
        key = queue_key(info.name)
        values |= {f"{key}-running": number(info.running), f"{key}-limited": number(info.limited)}
    return values


async def _limits(state: DashboardState) -> dict[str, Any]:
    found = await (await state.broker()).limits()
    return {"values": limits_values(found), "shape": limits_shape(found)}


def operations_shape(state: DashboardState) -> str:
    return shape_of([each.id for each in state.bulk.running], [each.id for each in state.bulk.latest])


async def _operations(state: DashboardState) -> dict[str, Any]:
    progress = {f"progress-{each.id}": each.share for each in state.bulk.running}
    return {"values": bulk_values(state), "progress": progress, "shape": operations_shape(state)}


async def _schedules(state: DashboardState) -> dict[str, Any]:
    return {"shape": schedules_shape(await (await state.broker()).schedules())}


# Routes.


async def _stream(request: Request) -> Response:
    state = state_of(request)
    state.feeds.check_capacity()
    topic = request.path_params["topic"]
    queue = query_value(request, "queue")
    if topic == "overview":
        return EventStream(state.feeds.stream((topic, queue or ""), partial(_overview, state, queue)))
    if topic == "workers":
        return EventStream(state.feeds.stream((topic,), partial(_workers, state)))
    if topic == "operations":
        return EventStream(state.feeds.stream((topic,), partial(_operations, state)))
    if topic == "limits":
        return EventStream(state.feeds.stream((topic,), partial(_limits, state)))
    if topic == "schedules":
        return EventStream(state.feeds.stream((topic,), partial(_schedules, state)))
    return Response(status_code=404)


async def _stream_job(request: Request) -> Response:
    state = state_of(request)
    state.feeds.check_capacity()
    id = request.path_params["id"]
    return EventStream(state.feeds.stream(("job", id), partial(_job, state, id)))


def routes() -> list[Route]:
    return [
        Route("/events/{topic}", _stream, methods=["GET"]),
        Route("/jobs/{id}/events", _stream_job, methods=["GET"]),
    ]
