"""A look at a database that another process owns: through SlateDB's reader, which never fences.

Each look opens a reader of its own and sees all that was durable at one moment, the latest. Verbs that
change something are refused; the duties find nothing to do. A listing rebuilds what waits and runs by a
scan, so it costs time in proportion to the backlog; finished jobs, counters, kv values and notes are read
directly.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from heapq import nlargest
from typing import Any, NoReturn, TypeVar

from dayjob.engines.base import Diagnostic, Document, JobQuery, RetentionByQueue, Token
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb import listing as listings
from dayjob.engines.slatedb.database import Source
from dayjob.engines.slatedb.diagnosis import diagnose
from dayjob.engines.slatedb.documents import stored_notes
from dayjob.engines.slatedb.engine import CAPABILITIES
from dayjob.engines.slatedb.ledger import Ledger
from dayjob.engines.slatedb.loading import check_layout, load, load_queues
from dayjob.engines.slatedb.place import Place
from dayjob.engines.slatedb.store import Store
from dayjob.errors import Closed, ConfigError, EngineUnavailable, InvalidState
from dayjob.model.job import Job, JobState, QueueStats
from dayjob.runtime.clock import Clock
from dayjob.runtime.signals import Signals

Answer = TypeVar("Answer")

_TRIES = 20


class SlateReader:
    """Jobs in an object store, to look at; see ``engines.base.Engine`` for the verbs."""

    capabilities = CAPABILITIES

    def __init__(self, place: Place, clock: Clock) -> None:
        self.signals = Signals()
        self._place = place
        self.timeout = place.patience
        self._clock = clock
        self._open = False

    async def open(self) -> None:
        self._place.check()
        self._open = True
        try:
            async with self._looking() as source:
                await self._place.opening(check_layout(source))
        except BaseException:
            self._open = False
            raise

    async def close(self) -> None:
        self._open = False

    @asynccontextmanager
    async def _looking(self) -> AsyncIterator[Source]:
        if not self._open:
            raise Closed(f"{self._place.url}: the engine is not open")
        reader = await self._place.open_reader()
        if reader is None:
            raise ConfigError(
                f"{self._place.url}: there is no database yet: let a worker or producer make it"
            )
        source = Source(self._place, reader)
        try:
            yield source
        finally:
            await source.close()

    async def _look(self, look: Callable[[Store], Awaitable[Answer]], *, whole: bool = True) -> Answer:
        """What there is to see at one moment; of a store that knows finished jobs only, if not ``whole``.

        A reader may catch up with the writer between two of our reads. Whatever moves a job rewrites the row
        of its queue, so rows that are as they were tell that it did not; else the look is taken again.
        """
        async with self._looking() as source:
            for _ in range(_TRIES):
                before = await source.versions(keys.QUEUE)
                ledger = Ledger(source, _nothing)
                answer = await look(await (load(ledger, session=0) if whole else _finished_only(ledger)))
                if await source.versions(keys.QUEUE) == before:
                    return answer
        raise EngineUnavailable(
            f"{self._place.url}: it changes too fast for a look at the whole: try again, or ask for its stats"
        )

    async def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidState(
            f"{self._place.url}: it was opened with readonly=1, so nothing can be changed: "
            "open it without, in the one process that writes"
        )

    insert = insert_tx = claim = insert_and_claim = settle = renew = record_progress = _refuse
    cancel = requeue = requeue_dead = purge_dead = purge = reschedule = kv_write = pause = _refuse
    sweep_finished = compare_and_set = _refuse

    async def cancel_requests(self) -> list[tuple[bytes, int]]:
        return []

    async def get(self, wanted: Sequence[bytes]) -> list[Job | None]:
        return await self._look(lambda store: listings.get(store, wanted))

    async def find(self, query: JobQuery) -> list[Job]:
        whole = query.state not in keys.FINISHED_STATES
        return await self._look(lambda store: listings.find(store, query), whole=whole)

    async def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        async def look(store: Store) -> list[Job]:
            if await check_layout(store.ledger.source) == 1:
                return await _sorted_dead(store, queue, before, limit)
            return await listings.find_dead(store, queue, before, limit)

        return await self._look(look, whole=False)

    async def stats(self, queues: Sequence[str] | None = None) -> dict[str, QueueStats]:
        found = {name: QueueStats(*row.stats) for name, row in (await self._queues()).items()}
        return {name: found[name] for name in sorted(found if queues is None else {*queues} & {*found})}

    async def paused(self) -> set[str]:
        return {name for name, row in (await self._queues()).items() if row.paused}

    async def _queues(self) -> dict[str, values.Queue]:
        found: dict[str, values.Queue] = {}
        async with self._looking() as source:
            async for rows in source.scan(keys.QUEUE):
                found |= {keys.queue_name(stored): values.queue(value) for stored, value in rows}
        return found

    async def kv_get(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        async with self._looking() as source:
            return await source.get_all([keys.kv(key) for key in wanted])

    async def position(self, key: bytes, limit: int) -> int:
        async def count(store: Store) -> int:
            return store.live.position(key, limit)

        return await self._look(count)

    async def documents(self, kind: str, now: int | None = None) -> tuple[int, list[Document]]:
        async with self._looking() as source:
            found = [note async for _, note in stored_notes(source, keys.documents(kind))]
        return self._clock.now() if now is None else now, found

    # The duties are those of the process that writes.

    async def diagnose(self) -> list[Diagnostic]:
        return diagnose(self._place)

    async def promote(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        return 0, 0

    async def next_due(self, now: int | None = None) -> int | None:
        return None

    async def reap(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> int:
        return 0

    async def reclaim(
        self,
        workers: Sequence[str],
        limit: int,
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> int:
        return 0

    async def sweep(self, limit: int, now: int | None = None, token: Token | None = None) -> int:
        return 0


async def _finished_only(ledger: Ledger) -> Store:
    await load_queues(ledger)
    return Store(ledger, session=0)


async def _sorted_dead(
    store: Store, queue: str | None, before: tuple[int, bytes] | None, limit: int
) -> list[Job]:
    """Without the index, which the first process that writes will make: all of them are read."""
    dead = await listings.find(store, JobQuery(sys.maxsize, queue=queue, state=JobState.DEAD))
    places = {job.key: (job.finished_us or 0, job.key) for job in dead}
    seen = (job for job in dead if before is None or places[job.key] < before)
    return nlargest(limit, seen, key=lambda job: places[job.key])


async def _nothing() -> None:
    """What loading would put right is for the process that writes."""
