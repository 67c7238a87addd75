"""The HTML pages: overview, jobs, one job, dead letters, tasks, schedules, limits, workers, operations."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from dayjob.dashboard import charts, edit, filters, live_updates
from dayjob.dashboard.actions import BULK_VERBS
from dayjob.dashboard.live_updates import STATES, queue_key
from dayjob.dashboard.rendering import no_job, page, problem, query_value
from dayjob.dashboard.state import READ_BUDGET, SAMPLE_BUDGET, state_of
from dayjob.dashboard.tiles import tiles
from dayjob.inspect import (
    Filter,
    Inspector,
    dead_groups,
    dead_page,
    error_line,
    sum_stats,
    task_statistics,
)
from dayjob.inspect.json_fields import span, when
from dayjob.inspect.search import DEAD
from dayjob.model.durations import SECOND
from dayjob.model.job import Job, JobState
from dayjob.model.limits import LimitSettings
from dayjob.model.recurring import DUE_HEADER, SCHEDULE_HEADER, Schedule
from dayjob.task import unscoped

QUEUES_SHOWN = 100
"""How many queues the overview shows."""

JOBS_SHOWN = 50
"""How many jobs a page of a list shows."""

GROUPS_SHOWN = 200
TASKS_SHOWN = 200
SCHEDULES_SHOWN = 500
LIMITS_SHOWN = 500
DUE_TIMES_SHOWN = 3

RUNNING_SHOWN = 20
"""How many running jobs of one worker are shown."""

INTERNAL_HEADERS = "dayjob-"
"""The prefix of the headers that dayjob sets."""

_END_TITLES = {JobState.DONE: "Completed", JobState.DEAD: "Died", JobState.CANCELLED: "Cancelled"}


async def overview(request: Request) -> Response:
    """All queues at a glance, with the charts of the last hour for all of them or one."""
    state = state_of(request)
    inspector = await state.inspector()
    found = await inspector.overview(budget=READ_BUDGET)
    queue = query_value(request, "queue")
    first = _number(query_value(request, "from") or "")
    end = first + QUEUES_SHOWN
    shown = found.queues[first:end]
    drawn = await inspector.charts([queue, *(view.name for view in shown)], budget=READ_BUDGET)
    return page(
        request,
        "overview.html",
        active="overview",
        live="/events/overview",
        live_query={"queue": queue},
        **live_updates.overview_update(found, state, queue),
        tiles=tiles(found, queue),
        states=STATES,
        queue=queue,
        queues=[(view, queue_key(view.name), charts.sparkline(drawn[view.name])) for view in shown],
        before=max(first - QUEUES_SHOWN, 0) if first else None,
        after=end if end < len(found.queues) else None,
        throughput=charts.throughput(drawn[queue]),
        pending=charts.pending(drawn[queue]),
        latency=charts.latency(drawn[queue]),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


# Lists of jobs.


async def jobs(request: Request) -> Response:
    """Jobs filtered by state, queue, task, tenant, worker, argument and text, page by page."""
    inspector = await state_of(request).inspector()
    filter, argument_problem = filters.lenient(request.query_params)
    after = query_value(request, "after")
    found = await inspector.page(filter, after, JOBS_SHOWN, budget=READ_BUDGET)
    stats = await inspector.broker.all_stats()
    return page(
        request,
        "jobs.html",
        active="jobs",
        live="/events/overview",
        query={
            **dict.fromkeys(filters.NAMES),
            **filters.to_query(filter),
            "arg": query_value(request, "arg"),
        },
        argument_problem=argument_problem,
        verbs={} if argument_problem else bulk_verbs(filter),
        queues=list(stats)[:500],
        totals=sum_stats(stats.values()),
        states=STATES,
        jobs=[(job, inspector.arguments(job), listed_detail(job)) for job in found.jobs],
        found=found,
        is_partial=found.after is not None and len(found.jobs) < JOBS_SHOWN,
        is_first=after is None,
    )


def bulk_verbs(filter: Filter) -> dict[str, str]:
    """Return the labels of the bulk actions that the filter's jobs allow, by verb."""
    return {
        verb: each.label + (" dead" if filter.state is None and each.states == DEAD else "")
        for verb, each in BULK_VERBS.items()
        if filter.within(each.states)
    }


async def confirm(request: Request) -> Response:
    """The number of jobs that a bulk action would change, and the form that starts it."""
    inspector = await state_of(request).inspector()
    verb = request.query_params.get("action", "")
    try:
        filter = filters.parse(request.query_params)
        if verb not in BULK_VERBS:
            raise ValueError(f"action={verb!r} is none of {', '.join(BULK_VERBS)}")
    except ValueError as error:
        return problem(request, 400, f"Nothing was changed: {error}.")
    states = BULK_VERBS[verb].states
    number, is_exact = await inspector.count_within(filter, states, budget=READ_BUDGET)
    return page(
        request,
        "confirm.html",
        active="jobs",
        verb=verb,
        label=BULK_VERBS[verb].label,
        number=number,
        is_exact=is_exact,
        query=filters.to_query(filter),
        words=filters.in_words(filter),
        states=[state.value for state in filter.within(states)],
    )


async def operations(request: Request) -> Response:
    """The bulk operations of this dashboard: those that run, and the latest that ended."""
    state = state_of(request)
    return page(
        request, "operations.html", live="/events/operations", **live_updates.operations_update(state)
    )


def listed_detail(job: Job) -> str | None:
    """Return the progress, worker or error that a list shows for a job."""
    if job.state is JobState.RUNNING and job.progress is not None:
        return f"{job.progress[0]:.0%} {job.progress[1]}"
    if job.state is JobState.RUNNING:
        return f"by {job.worker}" if job.worker else None
    return error_line(job.last_error) if job.last_error else None


async def dead(request: Request) -> Response:
    """Dead letters: the latest failure first, or grouped by error."""
    inspector = await state_of(request).inspector()
    queue = query_value(request, "queue")
    stats = await inspector.broker.all_stats()
    by_queue = {name: each.dead for name, each in stats.items() if each.dead}
    common: dict[str, Any] = {
        "active": "dead",
        "live": "/events/overview",
        "queue": queue,
        "by_queue": dict(list(by_queue.items())[:500]),
        "dead": by_queue.get(queue, 0) if queue is not None else sum(by_queue.values()),
        "total": sum(by_queue.values()),
    }
    if query_value(request, "by") == "error":
        found = await dead_groups(inspector.broker, queue, budget=READ_BUDGET)
        shown = found.groups[:GROUPS_SHOWN]
        return page(request, "dead_groups.html", found=found, groups=shown, **common)
    after = query_value(request, "after")
    latest = await dead_page(inspector.broker, queue, after, JOBS_SHOWN)
    listed = [(job, inspector.arguments(job), error_line(job.last_error)) for job in latest.jobs]
    return page(request, "dead.html", jobs=listed, after=latest.after, is_first=after is None, **common)


# One job.


class TimelineEntry(Struct, frozen=True):
    at_us: int
    title: str
    kind: str = "plain"
    detail: str | None = None
    error: str | None = None


async def job(request: Request) -> Response:
    """One job: its timeline, details, payload and result."""
    inspector = await state_of(request).inspector()
    id = request.path_params["id"]
    found = await inspector.job(id)
    if found is None:
        return no_job(request, f"Job {id}")
    job, why = found
    return page(
        request,
        "job.html",
        active="jobs",
        live=None if job.state.finished else f"/jobs/{job.id}/events",
        **live_updates.job_update(job, why),
        job=job,
        why=why,
        timeline=timeline(job),
        details=_details(inspector, job),
        headers=_headers(inspector, job),
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


def _details(inspector: Inspector, job: Job) -> list[tuple[str, Any]]:
    details = [
        ("Queue", job.queue),
        ("Task", job.task or None),
        ("Attempts", f"{job.attempts} of {job.max_attempts}"),
        ("Priority", f"{job.priority:,}"),
        ("Tenant", job.tenant),
        ("Worker", job.worker),
        ("Schedule", job.headers.get(SCHEDULE_HEADER)),
        ("Due time", _due(job)),
        ("Dedup key", unscoped(job.task, inspector.redaction.dedup_key(job.dedup_key, job.payload))),
        ("Cancel requested", "yes" if job.cancel_requested else None),
        ("Suspect", "yes" if job.suspect else None),
        ("Error", error_line(job.last_error) if job.last_error else None),
    ]
    return [(name, value) for name, value in details if value is not None]


def _due(job: Job) -> str | None:
    """Return the due time of a schedule's job as text. Any caller may have set the header."""
    given = job.headers.get(DUE_HEADER)
    try:
        return given and f"{datetime.fromisoformat(given):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return given


def _headers(inspector: Inspector, job: Job) -> dict[str, str]:
    """Return the headers that a caller set. Those of dayjob itself are among the details."""
    shown = {name: value for name, value in job.headers.items() if not name.startswith(INTERNAL_HEADERS)}
    return inspector.redaction.headers(shown)


def _content(inspector: Inspector, data: bytes) -> dict[str, Any]:
    return {"value": inspector.redaction.content(data), "bytes": len(data)}


async def edit_form(request: Request) -> Response:
    """The form that runs a finished job again with other arguments or options."""
    state = state_of(request)
    id = request.path_params["id"]
    job = await (await state.broker()).get(id)
    if job is None:
        return no_job(request, f"Job {id}")
    if not job.state.finished:
        return problem(request, 409, f"Job {id} is {job.state.value}: only a finished job can run again.")
    return edit.render(request, edit.form_of(job, state.redaction))


# Tasks, schedules, limits and workers.


async def tasks(request: Request) -> Response:
    """Statistics of each task, from a sample of the latest finished jobs."""
    inspector = await state_of(request).inspector()
    queue = query_value(request, "queue")
    sample = await task_statistics(inspector.broker, queue, budget=SAMPLE_BUDGET)
    stats = await inspector.broker.all_stats()
    return page(
        request,
        "tasks.html",
        active="tasks",
        sample=sample,
        tasks=sample.tasks[:TASKS_SHOWN],
        queue=queue,
        queues=list(stats)[:500],
    )


async def schedules(request: Request) -> Response:
    """Schedules, with their next due times."""
    found = await (await state_of(request).broker()).schedules()
    return page(
        request,
        "schedules.html",
        active="schedules",
        live="/events/schedules",
        **live_updates.schedules_update(found),
        schedules=[(each, when(each), next_fires(each)) for each in found[:SCHEDULES_SHOWN]],
        hidden=max(len(found) - SCHEDULES_SHOWN, 0),
    )


def next_fires(schedule: Schedule) -> list[int]:
    if schedule.paused or schedule.next_us is None:
        return []
    fires = [schedule.next_us]
    try:
        timing = schedule.timing
        while len(fires) < DUE_TIMES_SHOWN and (following := timing.after(fires[-1])) is not None:
            fires.append(following)
    except Exception:  # This machine may not have the time zone, and a stored time may be out of range.
        pass
    return fires


async def limits(request: Request) -> Response:
    """The stored limits, and their use."""
    found = await (await state_of(request).broker()).limits()
    return page(
        request,
        "limits.html",
        active="limits",
        live="/events/limits",
        **live_updates.limits_update(found),
        limits=[(info, queue_key(info.name), _bounds(info.settings)) for info in found[:LIMITS_SHOWN]],
        hidden=max(len(found) - LIMITS_SHOWN, 0),
    )


def _bounds(settings: LimitSettings) -> str:
    parts = [] if settings.running is None else [f"{settings.running:,} at once"]
    if settings.rate is not None:
        parts.append(f"{settings.rate:,} per {settings.per / SECOND:g} s, {settings.burst:,} together")
    return ", ".join(parts) or "no bound"


async def workers(request: Request) -> Response:
    """The live workers and their running jobs."""
    inspector = await state_of(request).inspector()
    views = await inspector.workers()
    return page(
        request,
        "workers.html",
        active="workers",
        live="/events/workers",
        **live_updates.workers_update(views),
        views=[
            (
                view,
                queue_key(view.info.id),
                [(job, inspector.arguments(job)) for job in view.jobs[:RUNNING_SHOWN]],
            )
            for view in views
        ],
    )
