"""Runs work on the connections of a pool, and repeats it through outages.

Work that changes something has a token, stored with its reply in the same commit. When the connection breaks
before the reply arrives, the next try looks for the stored reply first, so nothing is applied twice. After
the timeout of the settings, the call fails with ``EngineUnavailable`` and the cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from dayjob.engines.postgres.errors import commit_unknown, is_transient, public_error
from dayjob.engines.postgres.pool import SET_LOCAL, Connection, Pool
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.engines.postgres.statements import Statements
from dayjob.errors import Closed, DayjobError
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM

Reply = TypeVar("Reply")
Work = Callable[[Connection], Awaitable[Reply]]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class RetryingPool:
    """Runs work on the connections of one pool."""

    def __init__(self, settings: PostgresSettings, statements: Statements) -> None:
        self._settings = settings
        self._pool = Pool(settings)
        self._stored_reply = statements["stored_reply"]
        self._closed = False
        self.on_lost_reply: Callable[[], None] = lambda: None
        """Called after work whose first reply was lost: its signals were not published."""

    async def close(self) -> None:
        self._closed = True
        await self._pool.close()

    async def run(
        self,
        work: Work[Reply],
        *,
        token: bytes | None = None,
        decode: Callable[[Any], Reply] | None = None,
        again: Work[Reply] | None = None,
        wait_for_locks: bool = True,
    ) -> Reply:
        """Return the result of the work, which may be tried several times.

        If a failed try may have been committed, ``decode`` makes the result from the reply that is stored
        under the token. Without a token, ``again`` replaces the work from then on. Locked rows are waited
        for; without ``wait_for_locks`` they raise ``Contended`` after the lock timeout.
        """
        deadline = SYSTEM.elapsed() + self._settings.timeout
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True)
        repeated = False
        cause: Exception | None = None

        async def repeat(connection: Connection) -> Reply:
            if token is not None and decode is not None:
                found = await connection.fetchrow(self._stored_reply, token)
                if found is not None:
                    return decode(found[0])
            return await (again or work)(connection)

        while True:
            if self._closed:
                raise Closed(f"{self._settings.url}: the engine is closed")
            try:
                if not repeated:
                    return await self._try(work, deadline)
                reply = await self._try(repeat, deadline)
                self.on_lost_reply()
                return reply
            except DayjobError:
                raise
            except Exception as error:
                if _token_is_stored(error):
                    repeated = True  # The first try was still under way, and has committed.
                    continue
                repeated = repeated or commit_unknown(error)
                transient = is_transient(error) and (
                    wait_for_locks or not isinstance(error, asyncpg.LockNotAvailableError)
                )
                if cause is None or not isinstance(error, TimeoutError):  # Ours, which explains nothing.
                    cause = error
                if not transient or SYSTEM.elapsed() + backoff.pause >= deadline:
                    public = public_error(self._settings, cause)
                    raise public from (None if public is cause else cause)
            await backoff.wait(SYSTEM)

    async def _try(self, work: Work[Reply], deadline: float) -> Reply:
        left = max(deadline - SYSTEM.elapsed(), 0.1)
        connection = await self._pool.acquire(left)
        sound = False
        try:
            async with asyncio.timeout(max(deadline - SYSTEM.elapsed(), 0.1)):
                if self._settings.pgbouncer:
                    async with connection.transaction():
                        await connection.execute(SET_LOCAL)
                        reply = await work(connection)
                else:
                    reply = await work(connection)
            sound = True
            return reply
        finally:
            self._pool.release(connection, sound=sound)


def _token_is_stored(error: Exception) -> bool:
    """Whether a batch with the same token was committed meanwhile."""
    return isinstance(error, asyncpg.UniqueViolationError) and error.table_name == "replies"
