"""Claiming: one statement per request, records that can't be decoded set aside, cursors minded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dayjob.engines.base import ClaimRequest
from dayjob.engines.postgres import rows
from dayjob.engines.postgres.courier import Courier
from dayjob.engines.postgres.cursors import Cursors
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.statements import Statements
from dayjob.errors import EngineUnavailable
from dayjob.model.job import Job
from dayjob.runtime import ids
from dayjob.runtime.clock import SYSTEM

_MOST_LOST = 100

THOROUGH = 1.0
"""Seconds after which a claim looks at all jobs again.

A lock that several hold together is not known by a transaction: a job that had one may be passed by.
"""

Found = Sequence[Sequence[Any]]


class Claiming:
    """Serves the claims of one engine."""

    def __init__(self, courier: Courier, statements: Statements, cursors: Cursors) -> None:
        self._courier = courier
        self._statements = statements
        self._cursors = cursors
        self._lost: list[bytes] = []
        """The tokens of claims that may have taken jobs unheard before the server was gone for too long."""
        self._thorough_at = 0.0

    async def claim(self, request: ClaimRequest, now: int | None) -> list[Job]:
        """Up to the limit, unless there are no more; what can't be decoded is replaced by what can."""
        jobs: list[Job] = []
        while len(jobs) < request.limit:
            wanted = request.limit - len(jobs)
            found = await self._take(request, wanted, now)
            taken, corrupt = _decoded(found, request.worker)
            jobs += taken
            if corrupt:
                await self._set_aside(corrupt, now)
            if len(found) == wanted and not corrupt:
                break
            if len(found) < wanted and not self._cursors.drop([queue for queue, _ in request.queues]):
                break
        return jobs

    async def _take(self, request: ClaimRequest, limit: int, now: int | None) -> Found:
        queues = [queue for queue, _ in request.queues]
        leases = [lease for _, lease in request.queues]
        token = ids.new_key()
        begun = SYSTEM.elapsed()
        thorough = begun >= self._thorough_at
        if thorough:
            self._thorough_at = begun + THOROUGH

        async def claim(connection: Connection) -> Found:
            after = self._cursors.of(queues)
            found: Found = await connection.fetch(
                self._statements["claim"], now, queues, leases, [priority for priority, _ in after],
                [id for _, id in after], limit, request.worker, token, thorough,
            )  # fmt: skip
            return found

        async def again(connection: Connection) -> Found:
            await connection.execute(self._statements["await_claim"], token)
            found: Found = await connection.fetch(self._statements["claimed"], queues, [token])
            return found or await claim(connection)

        try:
            found = await self._courier.carry(claim, again=again)
        except EngineUnavailable:
            self._lost = [*self._lost, token][-_MOST_LOST:]
            raise
        self._cursors.note(found, SYSTEM.elapsed() - begun)
        return found

    async def lost(self) -> list[tuple[bytes, int]]:
        """The claims ``(key, epoch)`` that nobody got, to be released; each is told once."""
        if not self._lost:
            return []
        tokens = self._lost

        async def look(connection: Connection) -> Found:
            found: Found = await connection.fetch(self._statements["claimed"], [], tokens)
            return found

        found = await self._courier.carry(look)
        self._lost = [token for token in self._lost if token not in tokens]
        return [(row[0], row[9]) for row in found]

    async def _set_aside(self, corrupt: Sequence[tuple[bytes, int, str]], now: int | None) -> None:
        keys, epochs, errors = (list(column) for column in zip(*corrupt, strict=True))

        async def quarantine(connection: Connection) -> None:
            await connection.execute(self._statements["set_aside"], now, keys, epochs, errors)

        await self._courier.carry(quarantine)


def _decoded(found: Found, worker: str | None) -> tuple[list[Job], list[tuple[bytes, int, str]]]:
    jobs: list[Job] = []
    corrupt: list[tuple[bytes, int, str]] = []
    for row in found:
        try:
            jobs.append(rows.claimed_job(row, worker))
        except rows.Corrupt as error:
            corrupt.append((row[0], row[9], rows.corrupt_text(error)))
    return jobs, corrupt
