"""A few connections to the server, opened when they are needed and kept while they work.

One that failed in an unknown state is thrown away, never handed out again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol

import asyncpg

from dayjob.engines.postgres.place import Place


class Connection(Protocol):
    """What this engine uses of a connection of the driver, which has no types of its own."""

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


SETTINGS = {
    "enable_seqscan": "off",
    "jit": "off",
    "lock_timeout": "250ms",
    "plan_cache_mode": "force_generic_plan",
}
"""A statement may be planned while its table is empty, and must not walk it once it is large.

No statement has a better plan for some parameters than for others, and to plan a claim takes as long as
to claim a hundred jobs: each is planned once.
"""

SET_LOCAL = "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in SETTINGS.items())
"""The settings for one transaction, where there is no session to have them."""

_STATEMENTS = 200


async def connect(place: Place, timeout: float) -> Connection:
    """A new connection that has ids as bytes. Behind PgBouncer it keeps nothing in the session."""
    connection: Connection = await asyncpg.connect(
        place.dsn,
        timeout=timeout,
        statement_cache_size=0 if place.pgbouncer else _STATEMENTS,
        max_cached_statement_lifetime=0,
        server_settings=None if place.pgbouncer else {"application_name": "dayjob", **SETTINGS},
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
    """At most ``place.connections`` connections, used by one event loop."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._idle: deque[Connection] = deque()
        self._free = asyncio.Semaphore(place.connections)
        self._closed = False

    async def acquire(self, timeout: float) -> Connection:
        """A connection of one's own, within that many seconds, until it is given back."""
        async with asyncio.timeout(timeout):
            await self._free.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
            return await connect(self._place, timeout)
        except BaseException:
            self._free.release()
            raise

    def release(self, connection: Connection, *, sound: bool) -> None:
        """Give a connection back; one that is not sound is closed."""
        self._free.release()
        if sound and not self._closed and not connection.is_closed():
            self._idle.append(connection)
        else:
            connection.terminate()

    async def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        self._closed = True
        while self._idle:
            connection = self._idle.pop()
            with suppress(Exception):
                await connection.close(timeout=1)
