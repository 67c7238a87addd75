"""A small pool of connections, opened on demand and reused.

A connection that failed in an unknown state is closed and never reused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol

import asyncpg

from dayjob.engines.postgres.settings import PostgresSettings


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
