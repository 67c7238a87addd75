"""What recurring jobs left behind, compared with what was due. For tests and for benchmarks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from dayjob import Job
from dayjob.model.durations import SECOND, to_instant
from dayjob.model.recurring import DUE_HEADER, SCHEDULE_HEADER, Schedule


def fired(jobs: Iterable[Job]) -> dict[str, list[int]]:
    """For which times each schedule fired, in order."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for job in jobs:
        if SCHEDULE_HEADER in job.headers:
            found[job.headers[SCHEDULE_HEADER]].append(due(job))
    return {id: sorted(times) for id, times in found.items()}


def due(job: Job) -> int:
    return to_instant(datetime.fromisoformat(job.headers[DUE_HEADER]), "due")


def not_exactly_once(first: Sequence[Schedule], last: Sequence[Schedule], jobs: Iterable[Job]) -> list[str]:
    """What is wrong with schedules that fall due every second, from their first due time to their last."""
    found = fired(jobs)
    ended = {schedule.id: schedule.last_us for schedule in last}
    wrong = []
    for schedule in first:
        begun, end = schedule.next_us, ended[schedule.id]
        if begun is None or end is None:
            wrong.append(f"{schedule.id} never fired")
            continue
        expected = list(range(begun, end + 1, SECOND))
        times = found.get(schedule.id, [])
        if times != expected:
            missing = sorted(set(expected) - set(times))
            wrong.append(f"{schedule.id}: {len(times)} for {len(expected)} due times, without {missing}")
    return wrong


def lateness(jobs: Iterable[Job]) -> list[int]:
    """Microseconds from each due time to its job's being there."""
    return [job.enqueued_us - due(job) for job in jobs if DUE_HEADER in job.headers]
