"""What the demo runs: the queues, the jobs it enqueues, and how each of them is meant to end."""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from dayjob.config import BrokerConfig, QueueConfig, Retention
from dayjob.job import HIGH, LOW, JobState, NewJob
from dayjob.retry import Retry

EMAIL, RESIZE, REPORT, FLAKY, POISON, REMINDER, EXPORT = QUEUES = (
    "email", "resize", "report", "flaky", "poison", "reminder", "export",
)  # fmt: skip

KEPT = timedelta(hours=1)
"""Longer than any demo, so that every job that ended can still be counted and looked at."""

RETRIES = {
    FLAKY: Retry.exponential(attempts=5, base=0.4, jitter="equal"),
    POISON: Retry.fixed(attempts=3, delay=0.6),
}


def configuration(*, duties: bool) -> BrokerConfig:
    """Settings for the demo's own queues; a store may hold others, which keep the usual ones."""
    kept = Retention(done=KEPT, dead=KEPT, cancelled=KEPT)
    return BrokerConfig(
        queues={
            queue: QueueConfig(retry=RETRIES.get(queue, Retry.exponential()), retention=kept)
            for queue in QUEUES
        },
        duties=duties,
    )


class Planned(Struct, frozen=True):
    """A job, and the state that it should be in when the demo is over."""

    job: NewJob
    end: JobState
    cancel: bool = False


def exports(workers: int) -> list[Planned]:
    """One for each worker. Left alone they take minutes; the demo cancels them while they run."""
    return [
        Planned(NewJob(EXPORT, f"archive-{number}.zip".encode(), task="export"), JobState.CANCELLED)
        for number in range(1, workers + 1)
    ]


def plan(jobs: int) -> list[Planned]:
    """That many jobs, the urgent ones last."""
    counts = {
        "newsletter": jobs * 28 // 100,
        "resize": jobs * 22 // 100,
        "report": jobs * 5 // 100,
        "flaky": jobs * 14 // 100,
        "poison": jobs * 3 // 100,
        "reminder": jobs * 12 // 100,
        "withdrawn": jobs * 3 // 100,
        "tomorrow": max(jobs // 100, 1),
    }
    counts["urgent"] = jobs - sum(counts.values())
    return [_planned(kind, number) for kind, count in counts.items() for number in range(count)]


def _planned(kind: str, number: int) -> Planned:
    match kind:
        case "newsletter":
            return Planned(NewJob(EMAIL, b"news@example.com", task="send", priority=LOW), JobState.DONE)
        case "urgent":
            return Planned(NewJob(EMAIL, b"reset@example.com", task="send", priority=HIGH), JobState.DONE)
        case "resize":
            return Planned(NewJob(RESIZE, b"photo.jpg", task="resize"), JobState.DONE)
        case "report":
            return Planned(NewJob(REPORT, b"2026", task="report"), JobState.DONE)
        case "flaky":
            failures = str(number % 3).encode()
            return Planned(NewJob(FLAKY, failures, task="fetch"), JobState.DONE)
        case "poison":
            payload = b"\xff" if number % 2 else b"no date in line 3"
            return Planned(NewJob(POISON, payload, task="parse"), JobState.DEAD)
        case "reminder":
            return Planned(_reminder(3.5 + number % 4), JobState.DONE)
        case "withdrawn":
            return Planned(_reminder(timedelta(hours=1)), JobState.CANCELLED, cancel=True)
        case _:
            return Planned(_reminder(timedelta(days=1)), JobState.SCHEDULED)


def _reminder(delay: float | timedelta) -> NewJob:
    return NewJob(REMINDER, b"dentist", task="remind", delay=delay)
