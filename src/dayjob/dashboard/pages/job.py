"""One job's whole story."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard.desk import desk_of
from dayjob.dashboard.live import job_shape, job_values
from dayjob.dashboard.rendering import page, problem
from dayjob.inspect.inspector import Inspector, alike
from dayjob.inspect.json_fields import span
from dayjob.model.durations import SECOND
from dayjob.model.job import Job, JobState


class Moment(Struct, frozen=True):
    """A point of a job's life."""

    at_us: int
    what: str
    kind: str = "plain"
    more: str | None = None
    error: str | None = None


async def job(request: Request) -> Response:
    inspector = await desk_of(request).inspector()
    id = request.path_params["id"]
    found = await inspector.job(id)
    if found is None:
        return problem(
            request, 404, f"There is no job {id}: it never was, or it has finished and is not kept."
        )
    job, why = found
    return page(
        request,
        "job.html",
        active="jobs",
        live=None if job.state.finished else f"/jobs/{job.id}/events",
        live_query={},
        shape=job_shape(job, why),
        job=job,
        why=why,
        values=job_values(job, why),
        moments=timeline(job),
        facts=_facts(job),
        headers=inspector.redaction.headers(job.headers),
        payload=_content(inspector, job.payload),
        result=None if job.result is None else _content(inspector, job.result),
        may_cancel=not job.state.finished and not job.cancel_requested,
    )


def timeline(job: Job) -> list[Moment]:
    """What is known of its life, in order: each failure that is kept, and how it is now."""
    moments = [Moment(job.enqueued_us, "Enqueued")]
    if job.run_us > job.enqueued_us and not job.errors:
        moments.append(Moment(job.run_us, "Due"))
    for failure in job.errors:
        by = f"by {failure.worker}" if failure.worker else None
        moments.append(
            Moment(failure.at_us, f"Attempt {failure.attempt} failed", "failed", by, failure.message)
        )
    if job.claimed_us is not None and (job.state is JobState.RUNNING or job.state is JobState.DONE):
        by = f"by {job.worker}" if job.worker else None
        moments.append(Moment(job.claimed_us, f"Attempt {job.attempts} started", "running", by))
    if job.errors and not job.state.finished and job.state is not JobState.RUNNING:
        moments.append(Moment(job.run_us, f"Attempt {job.attempts + 1} is due", "scheduled"))
    if job.finished_us is not None:
        took = None
        if job.claimed_us is not None and job.state is JobState.DONE:
            took = f"after a run of {span((job.finished_us - job.claimed_us) / SECOND)}"
        moments.append(Moment(job.finished_us, job.state.value.capitalize(), job.state.value, took))
    return sorted(moments, key=lambda moment: moment.at_us)


def _facts(job: Job) -> list[tuple[str, Any]]:
    facts = [
        ("Queue", job.queue),
        ("Task", job.task or None),
        ("Attempts", f"{job.attempts} of {job.max_attempts}"),
        ("Priority", f"{job.priority:,}"),
        ("Tenant", job.tenant),
        ("Worker", job.worker),
        ("Dedup key", job.dedup_key),
        ("Claims ever", f"{job.epoch:,}" if job.epoch > job.attempts else None),
        ("Asked to stop", "yes" if job.cancel_requested else None),
        ("Failed of", alike(job.last_error) if job.last_error else None),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _content(inspector: Inspector, data: bytes) -> dict[str, Any]:
    return {"value": inspector.content(data), "bytes": len(data)}
