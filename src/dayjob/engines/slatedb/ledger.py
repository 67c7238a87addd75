"""What a commit consists of: the rows to write, the counters that changed, and who may want to know.

Rows are staged until the commit takes them; whoever reads looks at what is staged first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from dayjob.engines.record import Record
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.database import Source
from dayjob.model.job import JobState, QueueStats
from dayjob.runtime.signals import Topic


class Ledger:
    """Reads through what is staged; ``publish`` hands the staged rows to the database, for a scan to see."""

    def __init__(self, source: Source, publish: Callable[[], Awaitable[None]]) -> None:
        self.source = source
        self.staged: dict[bytes, bytes | None] = {}
        self.stats: dict[str, QueueStats] = {}
        self.paused: set[str] = set()
        self.topics: set[Topic] = set()
        self._publish = publish
        self._touched: set[str] = set()

    def put(self, key: bytes, value: bytes) -> None:
        self.staged[key] = value

    def delete(self, key: bytes) -> None:
        self.staged[key] = None

    async def get(self, key: bytes) -> bytes | None:
        return self.staged[key] if key in self.staged else await self.source.get(key)

    async def get_all(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        absent = [key for key in wanted if key not in self.staged]
        found = dict(zip(absent, await self.source.get_all(absent), strict=True))
        return [self.staged[key] if key in self.staged else found[key] for key in wanted]

    async def scannable(self) -> Source:
        """The database, once it holds what is staged. Only before a verb has changed anything."""
        if self.unsaved:
            await self._publish()
        return self.source

    @property
    def unsaved(self) -> bool:
        return bool(self.staged or self._touched)

    def take(self) -> dict[bytes, bytes | None]:
        """All that is staged, with the counters; afterwards nothing is."""
        staged, self.staged = self.staged, {}
        for queue in self._touched:
            staged[keys.queue(queue)] = values.queue_value(self.stats[queue], queue in self.paused)
        self._touched.clear()
        return staged

    def take_topics(self) -> set[Topic]:
        topics, self.topics = self.topics, set()
        return topics

    # Queues and their counters.

    def touch(self, queue: str) -> QueueStats:
        """The queue's counters, to be changed and stored; the queue is made known if it is new."""
        self._touched.add(queue)
        found = self.stats.get(queue)
        if found is None:
            found = self.stats[queue] = QueueStats()
        return found

    def count(self, queue: str, state: JobState, jobs: int) -> None:
        """``done`` counts successes ever, so it never goes down."""
        if jobs > 0 or state is not JobState.DONE:
            stats, name = self.touch(queue), state._value_
            setattr(stats, name, getattr(stats, name) + jobs)

    def move(self, before: JobState, record: Record) -> None:
        self.count(record.queue, before, -1)
        if not record.removed or record.state is JobState.DONE:
            self.count(record.queue, record.state, 1)

    def pause(self, queue: str, paused: bool) -> None:
        self.touch(queue)
        (self.paused.add if paused else self.paused.discard)(queue)
