"""A look at a database that another process owns: through SlateDB's reader, which never fences.

It sees what is durable, a moment later. Verbs that change something are refused; the duties find nothing to
do. Each listing rebuilds what waits and runs by a scan, so it costs time in proportion to the backlog;
counters, kv values and single jobs' queues are read directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from dayjob.engines.base import Keeps, Listing
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb import listing as listings
from dayjob.engines.slatedb.database import Source
from dayjob.engines.slatedb.engine import CAPABILITIES
from dayjob.engines.slatedb.ledger import Ledger
from dayjob.engines.slatedb.loading import check_layout, load
from dayjob.engines.slatedb.place import Place
from dayjob.engines.slatedb.store import Store
from dayjob.errors import Closed, ConfigError, InvalidState
from dayjob.job import Job, QueueStats
from dayjob.signals import Signals


class SlateReader:
    """Jobs in an object store, to look at; see ``engines.base.Engine`` for the verbs."""

    capabilities = CAPABILITIES

    def __init__(self, place: Place) -> None:
        self.signals = Signals()
        self._place = place
        self._source: Source | None = None

    async def open(self) -> None:
        self._place.check()
        reader = await self._place.open_reader()
        if reader is None:
            raise ConfigError(
                f"{self._place.url}: there is no database yet: let a worker or producer make it"
            )
        source = Source(self._place, reader)
        try:
            await self._place.opening(check_layout(source))
        except BaseException:
            await source.close()
            raise
        self._source = source

    async def close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            await source.close()

    @property
    def _open(self) -> Source:
        if self._source is None:
            raise Closed(f"{self._place.url}: the engine is not open")
        return self._source

    async def _look(self) -> Store:
        return await load(Ledger(self._open, self._refuse), session=0)

    async def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidState(
            f"{self._place.url}: it was opened with readonly=1, so nothing can be changed: "
            "open it without, in the one process that writes"
        )

    insert = insert_within = claim = insert_and_claim = settle = renew = report = _refuse
    cancel = requeue = requeue_dead = purge_dead = reschedule = kv_write = pause = sweep_finished = _refuse

    async def cancel_requests(self) -> list[tuple[bytes, int]]:
        return []

    async def get(self, wanted: Sequence[bytes]) -> list[Job | None]:
        return await listings.get(await self._look(), wanted)

    async def find(self, listing: Listing) -> list[Job]:
        return await listings.find(await self._look(), listing)

    async def stats(self, queues: Sequence[str] | None = None) -> dict[str, QueueStats]:
        found = {name: QueueStats(*row.stats) for name, row in (await self._queues()).items()}
        return {name: found[name] for name in sorted(found if queues is None else {*queues} & {*found})}

    async def paused(self) -> set[str]:
        return {name for name, row in (await self._queues()).items() if row.paused}

    async def _queues(self) -> dict[str, values.Queue]:
        found: dict[str, values.Queue] = {}
        async for rows in self._open.scan(keys.QUEUE):
            for stored, value in rows:
                found[keys.queue_name(stored)] = values.queue(value)
        return found

    async def kv_get(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        return await self._open.get_all([keys.kv(key) for key in wanted])

    # The duties are those of the process that writes.

    async def promote(self, limit: int, keeps: Keeps, now: int | None = None) -> tuple[int, int]:
        return 0, 0

    async def next_due(self, now: int | None = None) -> int | None:
        return None

    async def reap(self, limit: int, keeps: Keeps, now: int | None = None) -> int:
        return 0

    async def sweep(self, limit: int, now: int | None = None) -> int:
        return 0
