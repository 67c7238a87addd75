"""Jobs filtered by state, queue, task, tenant and text, page by page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard.live_updates import STATES
from dayjob.dashboard.rendering import page, query_value
from dayjob.dashboard.state import READ_BUDGET, state_of
from dayjob.inspect import Filter, error_line, sum_stats
from dayjob.model.job import Job, JobState

SHOWN = 50


def filter_of(request: Request) -> Filter:
    """Return the filter of a request's query. An unknown state is ignored."""
    state = query_value(request, "state")
    return Filter(
        queue=query_value(request, "queue"),
        state=JobState(state) if state in STATES else None,
        task=query_value(request, "task"),
        tenant=query_value(request, "tenant"),
        text=(query_value(request, "search") or "").strip() or None,
    )


async def jobs(request: Request) -> Response:
    inspector = await state_of(request).inspector()
    filter = filter_of(request)
    after = query_value(request, "after")
    found = await inspector.page(filter, after, SHOWN, budget=READ_BUDGET)
    stats = await inspector.broker.all_stats()
    query = {
        "state": filter.state and filter.state.value, "queue": filter.queue, "task": filter.task,
        "tenant": filter.tenant, "search": filter.text,
    }  # fmt: skip
    return page(
        request,
        "jobs.html",
        active="jobs",
        live="/events/overview",
        live_query={},
        query=query,
        queues=list(stats)[:500],
        totals=sum_stats(stats.values()),
        states=STATES,
        jobs=[(job, details(job)) for job in found.jobs],
        found=found,
        is_partial=found.after is not None and len(found.jobs) < SHOWN,
        is_first=after is None,
    )


def details(job: Job) -> str | None:
    """Return the progress, worker or error that a list shows for a job."""
    if job.state is JobState.RUNNING and job.progress is not None:
        return f"{job.progress[0]:.0%} {job.progress[1]}"
    if job.state is JobState.RUNNING:
        return f"by {job.worker}" if job.worker else None
    return error_line(job.last_error) if job.last_error else None
