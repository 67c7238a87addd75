"""A summary of the demo: its retries, dead letters, priorities, delays and killed worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dayjob.cli.demo.audit import name_of
from dayjob.cli.demo.tasks import EMAIL, FLAKY, REMINDER
from dayjob.model.durations import SECOND
from dayjob.model.job import HIGH, Job, JobState


def summarize(records: Sequence[Job], killed: str | None, orphans: set[str]) -> Iterator[str]:
    """Yield the lines of the summary. The audit checks the invariants."""
    failures = sum(len(job.errors) for job in records)
    retried = sum(job.queue == FLAKY and job.state is JobState.DONE and job.attempts > 1 for job in records)
    yield f"{failures:,} runs failed, and {retried:,} flaky jobs succeeded on a retry"

    dead = [job for job in records if job.state is JobState.DEAD]
    if dead:
        yield f"{len(dead):,} jobs are dead letters, the first with the error {dead[0].last_error!r}"

    emails = [job for job in records if job.queue == EMAIL]
    urgent = _mean(
        job.claimed_us - job.enqueued_us for job in emails if job.claimed_us and job.priority == HIGH
    )
    other = _mean(
        job.claimed_us - job.enqueued_us for job in emails if job.claimed_us and job.priority != HIGH
    )
    yield f"urgent emails started after {urgent:.2f} s on average, the newsletter after {other:.2f} s"

    late = [job.claimed_us - job.run_us for job in records if job.queue == REMINDER and job.claimed_us]
    yield f"{len(late):,} delayed reminders ran, on average {_mean(late):.2f} s after their due time"

    ended = sum(job.id in orphans and job.state.finished and name_of(job.worker) != killed for job in records)
    yield f"of the killed worker's {len(orphans):,} jobs, {ended:,} finished on other workers"


def _mean(micros: Iterable[int]) -> float:
    values = list(micros)
    return sum(values) / len(values) / SECOND if values else 0.0
