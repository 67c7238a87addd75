"""Where to look for the next job of a queue when its index is full of dead entries.

What has been claimed stays in the index until the next vacuum, or for as long as somebody holds an old
snapshot, and every claim would step over all of it again. A claim tells how many blocks of the index it
read; when those are many more than it needed, the next claims of the queue start behind the last job
taken. Jobs that come back or that go before the others would be overlooked, so a cursor is dropped as
soon as this process knows of one, by itself or from a notification, when it finds less than was asked
for, and after a second in any case: so long, at worst, waits a job that another process puts ahead of the
others. While few jobs have been claimed since the last vacuum there are no cursors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dayjob.runtime.clock import SYSTEM

Position = tuple[int, bytes]

START: Position = (-1, bytes(16))
LAST_ID = b"\xff" * 16

WASTEFUL = 100
"""Blocks read in vain by one claim, above which a cursor pays; one holds a hundred entries or so."""

_IN_A_BLOCK = 20
"""Jobs that a block of the index holds at the least, if their queue's name is long."""

SHORTEST = 1.0
"""Seconds that a cursor holds; longer, if the look without one took long."""

SHARE = 20
"""A look without a cursor may take this part of the time."""


class Cursors:
    """The cursors of one engine, by queue."""

    def __init__(self) -> None:
        self._cursors: dict[str, tuple[Position, float]] = {}

    def of(self, queues: Sequence[str]) -> list[Position]:
        """Behind which position to look in each of the queues."""
        if not self._cursors:
            return [START] * len(queues)
        now = SYSTEM.elapsed()
        for queue in queues:
            if queue in self._cursors and self._cursors[queue][1] <= now:
                del self._cursors[queue]
        return [self._cursors[queue][0] if queue in self._cursors else START for queue in queues]

    def note(self, rows: Sequence[Any], seconds: float) -> None:
        """Learn from the rows that a claim gave, which took that long."""
        if not rows:
            return
        wasteful = rows[-1][-1] - len(rows) // _IN_A_BLOCK > WASTEFUL
        if not wasteful and not self._cursors:
            return
        until = SYSTEM.elapsed() + max(SHORTEST, SHARE * seconds)
        last = {row[1]: row for row in rows}
        for queue, row in last.items():
            position = (row[6], row[0])
            if queue in self._cursors:
                self._cursors[queue] = (position, self._cursors[queue][1])
            elif wasteful:
                self._cursors[queue] = (position, until)

    def arrived(self, queue: str, position: Position) -> None:
        """A job has become pending there."""
        cursor = self._cursors.get(queue)
        if cursor is not None and position < cursor[0]:
            del self._cursors[queue]

    def drop(self, queues: Sequence[str]) -> bool:
        """Look from the start again; whether there was a cursor for any of the queues."""
        dropped = [queue for queue in queues if self._cursors.pop(queue, None) is not None]
        return bool(dropped)

    def drop_all(self) -> None:
        self._cursors.clear()
