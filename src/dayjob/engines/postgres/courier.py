"""Carries work to the server and the answer back, through outages.

A piece of work that changes something has a token, stored with its answer in the same commit. When a
connection breaks before the answer came, the next try asks for that answer first, so nothing is done
twice. All of it happens within the place's timeout; then it is an ``EngineUnavailable`` with the cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from dayjob.engines.postgres.place import Place
from dayjob.engines.postgres.pool import SET_LOCAL, Connection, Pool
from dayjob.engines.postgres.statements import Statements
from dayjob.engines.postgres.troubles import described, is_passing, is_uncertain
from dayjob.errors import Closed, DayjobError
from dayjob.runtime import entropy
from dayjob.runtime.clock import SYSTEM

Answer = TypeVar("Answer")
Work = Callable[[Connection], Awaitable[Answer]]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class Courier:
    """Runs pieces of work on the connections of one pool."""

    def __init__(self, place: Place, statements: Statements) -> None:
        self._place = place
        self._pool = Pool(place)
        self._answered = statements["answered"]
        self._closed = False
        self.in_doubt: Callable[[], None] = lambda: None
        """Called after work whose first answer was lost: what that changed was told to nobody."""

    async def close(self) -> None:
        self._closed = True
        await self._pool.close()

    async def carry(
        self,
        work: Work[Answer],
        *,
        token: bytes | None = None,
        recall: Callable[[Any], Answer] | None = None,
        again: Work[Answer] | None = None,
        patient: bool = True,
    ) -> Answer:
        """The answer of the work, which may be tried several times.

        If a try may have succeeded unheard, ``recall`` makes the answer from what is stored under the
        token; without a token, ``again`` is tried instead of the work from then on. What is locked by others
        is waited for, unless ``patient`` is false: then it is ``Contended`` after the lock timeout.
        """
        deadline = SYSTEM.elapsed() + self._place.timeout
        pause = _FIRST_PAUSE
        doubtful = False
        cause: Exception | None = None

        async def careful(connection: Connection) -> Answer:
            if token is not None and recall is not None:
                found = await connection.fetchrow(self._answered, token)
                if found is not None:
                    return recall(found[0])
            return await (again or work)(connection)

        while True:
            if self._closed:
                raise Closed(f"{self._place.url}: the engine is closed")
            try:
                if not doubtful:
                    return await self._try(work, deadline)
                answer = await self._try(careful, deadline)
                self.in_doubt()
                return answer
            except DayjobError:
                raise
            except Exception as error:
                if _is_repeated(error):
                    doubtful = True  # The first try was still under way, and has won.
                    continue
                doubtful = doubtful or is_uncertain(error)
                passing = is_passing(error) and (
                    patient or not isinstance(error, asyncpg.LockNotAvailableError)
                )
                if cause is None or not isinstance(error, TimeoutError):  # Our own, which explains nothing.
                    cause = error
                if not passing or SYSTEM.elapsed() + pause >= deadline:
                    told = described(self._place, cause)
                    raise told from (None if told is cause else cause)
            await SYSTEM.wait(asyncio.Event(), pause * (0.5 + entropy.fraction()))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _try(self, work: Work[Answer], deadline: float) -> Answer:
        left = max(deadline - SYSTEM.elapsed(), 0.1)
        connection = await self._pool.acquire(left)
        sound = False
        try:
            async with asyncio.timeout(max(deadline - SYSTEM.elapsed(), 0.1)):
                if self._place.pgbouncer:
                    async with connection.transaction():
                        await connection.execute(SET_LOCAL)
                        answer = await work(connection)
                else:
                    answer = await work(connection)
            sound = True
            return answer
        finally:
            self._pool.release(connection, sound=sound)


def _is_repeated(error: Exception) -> bool:
    """Whether a batch with the same token has been committed meanwhile."""
    return isinstance(error, asyncpg.UniqueViolationError) and error.table_name == "batches"
