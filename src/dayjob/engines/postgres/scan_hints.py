"""Where claims scan the index of pending jobs while it is full of dead entries.

The entry of a claimed job stays in the index until the next vacuum, or for as long as any transaction holds
an old snapshot, and every claim would step over all of them again. A claim reports how many index blocks it
read. When those are many more than it needed, its queues get hints: for each priority, the id up to which no
job is pending. The next claims leave these parts of the index out.

A hint hides no job for long:

- A job that becomes pending behind a hint is stored with the number of its transaction (the column ``late``).
  This holds for retries, due, requeued and rescheduled jobs, jobs inserted in the caller's transaction, and
  jobs with an id older than ``LATE``. Each claim first looks for those of new transactions, by an index.
- Other jobs have ids of the present. A hint ends ``GRACE`` before it, for inserts under way and other clocks.
- The rest, such as a job whose claim was cut off in another process, is found by a search of the hidden
  parts, in the background.

Queues with limits or turns have their hints in the table ``scan_hints``, because their order is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dayjob.engines.postgres import rows
from dayjob.model.durations import SECOND

Position = tuple[int, bytes]
"""Priority and id."""

FIRST_ID = bytes(16)
LAST_ID = b"\xff" * 16
START: Position = (-1, FIRST_ID)
END: Position = (2**63 - 1, LAST_ID)

WASTED_BLOCKS = 100
"""Unneeded index blocks read by one claim, above which its queues get hints. A block has some 100 entries."""

_JOBS_PER_BLOCK = 20
"""The fewest jobs in a block of the index, if the name of their queue is long."""

GRACE = SECOND // 2
"""Microseconds before the present that no hint covers."""

LATE = GRACE // 2
"""An inserted job is late if its id is older than this."""

MAX_PRIORITIES = 64
"""Priorities of a queue that have hints. Each is one more range to scan."""

MAX_QUEUES = 64
"""Queues that get hints by one claim, besides those of its jobs."""

MAX_LATE = 1000
"""Late jobs that are tracked one by one. With more, the queue is scanned from the start once."""

FULL_SCAN_INTERVAL = 10 * SECOND
"""Microseconds after which a claim of a queue with limits or turns scans the hidden parts, too."""


class QueueHints:
    """The hints of one queue."""

    def __init__(self) -> None:
        self.snapshot: str | None = None
        """``late`` has the jobs of all transactions that this snapshot sees. None: there was no look yet."""
        self.scan_until: bytes = FIRST_ID
        """The id that the next claim may raise the hints to. It is ``FIRST_ID`` while the queue is paused."""
        self.hidden: dict[int, bytes] = {}
        """By priority, the id up to which no job is pending, except those in ``late``."""
        self.late: set[Position] = set()

    def hides(self, position: Position) -> bool:
        priority, id = position
        return FIRST_ID < id <= self.hidden.get(priority, FIRST_ID)

    def add_late(self, positions: Iterable[Position]) -> None:
        self.late.update(position for position in positions if self.hides(position))
        if len(self.late) > MAX_LATE:
            self.clear()

    def clear(self) -> None:
        self.hidden.clear()
        self.late.clear()

    def ranges(self) -> Iterator[tuple[Position, Position]]:
        """Yield the parts to scan, in order: each after its first position, up to its second."""
        start = START
        late = sorted(self.late, reverse=True)
        for priority in sorted(self.hidden):
            yield start, (priority, FIRST_ID)
            start = (priority, self.hidden[priority])
            while late and late[-1] <= start:
                position = late.pop()
                yield (priority, (int.from_bytes(position[1]) - 1).to_bytes(16)), position
        yield start, END

    def claimed(self, priorities: Iterable[int], last: Position) -> None:
        """Raise the hints after a claim of jobs of these priorities, up to and including ``last``."""
        if self.snapshot is None:
            return
        for priority in priorities:
            if len(self.hidden) < MAX_PRIORITIES:
                self.hidden.setdefault(priority, FIRST_ID)
        for priority, id in self.hidden.items():
            seen = LAST_ID if priority < last[0] else last[1] if priority == last[0] else FIRST_ID
            self.hidden[priority] = max(id, min(seen, self.scan_until))
        self.late = {position for position in self.late if position > last}


class ScanHints:
    """The hints of all queues of one engine. Without waste there are none, and they cost nothing."""

    def __init__(self) -> None:
        self._queues: dict[str, QueueHints] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def among(self, queues: Sequence[str]) -> dict[str, QueueHints]:
        """Return the hints of those of the queues that have any."""
        if not self._queues:
            return {}
        return {queue: self._queues[queue] for queue in queues if queue in self._queues}

    def ranges(self, queues: Sequence[str]) -> tuple[list[Any], ...]:
        """Return the parts of the queues to scan, in order: queues, then priorities and ids of both ends."""
        if not self._queues:
            count = len(queues)
            return (
                list(queues), [START[0]] * count, [START[1]] * count, [END[0]] * count, [END[1]] * count
            )  # fmt: skip
        found = [
            (queue, *after, *until)
            for queue in queues
            for after, until in (
                self._queues[queue].ranges() if queue in self._queues else ((START, END),)
            )
        ]  # fmt: skip
        return tuple(map(list, zip(*found, strict=True)))

    def looked(self, found: Sequence[Sequence[Any]]) -> None:
        """Take the rows of ``became_pending.sql``: snapshot, time and pause of each queue, and a late job."""
        late: dict[str, list[Position]] = {}
        for queue, snapshot, now, paused, priority, id in found:
            hints = self._queues.get(queue)
            if hints is not None:
                hints.snapshot = snapshot
                hints.scan_until = FIRST_ID if paused else id_at(now - GRACE)
                if id is not None:
                    late.setdefault(queue, []).append((priority, id))
        for queue, positions in late.items():
            if len(positions) >= MAX_LATE:
                self._queues[queue].clear()  # There may be more.
            self._queues[queue].add_late(positions)

    def detect_waste(self, queues: Sequence[str], found: Sequence[Sequence[Any]]) -> None:
        """Give hints to the queues that a claim scanned, if it read too much. ``found`` is its rows."""
        if found and found[-1][-1] - len(found) // _JOBS_PER_BLOCK > WASTED_BLOCKS:
            of_jobs = {row[rows.QUEUE] for row in found}
            for queue in {*_scanned(queues, found)[:MAX_QUEUES], *of_jobs}:
                self._queues.setdefault(queue, QueueHints())

    def claimed(self, queues: Sequence[str], found: Sequence[Sequence[Any]]) -> None:
        """Raise the hints by the rows of a claim. A look preceded it."""
        scanned = _scanned(queues, found)
        for queue, hints in self.among(scanned).items():
            jobs = [row for row in found if row[rows.QUEUE] == queue]
            ended = not found or queue != scanned[-1]
            position = END if ended else (jobs[-1][rows.PRIORITY], jobs[-1][rows.KEY])
            hints.claimed({row[rows.PRIORITY] for row in jobs}, position)

    def job_pending(self, queue: str, position: Position) -> None:
        """Track a new job, if it is hidden. A new priority is added to the hints."""
        hints = self._queues.get(queue)
        if hints is not None:
            hints.add_late([position])
            if len(hints.hidden) < MAX_PRIORITIES:
                hints.hidden.setdefault(position[0], FIRST_ID)

    def hidden(self) -> tuple[list[str], list[int], list[bytes]]:
        """Return the hidden parts of all queues: queue, priority, and the id up to which they are."""
        found = [(queue, *part) for queue, hints in self._queues.items() for part in hints.hidden.items()]
        queues, priorities, ids = zip(*found, strict=True) if found else ((), (), ())
        return list(queues), list(priorities), list(ids)

    def overlooked(self, found: Sequence[tuple[str, int, bytes]]) -> None:
        """Track jobs that were found in hidden parts."""
        for queue, priority, id in found:
            if queue in self._queues:
                self._queues[queue].add_late([(priority, id)])

    def drop_all(self) -> None:
        self._queues.clear()


def id_at(micros: int) -> bytes:
    """Return the id before all ids of a time."""
    return (max(micros // 1000, 0) << 80).to_bytes(16)


def _scanned(queues: Sequence[str], found: Sequence[Sequence[Any]]) -> Sequence[str]:
    """Return the queues that a claim has scanned: all before that of its last job were scanned to the end."""
    return queues[: queues.index(found[-1][rows.QUEUE]) + 1] if found else queues
