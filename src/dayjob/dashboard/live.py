"""What the live pages are told: texts by name, charts, and a shape that says when to load the page again."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dayjob.dashboard import charts
from dayjob.dashboard.desk import PATIENCE, Desk, desk_of
from dayjob.dashboard.events import EventStream
from dayjob.dashboard.rendering import asked, number, rate
from dayjob.inspect.inspector import Overview, WorkerView
from dayjob.inspect.json_fields import span
from dayjob.model.explanation import Explanation
from dayjob.model.job import Job
from dayjob.model.recurring import Schedule

STATES = ("pending", "scheduled", "running", "done", "dead", "cancelled")


def shape_of(*parts: object) -> str:
    return sha256(repr(parts).encode(errors="replace")).hexdigest()[:16]


# The overview; its values serve the other lists too.


def overview_values(seen: Overview, desk: Desk) -> dict[str, str]:
    values = {
        "rate": rate(seen.done_per_second),
        "workers": number(seen.workers),
        "slots": f"{number(seen.running)} of {number(seen.slots)}",
        "round-trip": f"{seen.round_trip_seconds * 1000:.1f} ms",
        "chores": "; ".join(f"{chore.what}: {chore.done:,} so far" for chore in desk.chores.running),
    }
    values |= {f"total-{state}": number(getattr(seen.total, state)) for state in STATES}
    for view in seen.queues:
        key = queue_key(view.name)
        values |= {f"{key}-{state}": number(getattr(view.stats, state)) for state in STATES}
        values[f"{key}-rate"] = rate(view.done_per_second)
        values[f"{key}-waits"] = "" if view.waiting_seconds is None else span(view.waiting_seconds)
    return values


def queue_key(name: str) -> str:
    """Names hold anything, and a key is part of an attribute."""
    return "q" + sha256(name.encode(errors="replace")).hexdigest()[:12]


def overview_shape(seen: Overview) -> str:
    return shape_of([(view.name, view.paused) for view in seen.queues])


async def _overview(desk: Desk, queue: str | None) -> dict[str, Any]:
    inspector = await desk.inspector()
    seen = await inspector.overview(patience=PATIENCE)
    points = await inspector.chart(queue, patience=PATIENCE)
    drawn = {
        "chart-throughput": str(charts.throughput(points)),
        "chart-waiting": str(charts.waiting(points)),
        "chart-latency": str(charts.latency(points)),
    }
    return {"values": overview_values(seen, desk), "charts": drawn, "shape": overview_shape(seen)}


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


async def _job(desk: Desk, id: str) -> dict[str, Any]:
    found = await (await desk.inspector()).job(id)
    if found is None:
        return {"shape": job_shape(None, None)}
    job, why = found
    progress = {} if job.progress is None else {"progress": job.progress[0]}
    return {"values": job_values(job, why), "progress": progress, "shape": job_shape(job, why)}


# Workers and schedules.


def workers_values(views: list[WorkerView]) -> dict[str, str]:
    return {queue_key(view.info.id): f"{view.info.running} of {view.info.slots}" for view in views}


def workers_shape(views: list[WorkerView]) -> str:
    return shape_of([(view.info.id, sorted(job.key for job in view.jobs)) for view in views])


async def _workers(desk: Desk) -> dict[str, Any]:
    views = await (await desk.inspector()).workers()
    return {"values": workers_values(views), "shape": workers_shape(views)}


def schedules_shape(found: list[Schedule]) -> str:
    return shape_of([(each.id, each.next_us, each.last_us, each.paused, each.problem) for each in found])


async def _schedules(desk: Desk) -> dict[str, Any]:
    return {"shape": schedules_shape(await (await desk.inspector()).schedules())}


# Routes.


async def _watch(request: Request) -> Response:
    desk = desk_of(request)
    desk.feeds.check()
    topic = request.path_params["topic"]
    queue = asked(request, "queue")
    if topic == "overview":
        return EventStream(desk.feeds.watch((topic, queue or ""), partial(_overview, desk, queue)))
    if topic == "workers":
        return EventStream(desk.feeds.watch((topic,), partial(_workers, desk)))
    if topic == "schedules":
        return EventStream(desk.feeds.watch((topic,), partial(_schedules, desk)))
    return Response(status_code=404)


async def _watch_job(request: Request) -> Response:
    desk = desk_of(request)
    desk.feeds.check()
    id = request.path_params["id"]
    return EventStream(desk.feeds.watch(("job", id), partial(_job, desk, id)))


def routes() -> list[Route]:
    return [
        Route("/events/{topic}", _watch, methods=["GET"]),
        Route("/jobs/{id}/events", _watch_job, methods=["GET"]),
    ]
