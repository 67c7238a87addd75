"""The SQLite engine: verbs that write run on the writer thread, reads on the reader thread."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dayjob.engines import verbs
from dayjob.engines.base import Capabilities, ClaimRequest, Diagnostic, Insertion, Reply, Token, claim_key
from dayjob.engines.caller_connection import is_aiosqlite, started
from dayjob.engines.local import Claims, LocalEngine, Verb
from dayjob.engines.sqlite.database import FileId, Locked, SqliteSettings
from dayjob.engines.sqlite.diagnosis import diagnose
from dayjob.engines.sqlite.forks import no_fork
from dayjob.engines.sqlite.store import Owner, SqliteStore
from dayjob.engines.sqlite.threads import Reader, Writer
from dayjob.engines.store import run_now
from dayjob.errors import Closed, ConfigError, EngineFenced, InvalidState
from dayjob.model.job import EndedJob, Enqueued, Job
from dayjob.runtime.clock import Clock
from dayjob.runtime.process import this_process
from dayjob.runtime.threads import CallThreads


class SqliteEngine(LocalEngine[SqliteStore]):
    """Jobs in a SQLite file."""

    capabilities = Capabilities(
        persistent=True,
        multi_process=True,
        transactional_enqueue=True,
        knows_orphans=True,
    )

    def __init__(self, settings: SqliteSettings, clock: Clock) -> None:
        super().__init__(clock)
        self.settings = settings
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._owner = Owner(this_process())
        self._prepared = False

    async def open(self) -> None:
        """Open the file. It needs no write lock: the caller itself may hold it, in a transaction."""
        file = await asyncio.get_running_loop().run_in_executor(CallThreads(), self._prepare)
        self._owner = Owner(this_process())
        self._writer = Writer(self.settings, file, self.signals, "dayjob-sqlite-writer", self._owner)
        self._reader = Reader(self.settings, file, self.signals, "dayjob-sqlite-reader", self._owner)

    def _prepare(self) -> FileId | None:
        """Create or migrate the layout. In a locked file, the first verb does so, once the lock is free."""
        self._prepared = True
        with no_fork():
            try:
                replace(self.settings, timeout=0.0).prepare().close()
            except Locked:
                self._prepared = False
            return self.settings.file_id()

    async def close(self) -> None:
        """Without the loop that opened the engine, the owner's row is left to the reap duty."""

        async def remove_owner(store: SqliteStore) -> None:
            store.remove_owner(store.owner.id)

        if self._writer is not None:
            try:
                if self._owner.claimed and not self._writer.abandoned:
                    with suppress(EngineFenced):
                        await self._write(remove_owner)
            finally:
                threads = (self._reader, self._writer)
                self._reader = self._writer = None
                for thread in threads:
                    if thread is not None:
                        await thread.close()

    async def _write(
        self,
        verb: Verb[SqliteStore, Reply],
        token: Token | None = None,
        claims: Claims[Reply] | None = None,
        *,
        sync_later: bool = False,
    ) -> Reply:
        if self._writer is None:
            raise Closed(f"{self.settings.url}: the engine is not open")
        return await self._writer.run(verb, sync_later)

    async def _read(self, verb: Verb[SqliteStore, Reply]) -> Reply:
        if self._reader is None:
            raise Closed(f"{self.settings.url}: the engine is not open")
        return await self._reader.run(verb)

    async def insert_tx(self, connection: Any, jobs: Sequence[Insertion]) -> list[Enqueued]:
        raw = await started(connection)
        if is_aiosqlite(raw):  # Only its own thread may use the connection of sqlite3.
            answers: list[Enqueued] = await raw._execute(self._insert_tx, raw._conn, jobs)
            return answers
        if isinstance(raw, sqlite3.Connection):
            return self._insert_tx(raw, jobs)
        raise TypeError(
            f"connection={connection!r} can't be used: pass a connection of sqlite3 or aiosqlite to this "
            "queue's file, or one of SQLAlchemy or Django on one, or a session of SQLAlchemy"
        )

    def _insert_tx(self, connection: sqlite3.Connection, jobs: Sequence[Insertion]) -> list[Enqueued]:
        self._check_same_file(connection)
        if not connection.in_transaction and connection.isolation_level is None:
            raise InvalidState(f"{connection!r} has no open transaction: execute BEGIN on it first")
        try:
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            if not self._prepared:
                self.settings.migrate(connection)
            store = SqliteStore(connection, self._owner)
            replies = run_now(verbs.insert(store, self._clock.now(), jobs))
            store.flush()
            return replies
        except sqlite3.Error as error:
            raise self.settings.outage(error) from error

    def _check_same_file(self, connection: sqlite3.Connection) -> None:
        cursor = connection.cursor()
        cursor.row_factory = None
        file = next((row[2] for row in cursor.execute("PRAGMA database_list") if row[1] == "main"), "")
        if not file or not Path(file).samefile(self.settings.path):
            raise ConfigError(
                f"connection={connection!r} is open on {file or 'a private database'!r}: "
                f"pass a connection to the queue's own file, {str(self.settings.path)!r}"
            )

    def claim(
        self, requests: Sequence[ClaimRequest], token: Token | None = None
    ) -> Coroutine[Any, Any, list[list[Job]]]:
        """The reply does not wait for the disk: without its commit, the job would be pending, as before."""
        verb = self._at_time(
            lambda store, now: verbs.claim(store, now, requests, claim_key(token), self.ended)
        )
        return self._write(verb, sync_later=True)

    async def promote(self, limit: int, token: Token | None = None) -> tuple[int, list[EndedJob]]:
        if await self.next_due() != 0:
            return 0, []
        return await super().promote(limit)

    async def reap(
        self, limit: int, expired_by: int | None = None, token: Token | None = None
    ) -> list[EndedJob]:
        if not expired_by:  # With a time, the call has to take the write lock.
            time = self._clock.now() if expired_by is None else expired_by
            if not await self._read(lambda store: store.must_reap(time)):
                return []
        return await super().reap(limit, expired_by)

    async def reclaim(self, workers: Sequence[str], limit: int, token: Token | None = None) -> list[EndedJob]:
        if not await self._read(lambda store: store.claimed_by(workers, 1)):
            return []
        return await super().reclaim(workers, limit)

    async def sweep(
        self, limit: int, over_by: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        time = self._clock.now() if over_by is None else over_by
        if not await self._read(lambda store: store.must_sweep(time)):
            return 0, 0
        return await super().sweep(limit, over_by)

    async def diagnose(self) -> list[Diagnostic]:
        async def read(store: SqliteStore) -> list[Diagnostic]:
            return list(diagnose(store.connection, self.settings))

        return await self._read(read)
