"""One job: its timeline, details, payload and result."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard.live_updates import job_shape, job_values
from dayjob.dashboard.rendering import page, problem
from dayjob.dashboard.state import state_of
from dayjob.inspect import Inspector, error_line
from dayjob.inspect.json_fields import span
from dayjob.model.durations import SECOND
from dayjob.model.job import Job, JobState


class TimelineEntry(Struct, frozen=True):
    at_us: int
    title: str
    kind: str = "plain"
    detail: str | None = None
    error: str | None = None


_END_TITLES = {JobState.DONE: "Completed", JobState.DEAD: "Died", JobState.CANCELLED: "Cancelled"}


async def job(request: Request) -> Response:
    inspector = await state_of(request).inspector()
    id = request.path_params["id"]
    found = await inspector.job(id)
    if found is None:
        return problem(
            request, 404, f"Job {id} not found. It never existed, or it finished and is not retained."
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
        timeline=timeline(job),
        details=_details(job),
        headers=inspector.redaction.headers(job.headers),
        payload=_content(inspector, job.payload),
        result=None if job.result is None else _content(inspector, job.result),
        may_cancel=not job.state.finished and not job.cancel_requested,
    )


def timeline(job: Job) -> list[TimelineEntry]:
    """Return the known events in order: the recorded failures, the current run, the end."""
    entries = [TimelineEntry(job.enqueued_us, "Enqueued")]
    if job.run_us > job.enqueued_us and not job.errors:
        entries.append(TimelineEntry(job.run_us, "Due"))
    for failure in job.errors:
        by = f"by {failure.worker}" if failure.worker else None
        entries.append(
            TimelineEntry(failure.at_us, f"Attempt {failure.attempt} failed", "failed", by, failure.message)
        )
    if job.claimed_us is not None and (job.state is JobState.RUNNING or job.state is JobState.DONE):
        by = f"by {job.worker}" if job.worker else None
        entries.append(TimelineEntry(job.claimed_us, f"Attempt {job.attempts} started", "running", by))
    if job.errors and not job.state.finished and job.state is not JobState.RUNNING:
        entries.append(TimelineEntry(job.run_us, f"Attempt {job.attempts + 1} due", "scheduled"))
    if job.finished_us is not None:
        took = None
        if job.claimed_us is not None and job.state is JobState.DONE:
            took = f"after running for {span((job.finished_us - job.claimed_us) / SECOND)}"
        entries.append(TimelineEntry(job.finished_us, _END_TITLES[job.state], job.state.value, took))
    return sorted(entries, key=lambda entry: entry.at_us)


def _details(job: Job) -> list[tuple[str, Any]]:
    details = [
        ("Queue", job.queue),
        ("Task", job.task or None),
        ("Attempts", f"{job.attempts} of {job.max_attempts}"),
        ("Priority", f"{job.priority:,}"),
        ("Tenant", job.tenant),
        ("Worker", job.worker),
        ("Dedup key", job.dedup_key),
        ("Cancel requested", "yes" if job.cancel_requested else None),
        ("Suspect", "yes" if job.suspect else None),
        ("Error", error_line(job.last_error) if job.last_error else None),
    ]
    return [(name, value) for name, value in details if value is not None]


def _content(inspector: Inspector, data: bytes) -> dict[str, Any]:
    return {"value": inspector.content(data), "bytes": len(data)}
