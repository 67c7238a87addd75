"""The database: a pool of connections, and the ways to run a statement on one of them.

Connections are opened on demand and reused. One that failed in an unknown state is closed and never reused.
Each call tries once, unless its docstring differs: the broker repeats a call that fails with ``Transient``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol

import asyncpg

from dayjob.engines.base import Contended, Reply, Token, Transient, claim_key
from dayjob.engines.connect_limit import connect_limit
from dayjob.engines.idle_connections import IdleConnections
from dayjob.engines.postgres.errors import public_error, token_is_stored
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.engines.postgres.statements import Statements
from dayjob.errors import Closed, ConfigError, DayjobError, EngineUnavailable, QueueFull
from dayjob.model.durations import SECOND
from dayjob.runtime import ids
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM, Clock


class Connection(Protocol):
    """The part of the driver's connection that this engine uses. The driver has no types of its own."""

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]: ...
    async def fetchrow(self, sql: str, *parameters: Any) -> Any: ...
    async def fetchval(self, sql: str, *parameters: Any, timeout: float | None = None) -> Any: ...
    async def execute(self, sql: str, *parameters: Any) -> str: ...
    def transaction(self) -> AbstractAsyncContextManager[None]: ...
    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...
    def add_termination_listener(self, callback: Callable[..., None]) -> None: ...
    async def set_type_codec(self, name: str, **codec: Any) -> None: ...
    def is_closed(self) -> bool: ...
    async def close(self, *, timeout: float) -> None: ...
    def terminate(self) -> None: ...


Work = Callable[[Connection], Awaitable[Reply]]

StoredReply = list[str] | None
"""The reply of a write in the form in which it is stored. For some statements NULL is short for all."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_SHORTEST_TRY = 0.1

FEW = 2000
"""Rows of counters that are left alone."""

BATCH = 10_000
"""Rows that one commit folds or prunes."""

_REPLY_RETENTION = 600 * SECOND

SESSION_SETTINGS = {
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    "jit": "off",
    "lock_timeout": "250ms",
    "plan_cache_mode": "force_generic_plan",
    "statement_timeout": "0",
}
"""The settings of each session.

The timeout of the URL bounds a statement. A ``statement_timeout`` of the role would fail large batches.

A statement may be planned while its table is empty, and must not scan the table once it is large. A bitmap
scan has no order: a claim would sort all pending jobs. No statement has a better plan for some parameters
than for others. Planning a claim takes as long as claiming a hundred jobs, so each statement is planned once.
"""

SET_LOCAL = "".join(f"SET LOCAL {name} = '{value}'; " for name, value in SESSION_SETTINGS.items())
"""The settings for one transaction, behind a pooler without sessions."""

BRIEF_LOCKS = "SET LOCAL lock_timeout = '10ms'"
CONTENDED_FOR = 1.0
"""Seconds after a lock timeout for which work that may meet held keys waits for locks only briefly."""

_CACHED_STATEMENTS = 200

CONNECT_FAILURES = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.OperatorInterventionError,
)
"""The errors of an attempt to connect that another attempt at once would only repeat."""

_RECEIVE_BYTES = 64 << 10
"""The buffer of a read. Buffers of 256 KiB, the default of asyncio, fragment the heap of the allocator."""

_ROLLED_BACK = (asyncpg.LockNotAvailableError, asyncpg.UniqueViolationError)
"""After these errors a connection is as before."""


async def connect(
    settings: PostgresSettings,
    timeout: float,
    session: Mapping[str, str] = SESSION_SETTINGS,
    name: str = "dayjob",
) -> Connection:
    """Open a connection that returns ids as bytes. Behind PgBouncer it uses no session state."""
    try:
        async with connect_limit(settings.dsn).attempt(*CONNECT_FAILURES):
            connection: Connection = await asyncpg.connect(
                settings.dsn,
                timeout=timeout,
                statement_cache_size=_CACHED_STATEMENTS if settings.prepared else 0,
                max_cached_statement_lifetime=0,
                server_settings=None if settings.pgbouncer else {"application_name": name, **session},
            )
    except asyncpg.ClientConfigurationError:
        raise
    except ValueError:  # It may quote a part of the password.
        raise ConfigError(
            f"the URL {settings.url!r} has no valid port: write special characters of the user and the "
            "password in percent-encoding, such as %2F for a slash"
        ) from None
    transport: Any = getattr(connection, "_transport", None)  # asyncpg has no public name for it.
    if hasattr(transport, "max_size"):  # uvloop has a fixed buffer.
        transport.max_size = _RECEIVE_BYTES
    try:
        await connection.set_type_codec(
            "uuid", schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary"
        )
    except BaseException:
        connection.terminate()
        raise
    return connection


class Pool:
    """At most ``settings.connections`` connections, used by one event loop.

    Work that may meet held keys gets half of them, one at least. So held keys do not delay settlements,
    renewals and the lead.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._idle = IdleConnections(_close)
        self._free = asyncio.Semaphore(settings.connections)
        self._for_keyed = asyncio.Semaphore(max(settings.connections // 2, 1))
        self._contended_until = float("-inf")
        self._closed = False

    async def run(
        self,
        work: Work[Reply],
        *,
        timeout: float | None = None,
        wait_for_locks: bool = True,
        brief_locks: bool = False,
    ) -> Reply:
        """Run work once. Raise ``Transient`` if the next try may succeed.

        Work fails after the timeout, or that of the settings. A locked row raises ``Transient`` after the
        lock timeout, which ``brief_locks`` shortens; without ``wait_for_locks``, ``Contended``.
        """
        if self._closed:
            raise Closed(f"{self._settings.url}: the engine is closed")
        deadline = SYSTEM.elapsed() + (self._settings.timeout if timeout is None else timeout)
        connection: Connection | None = None
        sound = False
        try:
            connection = await self.acquire(max(deadline - SYSTEM.elapsed(), _SHORTEST_TRY))
            async with asyncio.timeout(max(deadline - SYSTEM.elapsed(), _SHORTEST_TRY)):
                local = SET_LOCAL if self._settings.pgbouncer else ""
                if brief_locks:
                    local += BRIEF_LOCKS
                if local:
                    async with connection.transaction():
                        await connection.execute(local)
                        reply = await work(connection)
                else:
                    reply = await work(connection)
            sound = True
            return reply
        except DayjobError as error:
            sound = isinstance(error, QueueFull)
            raise
        except Exception as error:
            sound = isinstance(error, _ROLLED_BACK)
            public = public_error(
                self._settings, error, sent=connection is not None, wait_for_locks=wait_for_locks
            )
            raise public from (None if public is error else error)
        finally:
            if connection is not None:
                self.release(connection, sound=sound)

    async def run_keyed(self, work: Work[Reply]) -> Reply:
        """Run work that may meet a key that another client's open transaction holds: then, ``Contended``."""
        deadline = SYSTEM.elapsed() + self._settings.timeout
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._for_keyed.acquire()
        except TimeoutError as error:
            raise public_error(self._settings, error, sent=False) from error
        try:
            now = SYSTEM.elapsed()
            brief = now < self._contended_until
            return await self.run(work, timeout=deadline - now, wait_for_locks=False, brief_locks=brief)
        except Contended:
            self._contended_until = SYSTEM.elapsed() + CONTENDED_FOR
            raise
        finally:
            self._for_keyed.release()

    async def run_retrying(self, work: Work[Reply]) -> Reply:
        """Run work outside of the broker's calls, again after transient errors, until the timeout.

        The repetition of the work must be harmless.
        """
        deadline = SYSTEM.elapsed() + self._settings.timeout
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True)
        cause: Transient | None = None
        while True:
            try:
                return await self.run(work, timeout=deadline - SYSTEM.elapsed())
            except Transient as error:
                if cause is None or not isinstance(error.__cause__, TimeoutError):
                    cause = error  # A timeout explains less than any other error.
            if SYSTEM.elapsed() + backoff.pause >= deadline:
                raise cause
            await backoff.wait(SYSTEM)

    async def acquire(self, timeout: float) -> Connection:
        """Return a connection for exclusive use until ``release``, or raise ``TimeoutError``."""
        async with asyncio.timeout(timeout):
            await self._free.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
            return await connect(self._settings, timeout)
        except BaseException:
            self._free.release()
            raise

    def release(self, connection: Connection, *, sound: bool) -> None:
        """Return a connection to the pool, or close it if it is not sound."""
        self._free.release()
        if sound and not self._closed and not connection.is_closed():
            self._idle.push(connection)
        else:
            connection.terminate()

    async def close(self) -> None:
        """Close the idle connections. Those in use are closed when they are released."""
        self._closed = True
        await self._idle.close()


async def _close(connection: Connection) -> None:
    with suppress(Exception):
        await connection.close(timeout=1)


class Database:
    """A pool, the statements of its schema, and the ways to run them.

    Two tables only grow, and are kept small by ``fold_and_prune``. Some rows of counters are also folded in
    the background when this process has written or read many.
    """

    def __init__(self, pool: Pool, statements: Statements, clock: Clock | None) -> None:
        self.pool = pool
        self.statements = statements
        self._clock = clock
        self.listening = asyncio.Event()
        """Cleared while the listener starts. A read before it listens might miss a change right after it."""
        self.listening.set()
        self._rows_written = 0
        self._folding: asyncio.Task[None] | None = None

    def now(self) -> int | None:
        """Return the time of an injected clock, or None for that of the server."""
        return None if self._clock is None else self._clock.now()

    async def close(self) -> None:
        if self._folding is not None:
            await asyncio.wait({self._folding})
        await self.pool.close()

    async def read(self, work: Work[Reply]) -> Reply:
        """Run work that changes nothing, or whose repetition is harmless."""
        if not self.listening.is_set():
            await self.listening.wait()
        return await self.pool.run(work)

    async def fetch(self, name: str, *parameters: Any) -> list[Any]:
        """Return the rows of a statement that changes nothing, or whose repetition is harmless."""
        return await self.read(lambda connection: connection.fetch(self.statements[name], *parameters))

    async def execute(self, name: str, token: Token | None, *parameters: Any, part: int = 0) -> list[str]:
        """Run a statement that stores its reply under the token. Return that reply."""
        return await self.write_statement(name, token, *parameters, part=part) or []

    async def write_statement(
        self,
        name: str,
        token: Token | None,
        *parameters: Any,
        part: int = 0,
        wait_for_locks: bool = True,
    ) -> StoredReply:
        """``execute``, where a reply of NULL has a meaning of its own."""
        key = token_key(token, part)
        sql = self.statements[name]
        return await self.write(
            token, key, lambda connection: connection.fetchval(sql, key, *parameters),
            wait_for_locks=wait_for_locks,
        )  # fmt: skip

    async def write(
        self,
        token: Token | None,
        key: bytes,
        work: Work[StoredReply],
        *,
        wait_for_locks: bool = True,
        keyed: bool = False,
    ) -> StoredReply:
        """Run work that stores its reply under the key. A repeated write looks for the stored reply first."""
        self.count_row()

        async def repeat(connection: Connection) -> StoredReply:
            stored = await connection.fetchrow(self.statements["stored_reply"], key)
            reply: StoredReply = await work(connection) if stored is None else stored[0]
            return reply

        first = repeat if token is not None and token.repeated else work
        try:
            if keyed:
                return await self.pool.run_keyed(first)
            return await self.pool.run(first, wait_for_locks=wait_for_locks)
        except asyncpg.UniqueViolationError as error:
            if not token_is_stored(error):
                raise
        return await self.pool.run(repeat)  # The first try was still under way, and has committed.

    def count_row(self) -> None:
        """Count a commit that added a row of counters."""
        self._rows_written += 1
        self.fold_if_many(self._rows_written)

    def fold_if_many(self, rows: int) -> None:
        """Start to fold the counters if they have many rows."""
        if rows > FEW and self._folding is None:
            self._rows_written = 0
            self._folding = asyncio.get_running_loop().create_task(self._fold_some())

    async def _fold_some(self) -> None:
        try:
            await self._maintain("fold_counters", BATCH)
        except EngineUnavailable:
            pass  # The next fold covers these rows.
        finally:
            self._folding = None

    async def fold_and_prune(self) -> None:
        """Fold the counters, and remove all old replies."""
        taken, left = BATCH, 0
        while taken == BATCH and left <= BATCH // 2:  # Until there are few rows, or as many queues as rows.
            ((taken, left),) = await self._maintain("fold_counters", BATCH)
        removed, after = BATCH, 0
        while removed == BATCH:
            # Each batch starts after the last, not at the dead index entries that the last has left.
            ((removed, after),) = await self._maintain("prune_replies", _REPLY_RETENTION, BATCH, after)

    async def _maintain(self, name: str, *parameters: Any) -> list[Any]:
        return await self.pool.run(lambda connection: connection.fetch(self.statements[name], *parameters))


def token_key(token: Token | None, part: int = 0) -> bytes:
    """Return the key of a token, or of a part of its write that is a commit of its own."""
    if token is None or part == 0:
        return claim_key(token)
    return ids.derived_key(int.from_bytes(token.key[:6]), b"%b%d" % (token.key, part))


def after_commit(error: Transient) -> Transient:
    """Return the error of a write that has made a commit before: the repetition must look for both."""
    return Transient(str(error), commit_unknown=True)
