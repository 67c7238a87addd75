"""Claims jobs: one statement per request, with scan hints. Corrupt records are quarantined and replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dayjob.engines.base import ClaimRequest
from dayjob.engines.postgres import rows
from dayjob.engines.postgres.database import Database
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.scan_hints import ScanHints
from dayjob.errors import EngineUnavailable
from dayjob.model.job import Job
from dayjob.runtime import ids
from dayjob.runtime.clock import SYSTEM

_MAX_LOST = 100

THOROUGH = 1.0
"""Seconds after which a claim considers all jobs again.

The xmax of a row that several transactions locked together names no transaction. Such a job may be skipped.
"""

Rows = Sequence[Sequence[Any]]
Corrupt = tuple[bytes, int, str]
"""The claim ``(key, epoch)`` of a job that can't be decoded, and the error."""


class Claimer:
    """Serves the claims of one engine."""

    def __init__(self, database: Database, hints: ScanHints) -> None:
        self._database = database
        self._statements = database.statements
        self._hints = hints
        self._lost: list[bytes] = []
        """The tokens of claims that failed and may have taken jobs."""
        self._thorough_at = 0.0

    async def claim(self, request: ClaimRequest, now: int | None) -> list[Job]:
        """Return jobs up to the limit, unless there are no more. Corrupt ones are replaced by others."""
        jobs: list[Job] = []
        while len(jobs) < request.limit:
            wanted = request.limit - len(jobs)
            found = await self._take(request, wanted, now)
            taken, corrupt = _decoded(found, request.worker)
            jobs += taken
            if corrupt:
                await self._quarantine(corrupt, now)
            if len(found) == wanted and not corrupt:
                break
            if len(found) < wanted and not self._hints.drop([queue for queue, _ in request.queues]):
                break
        return jobs

    async def _take(self, request: ClaimRequest, limit: int, now: int | None) -> Rows:
        queues = [queue for queue, _ in request.queues]
        leases = [lease for _, lease in request.queues]
        token = ids.new_key()
        started = SYSTEM.elapsed()
        thorough = started >= self._thorough_at
        if thorough:
            self._thorough_at = started + THOROUGH

        async def claim(connection: Connection) -> Rows:
            after = self._hints.positions(queues)
            return await connection.fetch(
                self._statements["claim"], now, queues, leases, [priority for priority, _ in after],
                [id for _, id in after], limit, request.worker, token, thorough,
            )  # fmt: skip

        async def again(connection: Connection) -> Rows:
            await connection.execute(self._statements["await_claim"], token)
            found = await connection.fetch(self._statements["claimed"], queues, [token])
            return found or await claim(connection)

        try:
            found = await self._database.pool.run(claim, again=again)
        except EngineUnavailable:
            self._lost = [*self._lost, token][-_MAX_LOST:]
            raise
        self._hints.update(found, SYSTEM.elapsed() - started)
        return found

    async def lost(self) -> list[tuple[bytes, int]]:
        """Return the claims ``(key, epoch)`` that no caller got, to be released. Each is returned once."""
        if not self._lost:
            return []
        tokens = self._lost
        found = await self._database.fetch("claimed", [], tokens)
        self._lost = [token for token in self._lost if token not in tokens]
        return [(row[0], row[9]) for row in found]

    async def _quarantine(self, corrupt: Sequence[Corrupt], now: int | None) -> None:
        keys, epochs, errors = (list(column) for column in zip(*corrupt, strict=True))
        await self._database.fetch("quarantine", now, keys, epochs, errors)


def _decoded(found: Rows, worker: str | None) -> tuple[list[Job], list[Corrupt]]:
    jobs: list[Job] = []
    corrupt: list[Corrupt] = []
    for row in found:
        try:
            jobs.append(rows.claimed_job(row, worker))
        except rows.Corrupt as error:
            corrupt.append((row[0], row[9], rows.corrupt_text(error)))
    return jobs, corrupt
