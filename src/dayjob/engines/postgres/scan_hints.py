"""Where a claim starts its scan of a queue while the index of pending jobs is full of dead entries.

The entry of a claimed job stays in the index until the next vacuum, or for as long as any transaction holds
an old snapshot, and every claim would step over all of them again. A claim reports how many index blocks it
read. When those are many more than it needed, the next claims of the queue start after the last claimed job.

A hint would hide jobs that return to the queue or precede the others. It is therefore dropped when this
process learns of such a job, by itself or by a notification, when a claim finds fewer jobs than it wanted,
and after a second in any case. That is the longest that a job waits which another process puts first. While
few jobs were claimed since the last vacuum, there are no hints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dayjob.engines.postgres.rows import KEY, PRIORITY, QUEUE
from dayjob.runtime.clock import SYSTEM

Position = tuple[int, bytes]
"""Priority and id."""

START: Position = (-1, bytes(16))
LAST_ID = b"\xff" * 16

WASTED_BLOCKS = 100
"""Blocks read in vain by one claim, above which a hint pays; one holds about a hundred entries."""

_JOBS_PER_BLOCK = 20
"""The fewest jobs in a block of the index, if the name of their queue is long."""

SHORTEST = 1.0
"""Seconds that a hint lasts; longer if the scan without one took long."""

SHARE = 20
"""Scans without a hint may take this part of the time."""


class ScanHints:
    """The hints of one engine, by queue."""

    def __init__(self) -> None:
        self._hints: dict[str, tuple[Position, float]] = {}

    def positions(self, queues: Sequence[str]) -> list[Position]:
        """Return the position after which to scan each queue."""
        if not self._hints:
            return [START] * len(queues)
        now = SYSTEM.elapsed()
        for queue in queues:
            if queue in self._hints and self._hints[queue][1] <= now:
                del self._hints[queue]
        return [self._hints[queue][0] if queue in self._hints else START for queue in queues]

    def update(self, rows: Sequence[Any], seconds: float) -> None:
        """Set or move hints by the rows of a claim, which took that long."""
        if not rows:
            return
        wasteful = rows[-1][-1] - len(rows) // _JOBS_PER_BLOCK > WASTED_BLOCKS
        if not wasteful and not self._hints:
            return
        until = SYSTEM.elapsed() + max(SHORTEST, SHARE * seconds)
        last = {row[QUEUE]: row for row in rows}
        for queue, row in last.items():
            position = (row[PRIORITY], row[KEY])
            if queue in self._hints:
                self._hints[queue] = (position, self._hints[queue][1])
            elif wasteful:
                self._hints[queue] = (position, until)

    def job_pending(self, queue: str, position: Position) -> None:
        """Drop the hint of the queue if a job became pending before it."""
        hint = self._hints.get(queue)
        if hint is not None and position < hint[0]:
            del self._hints[queue]

    def drop(self, queues: Sequence[str]) -> bool:
        """Drop the hints of the queues. Return whether there was one."""
        dropped = [queue for queue in queues if self._hints.pop(queue, None) is not None]
        return bool(dropped)

    def drop_all(self) -> None:
        self._hints.clear()
