"""A small pool of connections, opened on demand and reused.

A connection that failed in an unknown state is closed and never reused. ``run`` tries once: the broker
repeats a call that fails with ``Transient``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol, TypeVar

import asyncpg

from dayjob.engines.base import Transient
from dayjob.engines.postgres.errors import public_error
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.errors import Closed, DayjobError
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM


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


Reply = TypeVar("Reply")
Work = Callable[[Connection], Awaitable[Reply]]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_SHORTEST_TRY = 0.1

SESSION_SETTINGS = {
    "enable_seqscan": "off",
    "jit": "off",
    "lock_timeout": "250ms",
    "plan_cache_mode": "force_generic_plan",
}
"""The settings of each session.

A statement may be planned while its table is empty, and must not scan the table once it is large. No
statement has a better plan for some parameters than for others. Planning a claim takes as long as claiming a
hundred jobs, so each statement is planned once.
"""

SET_LOCAL = "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in SESSION_SETTINGS.items())
"""The settings for one transaction, behind a pooler without sessions."""

_CACHED_STATEMENTS = 200


async def connect(settings: PostgresSettings, timeout: float) -> Connection:
    """Open a connection that returns ids as bytes. Behind PgBouncer it uses no session state."""
    connection: Connection = await asyncpg.connect(
        settings.dsn,
        timeout=timeout,
        statement_cache_size=0 if settings.pgbouncer else _CACHED_STATEMENTS,
        max_cached_statement_lifetime=0,
        server_settings=None if settings.pgbouncer else {"application_name": "dayjob", **SESSION_SETTINGS},
    )
    try:
        await connection.set_type_codec(
            "uuid", schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary"
        )
    except BaseException:
        connection.terminate()
        raise
    return connection


class Pool:
    """At most ``settings.connections`` connections, used by one event loop."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._idle: deque[Connection] = deque()
        self._free = asyncio.Semaphore(settings.connections)
        self._closed = False

    async def run(
        self, work: Work[Reply], *, timeout: float | None = None, wait_for_locks: bool = True
    ) -> Reply:
        """Run work once. Raise ``Transient`` if the next try may succeed.

        Work fails after the timeout, or that of the settings. A locked row raises ``Transient`` after the
        lock timeout; without ``wait_for_locks``, ``Contended``.
        """
        if self._closed:
            raise Closed(f"{self._settings.url}: the engine is closed")
        deadline = SYSTEM.elapsed() + (self._settings.timeout if timeout is None else timeout)
        connection: Connection | None = None
        sound = False
        try:
            connection = await self.acquire(max(deadline - SYSTEM.elapsed(), _SHORTEST_TRY))
            async with asyncio.timeout(max(deadline - SYSTEM.elapsed(), _SHORTEST_TRY)):
                if self._settings.pgbouncer:
                    async with connection.transaction():
                        await connection.execute(SET_LOCAL)
                        reply = await work(connection)
                else:
                    reply = await work(connection)
            sound = True
            return reply
        except DayjobError:
            raise
        except Exception as error:
            public = public_error(
                self._settings, error, sent=connection is not None, wait_for_locks=wait_for_locks
            )
            raise public from (None if public is error else error)
        finally:
            if connection is not None:
                self.release(connection, sound=sound)

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
            self._idle.append(connection)
        else:
            connection.terminate()

    async def close(self) -> None:
        """Close the idle connections. Those in use are closed when they are released."""
        self._closed = True
        while self._idle:
            connection = self._idle.pop()
            with suppress(Exception):
                await connection.close(timeout=1)
