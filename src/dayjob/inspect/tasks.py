"""Statistics of each task, from a bounded sample: the latest finished jobs that the store keeps.

Nothing is counted while jobs run. The sample has the same time span of done and of dead jobs, so that their
shares are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from msgspec import Struct

from dayjob.broker import Broker
from dayjob.inspect.search import ReadBudget, read_latest
from dayjob.model.durations import SECOND
from dayjob.model.job import Job, JobState

SAMPLED = 2_000
"""How many jobs are sampled in each of ``SAMPLED_STATES``."""

SAMPLED_STATES = (JobState.DONE, JobState.DEAD)


class Percentiles(Struct, frozen=True):
    """Seconds that half of the values, and 95 % of them, do not exceed."""

    p50: float
    p95: float


class TaskStatistics(Struct, frozen=True):
    """The sampled jobs of one task. A job that was retried has several runs."""

    task: str
    queues: list[str]
    jobs: int
    runs: int
    failures: int
    dead: int
    wait: Percentiles | None
    """From the due time to the start of the last run."""
    run: Percentiles | None
    """The duration of the last run."""
    last_us: int

    @property
    def failed_share(self) -> float:
        return self.failures / self.runs if self.runs else 0.0


class TaskSample(Struct, frozen=True):
    """The tasks, those with the most failures first, and the number and first enqueue time of the jobs."""

    tasks: list[TaskStatistics]
    jobs: int
    since_us: int | None
    is_complete: bool
    """Whether every kept done and dead job is in the sample."""


async def task_statistics(broker: Broker, queue: str | None = None, *, budget: float = inf) -> TaskSample:
    """Sample the latest jobs of a queue, or of all. Read for ``budget`` seconds at most."""
    sampled: list[Job] = []
    first = b""
    for state in SAMPLED_STATES:
        jobs, is_all = await _latest(broker, queue, state, budget / len(SAMPLED_STATES))
        sampled += jobs
        if not is_all:
            first = max(first, jobs[-1].key)
    sampled = [job for job in sampled if job.key >= first]  # Ids are in the order of enqueuing.
    by_task: dict[str, list[Job]] = {}
    for job in sampled:
        by_task.setdefault(job.task, []).append(job)
    tasks = [_statistics(task, jobs) for task, jobs in by_task.items()]
    tasks.sort(key=lambda each: (-each.failures, -each.jobs, each.task))
    since = min((job.enqueued_us for job in sampled), default=None)
    return TaskSample(tasks, len(sampled), since, first == b"")


async def _latest(
    broker: Broker, queue: str | None, state: JobState, budget: float
) -> tuple[list[Job], bool]:
    """Return the latest jobs, the newest first, and whether these are all."""

    async def read(last: Job | None, size: int) -> list[Job]:
        return await broker.jobs(
            queue, state, after=None if last is None else last.id, limit=size, newest_first=True
        )

    return await read_latest(read, ReadBudget(SAMPLED, budget))


def _statistics(task: str, jobs: Sequence[Job]) -> TaskStatistics:
    waits = [(job.claimed_us - job.run_us) / SECOND for job in jobs if job.claimed_us is not None]
    runs = [
        (job.finished_us - job.claimed_us) / SECOND
        for job in jobs
        if job.claimed_us is not None and job.finished_us is not None
    ]
    done = sum(job.state is JobState.DONE for job in jobs)
    attempts = sum(max(job.attempts, 1) for job in jobs)
    return TaskStatistics(
        task=task, queues=sorted({job.queue for job in jobs}), jobs=len(jobs), runs=attempts,
        failures=attempts - done, dead=len(jobs) - done, wait=_percentiles(waits), run=_percentiles(runs),
        last_us=max(job.finished_us or 0 for job in jobs),
    )  # fmt: skip


def _percentiles(values: Sequence[float]) -> Percentiles | None:
    """Return the percentiles by the nearest rank. A clock that was set back gives no negative ones."""
    if not values:
        return None
    ordered = sorted(max(value, 0.0) for value in values)
    return Percentiles(*(ordered[ceil(len(ordered) * share / 100) - 1] for share in (50, 95)))
