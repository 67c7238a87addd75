"""The due times that schedules fired, compared with the expected ones. For tests and benchmarks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from dayjob import Job
from dayjob.model.durations import SECOND, to_instant
from dayjob.model.recurring import DUE_HEADER, SCHEDULE_HEADER, Schedule


def fired(jobs: Iterable[Job]) -> dict[str, list[int]]:
    """Return the due times that each schedule fired, in order."""
    times_by_id: defaultdict[str, list[int]] = defaultdict(list)
    for job in jobs:
        if SCHEDULE_HEADER in job.headers:
            times_by_id[job.headers[SCHEDULE_HEADER]].append(due(job))
    return {id: sorted(times) for id, times in times_by_id.items()}


def due(job: Job) -> int:
    return to_instant(datetime.fromisoformat(job.headers[DUE_HEADER]), "due")


def not_exactly_once(first: Sequence[Schedule], last: Sequence[Schedule], jobs: Iterable[Job]) -> list[str]:
    """Return the errors of schedules that fire every second, between their first and last due time."""
    times_by_id = fired(jobs)
    last_times = {schedule.id: schedule.last_us for schedule in last}
    errors = []
    for schedule in first:
        begun, end = schedule.next_us, last_times[schedule.id]
        if begun is None or end is None:
            errors.append(f"{schedule.id} never fired")
            continue
        expected = list(range(begun, end + 1, SECOND))
        times = times_by_id.get(schedule.id, [])
        if times != expected:
            missing = sorted(set(expected) - set(times))
            errors.append(
                f"{schedule.id}: {len(times)} jobs for {len(expected)} due times, missing {missing}"
            )
    return errors


def lateness(jobs: Iterable[Job]) -> list[int]:
    """Return the microseconds from each due time to the enqueue of its job."""
    return [job.enqueued_us - due(job) for job in jobs if DUE_HEADER in job.headers]
