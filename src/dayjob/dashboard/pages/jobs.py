"""Jobs by state, queue, task and tenant, and by a text in them; page by page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard.desk import PATIENCE, desk_of
from dayjob.dashboard.live import STATES
from dayjob.dashboard.rendering import asked, page
from dayjob.inspect.inspector import Filter, alike, total
from dayjob.model.job import Job, JobState

SHOWN = 50


def wanted(request: Request) -> Filter:
    """The filter that a query asks for; a state that there is not is none."""
    state = asked(request, "state")
    return Filter(
        queue=asked(request, "queue"),
        state=JobState(state) if state in STATES else None,
        task=asked(request, "task"),
        tenant=asked(request, "tenant"),
        text=(asked(request, "search") or "").strip() or None,
    )


async def jobs(request: Request) -> Response:
    inspector = await desk_of(request).inspector()
    filter = wanted(request)
    after = asked(request, "after")
    found = await inspector.page(filter, after, SHOWN, patience=PATIENCE)
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
        totals=total(stats.values()),
        states=STATES,
        jobs=[(job, about(job)) for job in found.jobs],
        found=found,
        searched_on=found.after is not None and len(found.jobs) < SHOWN,
        is_first=after is None,
    )


def about(job: Job) -> str | None:
    """What there is to say of a job in a list."""
    if job.state is JobState.RUNNING and job.progress is not None:
        return f"{job.progress[0]:.0%} {job.progress[1]}"
    if job.state is JobState.RUNNING:
        return f"by {job.worker}" if job.worker else None
    return alike(job.last_error) if job.last_error else None
