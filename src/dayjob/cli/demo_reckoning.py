"""Whether the demo's sums add up, and if not, what is wrong, in words. Pure: it is given all it judges.

There are two accounts: the counters of each queue, and the record of each job that was accepted. They
must agree with each other, and with what was planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from dayjob.cli.demo_jobs import Planned
from dayjob.model.job import Job, JobState, QueueStats
from dayjob.model.lifecycle import LEASE_EXPIRED, WORKER_GONE


class Accepted(Struct, frozen=True):
    """A job that was enqueued, with what was planned for it and the record that is kept of it, if any."""

    id: str
    planned: Planned
    record: Job | None


class Row(Struct, frozen=True):
    """The sum of one queue, or of all: enqueued = done + dead + cancelled + left."""

    name: str
    enqueued: int
    done: int
    dead: int
    cancelled: int
    left: int

    @property
    def found(self) -> int:
        return self.done + self.dead + self.cancelled + self.left

    @property
    def adds_up(self) -> bool:
        return self.enqueued == self.found

    def __str__(self) -> str:
        return (
            f"{self.enqueued:,} enqueued = {self.done:,} done + {self.dead:,} dead "
            f"+ {self.cancelled:,} cancelled + {self.left:,} left"
        )


class Reckoning(Struct, frozen=True):
    rows: list[Row]
    total: Row
    problems: list[str]

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 0


def reckon(
    accepted: Sequence[Accepted], stats: Mapping[str, QueueStats], killed: str | None, orphans: Iterable[str]
) -> Reckoning:
    """``orphans`` are the ids of the jobs that the ``killed`` worker had in hand."""
    enqueued = Counter(item.planned.job.queue for item in accepted)
    rows = [_row(queue, count, stats.get(queue, QueueStats())) for queue, count in enqueued.items()]
    problems = [problem for row in rows for problem in _imbalance(row)]
    for queue in enqueued:
        mine = [item for item in accepted if item.planned.job.queue == queue]
        problems += _strays(queue, mine, stats.get(queue, QueueStats()))
    problems += _unfinished_orphans(accepted, killed, set(orphans))
    return Reckoning(rows, _total(rows), problems)


def _row(name: str, enqueued: int, stats: QueueStats) -> Row:
    left = stats.pending + stats.scheduled + stats.running
    return Row(name, enqueued, stats.done, stats.dead, stats.cancelled, left)


def _total(rows: list[Row]) -> Row:
    numbers = ([row.enqueued, row.done, row.dead, row.cancelled, row.left] for row in rows)
    return Row("total", *map(sum, zip(*numbers, strict=True)))


def _imbalance(row: Row) -> Iterable[str]:
    if not row.adds_up:
        gap = row.enqueued - row.found
        what = f"{gap:,} missing" if gap > 0 else f"{-gap:,} too many"
        yield f"{row.name}: {row.enqueued:,} jobs were enqueued and {row.found:,} are counted: {what}."


def _strays(queue: str, accepted: Sequence[Accepted], stats: QueueStats) -> Iterable[str]:
    """Jobs without a record, counters that differ from the records, and ends that nobody planned."""
    gone = [item.id for item in accepted if item.record is None]
    if gone:
        yield f"{queue}: {len(gone):,} accepted jobs have no record, the first of them {gone[0]}."
    listed = Counter(item.record.state for item in accepted if item.record is not None)
    planned = Counter(item.planned.end for item in accepted)
    for state in JobState:
        counted = getattr(stats, state.value)
        if counted != listed[state]:
            yield f"{queue}: the counter says {counted:,} {state}, the records say {listed[state]:,}."
        if listed[state] != planned[state]:
            yield f"{queue}: {planned[state]:,} jobs should be {state} by now, and {listed[state]:,} are."


def _unfinished_orphans(accepted: Sequence[Accepted], killed: str | None, orphans: set[str]) -> Iterable[str]:
    if killed is None or not orphans:
        yield "No worker was killed with jobs in hand, so nothing was shown to come back."
    ended = {item.id for item in accepted if item.record is not None and item.record.state.finished}
    if lost := orphans - ended:
        yield f"{len(lost):,} of the {len(orphans):,} jobs of the killed {killed} did not end: {min(lost)}."


def was_held_by(worker: str, job: Job) -> bool:
    """Whether a worker that is dead died with the job in hand: it was taken back, or is yet to be."""
    if job.state is JobState.RUNNING and name_of(job.worker) == worker:
        return True
    return any(
        name_of(failure.worker) == worker and failure.message in (LEASE_EXPIRED, WORKER_GONE)
        for failure in job.errors
    )


def name_of(worker: str | None) -> str:
    """The name of a worker, out of the id that it has for one start."""
    return (worker or "").rpartition("-")[0]
