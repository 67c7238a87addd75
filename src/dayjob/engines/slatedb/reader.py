"""A read-only engine for a database that another process owns. SlateDB's reader never fences the owner.

Each call opens its own reader and reads the latest durable state. Verbs that write are refused, and the
duties find no work. A listing loads the active jobs by a scan, so its time grows with the backlog. Finished
jobs, counters, kv values and documents are read directly. A ``wait`` polls.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from heapq import nlargest

from dayjob.engines.base import Death, Diagnostic, Document, JobQuery, Reply, Token
from dayjob.engines.local import Claims, LocalEngine, TimedVerb, Verb
from dayjob.engines.slatedb import keys
from dayjob.engines.slatedb.database import Source
from dayjob.engines.slatedb.engine import CAPABILITIES, diagnose
from dayjob.engines.slatedb.opening import check_layout, load, load_queues, stored_documents
from dayjob.engines.slatedb.settings import SlateSettings
from dayjob.engines.slatedb.store import SlateStore
from dayjob.engines.slatedb.write_batch import WriteBatch
from dayjob.errors import Closed, ConfigError, DayjobError, EngineUnavailable, InvalidState
from dayjob.model.job import Job, JobState, QueueStats
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.runtime.signals import Topic

_TRIES = 20

_POLL_INTERVAL = 1.0
"""Seconds between polls for changes while a caller waits for the end of a job."""


class SlateReader(LocalEngine[SlateStore]):
    """Jobs in an object store, read-only."""

    capabilities = CAPABILITIES

    def __init__(self, settings: SlateSettings, clock: Clock) -> None:
        super().__init__(clock, settings.timeout)
        self.settings = settings
        self._open = False
        self._polling: asyncio.Task[None] | None = None
        self.signals.on_listen = self._on_listen

    async def open(self) -> None:
        self.settings.check()
        self._open = True
        try:
            async with self._source() as source:
                await check_layout(source)
        except BaseException:
            self._open = False
            raise

    async def close(self) -> None:
        self._open = False
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait({self._polling})
            self._polling = None

    def _on_listen(self, topics: Sequence[Topic]) -> None:
        if self._polling is None and any(topic[0] == "job" for topic in topics):
            self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        """Publish the awaited jobs after each change, because the owner can't notify this process."""
        before: dict[bytes, int] = {}
        while self.signals.has_listeners("job"):
            with suppress(DayjobError):  # The next poll may succeed.
                async with self._source() as source:
                    versions = await source.versions(keys.QUEUE)
                if versions != before:  # Every move of a job rewrites the row of its queue.
                    before = versions
                    self.signals.publish([topic for topic in self.signals.topics if topic[0] == "job"])
            await SYSTEM.wait(asyncio.Event(), _POLL_INTERVAL)
        self._polling = None

    @asynccontextmanager
    async def _source(self) -> AsyncIterator[Source]:
        if not self._open:
            raise Closed(f"{self.settings.url}: the engine is not open")
        reader = await self.settings.open_reader()
        if reader is None:
            raise ConfigError(
                f"{self.settings.url}: there is no database yet: let a worker or producer make it"
            )
        source = Source(self.settings, reader)
        try:
            yield source
        finally:
            await source.close()

    async def _read(self, verb: Verb[SlateStore, Reply], *, whole: bool = True) -> Reply:
        """Read one state of the database, with finished jobs only if not ``whole``.

        A reader may catch up with the writer between two reads. Every move of a job rewrites the row of its
        queue. If those rows changed during the reads, all of them are repeated.
        """
        async with self._source() as source:
            for _ in range(_TRIES):
                before = await source.versions(keys.QUEUE)
                batch = WriteBatch(source, _discard)
                reply = await verb(await (load(batch, session=0) if whole else _load_finished(batch)))
                if await source.versions(keys.QUEUE) == before:
                    return reply
        raise EngineUnavailable(
            f"{self.settings.url}: it changes too fast to be read as a whole: try again, or read its stats"
        )

    async def _write(
        self, verb: Verb[SlateStore, Reply], token: Token | None = None, claims: Claims[Reply] | None = None
    ) -> Reply:
        raise InvalidState(
            f"{self.settings.url}: it was opened with readonly=1, so nothing can be changed: "
            "open it without, in the one process that writes"
        )

    async def cancel_requests(self) -> list[tuple[bytes, bytes]]:
        return []

    async def find(self, query: JobQuery) -> list[Job]:
        whole = query.state not in keys.FINISHED_STATES
        return await self._read(lambda store: store.find(query), whole=whole)

    async def find_dead(self, queue: str | None, before: Death | None, limit: int) -> list[Job]:
        async def read(store: SlateStore) -> list[Job]:
            if await check_layout(store.write_batch.source) == 1:
                return await _sorted_dead(store, queue, before, limit)
            return await store.find_dead(queue, before, limit)

        return await self._read(read, whole=False)

    async def stats(self) -> dict[str, QueueStats]:
        return dict(sorted((await self._queues()).stats.items()))

    async def paused(self) -> set[str]:
        return (await self._queues()).paused

    async def _queues(self) -> WriteBatch:
        async with self._source() as source:
            batch = WriteBatch(source, _discard)
            await load_queues(batch)
        return batch

    async def kv_get(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        async with self._source() as source:
            return await source.get_all([keys.kv(key) for key in wanted])

    async def documents(self, kind: str) -> tuple[int, list[Document]]:
        async with self._source() as source:
            found = [one async for _, one in stored_documents(source, keys.documents_prefix(kind))]
        return self._clock.now(), found

    async def diagnose(self) -> list[Diagnostic]:
        return diagnose(self.settings)

    async def _duty(self, verb: TimedVerb[SlateStore, Reply], token: Token | None, idle: Reply) -> Reply:
        """Duties are for the process that writes."""
        return idle

    async def next_due(self) -> int | None:
        return None


async def _load_finished(batch: WriteBatch) -> SlateStore:
    await load_queues(batch)
    return SlateStore(batch, session=0)


async def _sorted_dead(store: SlateStore, queue: str | None, before: Death | None, limit: int) -> list[Job]:
    """Read all dead jobs. The first process that writes will create the index."""
    dead = await store.find(JobQuery(sys.maxsize, queue=queue, state=JobState.DEAD))
    order = {job.key: (job.finished_us or 0, job.key) for job in dead}
    earlier = (job for job in dead if before is None or order[job.key] < before)
    return nlargest(limit, earlier, key=lambda job: order[job.key])


async def _discard() -> None:
    """Loading may stage repairs. They are left to the process that writes."""
