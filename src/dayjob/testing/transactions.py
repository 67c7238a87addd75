"""Enqueue with ``connection=`` in a sandbox: the jobs are held until the caller's transaction has committed.

sqlite3 reports the statements of a connection, and PostgreSQL the outcome of a transaction by its number.
"""

from __future__ import annotations

import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dayjob.broker import Broker
from dayjob.broker.session import Unit
from dayjob.engines.base import Insertion
from dayjob.engines.caller_connection import is_aiosqlite, started
from dayjob.engines.store import run_now
from dayjob.errors import InvalidState
from dayjob.model.job import Enqueued, id_text
from dayjob.runtime.ids import new_key

Rows = Sequence[Sequence[Any]]

_ACCEPTED = (
    "pass a connection of sqlite3, aiosqlite, psycopg 3 or asyncpg, or a Session, AsyncSession, Connection "
    "or AsyncConnection of SQLAlchemy, or the connection of Django, on one of these"
)


class HeldJobs:
    """The jobs of transactions that have not ended, by connection."""

    def __init__(self) -> None:
        self._watches: dict[int, Watch] = {}

    async def before_use(self, broker: Broker) -> None:
        """Store the jobs of committed transactions, and accept connections in this broker."""
        broker._engine.insert_tx = self.insert_tx  # type: ignore[method-assign]
        for watch in list(self._watches.values()):
            for unit in await watch.committed():
                await broker._session.enqueue(unit)

    async def insert_tx(
        self, connection: Any, jobs: Sequence[Insertion], now: int | None = None
    ) -> list[Enqueued]:
        """Hold the jobs. With a synchronous connection this never waits."""
        raw = await started(connection)
        watched = raw._conn if is_aiosqlite(raw) else raw  # The watch refers to it, so no other has its id.
        watch = self._watches.get(id(watched))
        if watched is not raw:  # Only its own thread may use the connection of sqlite3.
            watch = self._watches[id(watched)] = watch or await raw._execute(SqliteWatch, watched)
            await raw._execute(run_now, watch.hold(tuple(jobs)))
        else:
            watch = self._watches[id(watched)] = watch or _new_watch(connection, raw)
            await watch.hold(tuple(jobs))
        return [Enqueued(id_text(job.key), True) for job in jobs]

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()


def _new_watch(connection: Any, raw: Any) -> Watch:
    if isinstance(raw, sqlite3.Connection):
        return SqliteWatch(raw)
    driver = type(raw).__module__.partition(".")[0]
    if driver == "psycopg" and hasattr(raw, "pgconn"):
        return PsycopgWatch(raw)
    if driver == "asyncpg" and hasattr(raw, "is_in_transaction"):
        return AsyncpgWatch(raw)
    raise TypeError(f"connection={connection!r} can't be used: {_ACCEPTED}")


class SqliteWatch:
    """Follows the statements that begin, end and divide the transactions of a connection of sqlite3."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw
        self._held: list[Unit] = []
        self._savepoints: list[tuple[str, int]] = []
        """The savepoints since the first held unit, and the number of units before each."""
        self._ending: list[Unit] = []
        """The units of a commit that may still fail."""
        self._committed: list[Unit] = []
        raw.set_trace_callback(self._statement)

    async def hold(self, unit: Unit) -> None:
        raw = self._raw
        if not raw.in_transaction:
            if raw.isolation_level is None:
                raise InvalidState(f"{raw!r} has no open transaction: execute BEGIN on it first")
            raw.execute("BEGIN")
        self._held.append(unit)

    async def committed(self) -> list[Unit]:
        """Return the units whose transactions have committed, each once."""
        if self._ending and not self._in_transaction():
            self._commit_succeeded()
        taken, self._committed = self._committed, []
        return taken

    def close(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # The connection is closed, or belongs to another thread.
            self._raw.set_trace_callback(None)

    def _statement(self, sql: str) -> None:
        """Follow a statement that sqlite3 executes now, its own ones included."""
        words = sql.upper().split()
        verb = words[0] if words else ""
        if verb in ("COMMIT", "END"):
            self._ending, self._held, self._savepoints = [*self._ending, *self._held], [], []
        elif verb == "ROLLBACK" and "TO" in words:
            self._back_to(words[-1])
        elif verb == "ROLLBACK":
            self._ending, self._held, self._savepoints = [], [], []
        elif verb == "BEGIN":
            self._commit_succeeded()
        elif verb == "SAVEPOINT":
            self._savepoints.append((words[-1], len(self._held)))
        elif verb == "RELEASE" and (found := self._find(words[-1])) is not None:
            del self._savepoints[found:]

    def _back_to(self, savepoint: str) -> None:
        """Drop the units since the savepoint: all of them, if it was made before the first."""
        found = self._find(savepoint)
        del self._held[0 if found is None else self._savepoints[found][1] :]
        del self._savepoints[0 if found is None else found + 1 :]

    def _find(self, savepoint: str) -> int | None:
        names = [name for name, _ in self._savepoints]
        return None if savepoint not in names else len(names) - 1 - names[::-1].index(savepoint)

    def _commit_succeeded(self) -> None:
        self._committed, self._ending = [*self._committed, *self._ending], []

    def _in_transaction(self) -> bool:
        with suppress(sqlite3.ProgrammingError):  # The connection is closed.
            return self._raw.in_transaction
        return False


_NUMBER = """
SELECT (txid_current() >> 32 << 32) | xmin::text::bigint FROM pg_class WHERE oid = 'pg_temp.{name}'::regclass
"""
"""The number of the current subtransaction: that of the row of a table which it has created."""

_OUTCOMES = "SELECT number, txid_status(number) FROM unnest(ARRAY{numbers}::bigint[]) AS number"


class PostgresWatch(ABC):
    """Reads the outcomes of transactions on a connection of its own, as the caller's may be closed then."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._held: list[tuple[int, Unit]] = []

    async def hold(self, unit: Unit) -> None:
        if not self._in_transaction():
            raise InvalidState(f"{self._raw!r} has no open transaction: begin one first, then enqueue in it")
        name = f"dayjob_{new_key().hex()}"
        await self._fetch(f"CREATE TEMP TABLE {name} ()")
        [[number]] = await self._fetch(_NUMBER.format(name=name))
        await self._fetch(f"DROP TABLE pg_temp.{name}")
        self._held.append((number, unit))

    async def committed(self) -> list[Unit]:
        if not self._held:
            return []
        numbers = [number for number, _ in self._held]
        rows = await self._fetch_apart(_OUTCOMES.format(numbers=numbers))
        held = self._held
        ended = {number for number, outcome in rows if outcome != "in progress"}
        committed = {number for number, outcome in rows if outcome == "committed"}
        self._held = [(number, unit) for number, unit in held if number not in ended]
        return [unit for number, unit in held if number in committed]

    def close(self) -> None:
        self._held = []

    @abstractmethod
    def _in_transaction(self) -> bool:
        """Return whether the caller's connection has an open transaction."""

    @abstractmethod
    async def _fetch(self, sql: str) -> Rows:
        """Run a statement on the caller's connection."""

    @abstractmethod
    async def _fetch_apart(self, sql: str) -> Rows:
        """Run a statement on another connection."""


class PsycopgWatch(PostgresWatch):
    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        self._psycopg = sys.modules["psycopg"]
        self._parameters = {**raw.info.get_parameters(), "password": raw.info.password or None}

    def _in_transaction(self) -> bool:
        idle = self._raw.info.transaction_status == self._psycopg.pq.TransactionStatus.IDLE
        return not (idle and self._raw.autocommit)

    async def _fetch(self, sql: str) -> Rows:
        asynchronous = isinstance(self._raw, self._psycopg.AsyncConnection)
        cursor = self._raw.cursor(row_factory=self._psycopg.rows.tuple_row)
        executed = cursor.execute(sql)
        if asynchronous:
            await executed
        if not cursor.description:
            return []
        rows: Rows = await cursor.fetchall() if asynchronous else cursor.fetchall()
        return rows

    async def _fetch_apart(self, sql: str) -> Rows:
        with self._psycopg.connect(**self._parameters) as connection:
            rows: Rows = connection.execute(sql).fetchall()
            return rows


class AsyncpgWatch(PostgresWatch):
    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        address, parameters = raw._addr, raw._params
        folder, _, port = address.rpartition("/.s.PGSQL.") if isinstance(address, str) else ("", "", "")
        self._parameters = {
            "host": folder or address[0],
            "port": int(port or address[1]),
            **{name: getattr(parameters, name) for name in ("user", "password", "database")},
            "ssl": parameters.ssl
            if parameters.sslmode.name in ("require", "verify_ca", "verify_full")
            else "prefer",
        }

    def _in_transaction(self) -> bool:
        in_transaction: bool = self._raw.is_in_transaction()
        return in_transaction

    async def _fetch(self, sql: str) -> Rows:
        rows: Rows = await self._raw.fetch(sql)
        return rows

    async def _fetch_apart(self, sql: str) -> Rows:
        connection = await sys.modules["asyncpg"].connect(**self._parameters)
        try:
            rows: Rows = await connection.fetch(sql)
            return rows
        finally:
            await connection.close()


Watch = SqliteWatch | PostgresWatch
"""Watches the transactions of one connection, to which it refers until the sandbox ends."""
