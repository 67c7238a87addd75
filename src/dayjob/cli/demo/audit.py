"""The audit of the demo: every accepted job is accounted for, or a problem is reported.

Counters of the queues, records of the jobs and the plan must agree. Pure functions of these three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from dayjob.cli.demo.plan import PlannedJob
from dayjob.model.job import CRASHES, Job, JobState, QueueStats


class Accepted(Struct, frozen=True):
    """An enqueued job with its plan, and its stored record if there is one."""

    id: str
    planned: PlannedJob
    record: Job | None


class Row(Struct, frozen=True):
    """The counts of one queue, or of all: enqueued = done + dead + cancelled + left."""

    name: str
    enqueued: int
    done: int
    dead: int
    cancelled: int
    left: int

    @property
    def counted(self) -> int:
        return self.done + self.dead + self.cancelled + self.left

    @property
    def adds_up(self) -> bool:
        return self.enqueued == self.counted

    def __str__(self) -> str:
        return (
            f"{self.enqueued:,} enqueued = {self.done:,} done + {self.dead:,} dead "
            f"+ {self.cancelled:,} cancelled + {self.left:,} left"
        )


class Audit(Struct, frozen=True):
    rows: list[Row]
    total: Row
    problems: list[str]

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 0


def audit(
    accepted: Sequence[Accepted], stats: Mapping[str, QueueStats], killed: str | None, orphans: Iterable[str]
) -> Audit:
    """``orphans`` are the ids of the jobs that the ``killed`` worker held claims for."""
    enqueued = Counter(item.planned.job.queue for item in accepted)
    rows = [_row(queue, count, stats.get(queue, QueueStats())) for queue, count in enqueued.items()]
    problems = [problem for row in rows for problem in _imbalance(row)]
    for queue in enqueued:
        of_queue = [item for item in accepted if item.planned.job.queue == queue]
        problems += _mismatches(queue, of_queue, stats.get(queue, QueueStats()))
    problems += _unfinished_orphans(accepted, killed, set(orphans))
    return Audit(rows, _total(rows), problems)


def _row(name: str, enqueued: int, stats: QueueStats) -> Row:
    left = stats.pending + stats.scheduled + stats.running
    return Row(name, enqueued, stats.done, stats.dead, stats.cancelled, left)


def _total(rows: list[Row]) -> Row:
    numbers = ([row.enqueued, row.done, row.dead, row.cancelled, row.left] for row in rows)
    return Row("total", *map(sum, zip(*numbers, strict=True)))


def _imbalance(row: Row) -> Iterable[str]:
    if not row.adds_up:
        gap = row.enqueued - row.counted
        difference = f"{gap:,} missing" if gap > 0 else f"{-gap:,} too many"
        yield f"{row.name}: {row.enqueued:,} jobs enqueued, {row.counted:,} counted: {difference}."


def _mismatches(queue: str, accepted: Sequence[Accepted], stats: QueueStats) -> Iterable[str]:
    """Report jobs without a record, counters that differ from the records, and unplanned final states."""
    missing = [item.id for item in accepted if item.record is None]
    if missing:
        yield f"{queue}: {len(missing):,} accepted jobs have no record, the first is {missing[0]}."
    listed = Counter(item.record.state for item in accepted if item.record is not None)
    planned = Counter(item.planned.expected for item in accepted)
    for state in JobState:
        counted = getattr(stats, state.value)
        if counted != listed[state]:
            yield f"{queue}: the counter has {counted:,} {state}, the records have {listed[state]:,}."
        if listed[state] != planned[state]:
            yield f"{queue}: {planned[state]:,} jobs should be {state}, but {listed[state]:,} are."


def _unfinished_orphans(accepted: Sequence[Accepted], killed: str | None, orphans: set[str]) -> Iterable[str]:
    if killed is None or not orphans:
        yield "No worker was killed while it ran jobs, so recovery was not shown."
    ended = {item.id for item in accepted if item.record is not None and item.record.state.finished}
    if lost := orphans - ended:
        yield f"{len(lost):,} of the {len(orphans):,} jobs of {killed} did not finish: {min(lost)}."


def was_held_by(worker: str, job: Job) -> bool:
    """Return whether the worker died while it held a claim on the job, reaped by now or not."""
    if job.state is JobState.RUNNING and name_of(job.worker) == worker:
        return True
    return any(name_of(failure.worker) == worker and failure.message in CRASHES for failure in job.errors)


def name_of(worker: str | None) -> str:
    """Return the name of a worker from its id, which is unique for each start."""
    return (worker or "").rpartition("-")[0]
