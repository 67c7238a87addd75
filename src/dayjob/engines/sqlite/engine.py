"""The SQLite engine's face to the broker: what changes goes to the writer, what looks to the reader."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dayjob.engines.base import (
    Capabilities,
    ClaimRequest,
    Diagnostic,
    Document,
    DocumentWrite,
    Insertion,
    JobQuery,
    Progress,
    Renewal,
    Renewed,
    Reschedule,
    RetentionByQueue,
    SettleOp,
    Token,
)
from dayjob.engines.caller_connection import started
from dayjob.engines.sqlite.database import Place
from dayjob.engines.sqlite.diagnosis import diagnose
from dayjob.engines.sqlite.forks import no_fork
from dayjob.engines.sqlite.store import Store
from dayjob.engines.sqlite.threads import Reader, Writer
from dayjob.errors import Closed, ConfigError, InvalidState
from dayjob.model.job import CancelOutcome, Enqueued, Job, JobState, QueueStats
from dayjob.runtime.clock import Clock
from dayjob.runtime.process import Process, this_process
from dayjob.runtime.signals import Signals

Answer = TypeVar("Answer")


class SqliteEngine:
    """Jobs in a SQLite file; see ``engines.base.Engine`` for the verbs."""

    capabilities = Capabilities(
        persistent=True, multi_process=True, transactional_enqueue=True, knows_orphans=True
    )

    def __init__(self, place: Place, clock: Clock) -> None:
        self.signals = Signals()
        self._place = place
        self.timeout = 0.0
        self._clock = clock
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._process: Process | None = None
        self._owner = 0

    def _now(self, now: int | None) -> int:
        """The time to act at; to be asked within the work, after it has waited for its turn."""
        return self._clock.now() if now is None else now

    async def open(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._prepare)
        self._writer = Writer(self._place, self.signals, "dayjob-sqlite-writer")
        self._reader = Reader(self._place, self.signals, "dayjob-sqlite-reader")
        process = self._process = this_process()
        try:
            self._owner = await self._write(lambda store: store.add_owner(process))
        except BaseException:
            await self._end_threads()
            raise

    def _prepare(self) -> None:
        with no_fork():
            self._place.prepare().close()

    async def close(self) -> None:
        """Without the loop that opened it, the owner's row is left to the reaper."""
        if self._writer is not None:
            owner = self._owner
            try:
                if not self._writer.abandoned:
                    await self._write(lambda store: store.remove_owner(owner))
            finally:
                await self._end_threads()

    async def _end_threads(self) -> None:
        threads = (self._reader, self._writer)
        self._reader = self._writer = None
        for thread in threads:
            if thread is not None:
                await thread.close()

    async def _write(self, work: Callable[[Store], Answer]) -> Answer:
        if self._writer is None:
            raise Closed(f"{self._place.url}: the engine is not open")
        return await self._writer.do(work)

    async def _read(self, work: Callable[[Store], Answer]) -> Answer:
        if self._reader is None:
            raise Closed(f"{self._place.url}: the engine is not open")
        return await self._reader.do(work)

    async def insert(
        self, jobs: Sequence[Insertion], now: int | None = None, token: Token | None = None
    ) -> list[Enqueued]:
        return await self._write(lambda store: store.insert(jobs, self._now(now)))

    async def insert_tx(
        self, connection: Any, jobs: Sequence[Insertion], now: int | None = None
    ) -> list[Enqueued]:
        given, connection = connection, await started(connection)
        if not isinstance(connection, sqlite3.Connection):
            raise TypeError(
                f"connection={given!r} can't be used: pass a sqlite3.Connection to this queue's file, or a "
                "Session or Connection of SQLAlchemy on one"
            )
        self._check_same_file(connection)
        if not connection.in_transaction and connection.isolation_level is None:
            raise InvalidState(f"{connection!r} has no open transaction: execute BEGIN on it first")
        try:
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            return Store(connection).insert(jobs, self._now(now))
        except sqlite3.Error as error:
            raise self._place.outage(error) from error

    def _check_same_file(self, connection: sqlite3.Connection) -> None:
        cursor = connection.cursor()
        cursor.row_factory = None
        file = next((row[2] for row in cursor.execute("PRAGMA database_list") if row[1] == "main"), "")
        if not file or not Path(file).samefile(self._place.path):
            raise ConfigError(
                f"connection={connection!r} is open on {file or 'a private database'!r}: "
                f"pass a connection to the queue's own file, {str(self._place.path)!r}"
            )

    async def claim(
        self, requests: Sequence[ClaimRequest], now: int | None = None, token: Token | None = None
    ) -> list[list[Job]]:
        owner = self._owner

        def work(store: Store) -> list[list[Job]]:
            at = self._now(now)
            return [store.claim(request, owner, at) for request in requests]

        return await self._write(work)

    async def insert_and_claim(
        self,
        jobs: Sequence[Insertion],
        requests: Sequence[ClaimRequest],
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        owner = self._owner

        def work(store: Store) -> tuple[list[Enqueued], list[list[Job]]]:
            at = self._now(now)
            return store.insert(jobs, at), [store.claim(request, owner, at) for request in requests]

        return await self._write(work)

    async def settle(
        self, ops: Sequence[SettleOp], now: int | None = None, token: Token | None = None
    ) -> list[JobState | None]:
        return await self._write(lambda store: store.settle(ops, self._now(now)))

    async def renew(
        self, renewals: Sequence[Renewal], now: int | None = None, token: Token | None = None
    ) -> list[Renewed]:
        return await self._write(lambda store: [store.renew(renewal, self._now(now)) for renewal in renewals])

    async def record_progress(self, reports: Sequence[Progress], token: Token | None = None) -> None:
        await self._write(lambda store: store.record_progress(reports))

    async def cancel(
        self,
        keys: Sequence[bytes],
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> list[CancelOutcome]:
        return await self._write(lambda store: store.cancel(keys, retention, self._now(now)))

    async def cancel_requests(self) -> list[tuple[bytes, int]]:
        return await self._read(Store.cancel_requests)

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        return await self._read(lambda store: store.get(keys))

    async def find(self, query: JobQuery) -> list[Job]:
        return await self._read(lambda store: store.find(query))

    async def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        return await self._read(lambda store: store.find_dead(queue, before, limit))

    async def requeue(
        self, keys: Sequence[bytes], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
        return await self._write(lambda store: store.requeue(keys, self._now(now)))

    async def requeue_dead(
        self, queue: str, limit: int, now: int | None = None, token: Token | None = None
    ) -> int:
        return await self._write(lambda store: store.requeue_dead(queue, limit, self._now(now)))

    async def purge_dead(self, queue: str | None, limit: int, token: Token | None = None) -> int:
        return await self._write(lambda store: store.purge_dead(queue, limit))

    async def purge(self, keys: Sequence[bytes], token: Token | None = None) -> int:
        return await self._write(lambda store: store.purge(keys))

    async def reschedule(
        self, changes: Sequence[Reschedule], now: int | None = None, token: Token | None = None
    ) -> list[bool]:
        return await self._write(lambda store: store.reschedule(changes, self._now(now)))

    async def stats(self, queues: Sequence[str] | None = None) -> dict[str, QueueStats]:
        found = await self._read(Store.stats)
        return found if queues is None else {name: found[name] for name in sorted({*queues} & {*found})}

    async def position(self, key: bytes, limit: int) -> int:
        return await self._read(lambda store: store.position(key, limit))

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._read(lambda store: store.kv_get(keys))

    async def kv_write(
        self, writes: Sequence[tuple[bytes, bytes | None]], token: Token | None = None
    ) -> None:
        await self._write(lambda store: store.kv_write(writes))

    async def pause(self, queue: str, paused: bool, token: Token | None = None) -> None:
        await self._write(lambda store: store.pause(queue, paused))

    async def paused(self) -> set[str]:
        return await self._read(Store.paused)

    async def promote(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        if await self.next_due(now) != 0:
            return 0, 0
        return await self._write(lambda store: store.promote(limit, retention, self._now(now)))

    async def next_due(self, now: int | None = None) -> int | None:
        return await self._read(lambda store: store.next_due(self._now(now)))

    async def reap(
        self, limit: int, retention: RetentionByQueue, now: int | None = None, token: Token | None = None
    ) -> int:
        here = self._process
        assert here is not None
        if not await self._read(lambda store: store.must_reap(here, self._now(now))):
            return 0
        return await self._write(lambda store: store.reap(here, limit, retention, self._now(now)))

    async def reclaim(
        self,
        workers: Sequence[str],
        limit: int,
        retention: RetentionByQueue,
        now: int | None = None,
        token: Token | None = None,
    ) -> int:
        if not await self._read(lambda store: store.must_reclaim(workers)):
            return 0
        return await self._write(lambda store: store.reclaim(workers, limit, retention, self._now(now)))

    async def sweep(self, limit: int, now: int | None = None, token: Token | None = None) -> int:
        if not await self._read(lambda store: store.must_sweep(self._now(now))):
            return 0
        return await self._write(lambda store: store.sweep(limit, self._now(now)))

    async def sweep_finished(
        self,
        state: JobState,
        age: int,
        after: bytes | None,
        limit: int,
        now: int | None = None,
        token: Token | None = None,
    ) -> tuple[int, bytes | None]:
        return await self._write(lambda store: store.sweep_finished(state, age, after, limit, self._now(now)))

    async def documents(self, kind: str, now: int | None = None) -> tuple[int, list[Document]]:
        """The time is asked first, so that whoever is held up after it takes no note for older than it is."""
        return await self._read(lambda store: (self._now(now), store.documents(kind)))

    async def compare_and_set(
        self,
        writes: Sequence[DocumentWrite],
        jobs: Sequence[Insertion] = (),
        announce: bool = False,
        now: int | None = None,
        token: Token | None = None,
    ) -> bool:
        return await self._write(lambda store: store.compare_and_set(writes, jobs, announce, self._now(now)))

    async def diagnose(self) -> list[Diagnostic]:
        return await self._read(lambda store: diagnose(store.connection, self._place))
