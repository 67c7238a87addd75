"""The write batch: the rows and counters that the next commit writes.

Rows are staged until the commit takes them. Reads return staged rows first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.database import Source
from dayjob.model.job import QueueStats


class WriteBatch:
    """Staged rows over a database. ``publish`` writes them to the database, so that a scan sees them."""

    def __init__(self, source: Source, publish: Callable[[], Awaitable[None]]) -> None:
        self.source = source
        self.staged: dict[bytes, bytes | None] = {}
        self.stats: dict[str, QueueStats] = {}
        self.paused: set[str] = set()
        self._publish = publish
        self._touched: set[str] = set()

    def put(self, key: bytes, value: bytes) -> None:
        self.staged[key] = value

    def delete(self, key: bytes) -> None:
        self.staged[key] = None

    def confirm(self) -> None:
        """Stage a row without a change, so that the reply waits for a commit.

        The reply promises a stored job. The commit shows that no other process has taken over since.
        """
        self.put(keys.LAYOUT_KEY, values.layout_value(keys.VERSION))

    async def get_all(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        absent = [key for key in wanted if key not in self.staged]
        found = dict(zip(absent, await self.source.get_all(absent), strict=True))
        return [self.staged[key] if key in self.staged else found[key] for key in wanted]

    async def scannable(self) -> Source:
        """Return the database after it has the staged rows. Only before a verb has changed anything."""
        if self.unsaved:
            await self._publish()
        return self.source

    @property
    def unsaved(self) -> bool:
        return bool(self.staged or self._touched)

    def take(self) -> dict[bytes, bytes | None]:
        """Return the staged rows with the changed counters, and start a new batch."""
        staged, self.staged = self.staged, {}
        for queue in self._touched:
            staged[keys.queue(queue)] = values.queue_value(self.stats[queue], queue in self.paused)
        self._touched.clear()
        return staged

    def touch(self, queue: str) -> QueueStats:
        """Return the counters of the queue, to be changed and stored. A new queue is added."""
        self._touched.add(queue)
        found = self.stats.get(queue)
        if found is None:
            found = self.stats[queue] = QueueStats()
        return found
