"""Claims jobs: one statement per request, with scan hints. Corrupt records are quarantined and replaced.

A claim stores no reply: its jobs carry its key. A repeated claim returns the jobs that the first try took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dayjob.engines.base import BATCH, BATCH_BYTES, ClaimRequest
from dayjob.engines.postgres import rows
from dayjob.engines.postgres.database import Database
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.scan_hints import ScanHints
from dayjob.model.job import Job
from dayjob.runtime.clock import SYSTEM

THOROUGH = 1.0
"""Seconds after which a claim considers all jobs again.

The xmax of a row that several transactions locked together names no transaction. Such a job may be skipped.
"""

_ENOUGH_BYTES = BATCH_BYTES // 2
"""Bytes of payload after which a claim ends that got fewer jobs than it wanted."""

Rows = Sequence[Sequence[Any]]
Corrupt = tuple[bytes, int, str]
"""The claim ``(key, epoch)`` of a job that can't be decoded, and the error."""


class Claimer:
    """Serves the claims of one engine."""

    def __init__(self, database: Database, hints: ScanHints) -> None:
        self._database = database
        self._hints = hints
        self._thorough_at = 0.0
        self._most_rows = BATCH
        """The most rows that a statement locks. Few while payloads are large, as most would not fit."""

    async def claim(
        self, request: ClaimRequest, now: int | None, key: bytes, *, repeated: bool = False
    ) -> list[Job]:
        """Return jobs up to the limit or ``BATCH_BYTES``, unless there are no more.

        Corrupt ones are replaced by others. ``key`` names the claim. If it is ``repeated``, return the jobs
        of the first try, if there are any.
        """
        if repeated and (found := await self._find(request, key)):
            return await self._decode(found, request, now)
        jobs: list[Job] = []
        size = 0
        while len(jobs) < request.limit:
            limit = min(request.limit - len(jobs), self._most_rows)
            found = await self._take(request, limit, BATCH_BYTES - size, now, key)
            jobs += await self._decode(found, request, now)
            if len(jobs) == request.limit:
                break
            size += sum(len(row[rows.PAYLOAD]) for row in found)
            if size > _ENOUGH_BYTES:
                self._most_rows = max(2 * len(found), 1)
                break
            if len(found) == limit:
                self._most_rows = min(2 * self._most_rows, BATCH)
            elif not self._hints.drop([queue for queue, _ in request.queues]):
                break
        return jobs

    async def _take(self, request: ClaimRequest, limit: int, size: int, now: int | None, key: bytes) -> Rows:
        queues = [queue for queue, _ in request.queues]
        leases = [lease for _, lease in request.queues]
        started = SYSTEM.elapsed()
        thorough = started >= self._thorough_at
        if thorough:
            self._thorough_at = started + THOROUGH
        after = self._hints.positions(queues)
        found = await self._database.fetch(
            "claim", now, queues, leases, [priority for priority, _ in after], [id for _, id in after], limit,
            request.worker, key, thorough, size,
        )  # fmt: skip
        self._hints.update(found, SYSTEM.elapsed() - started)
        return found

    async def _find(self, request: ClaimRequest, key: bytes) -> Rows:
        """Return the jobs of a claim, after it has ended."""
        queues = [queue for queue, _ in request.queues]

        async def find(connection: Connection) -> Rows:
            await connection.execute(self._database.statements["await_claim"], key)
            return await connection.fetch(self._database.statements["claimed"], queues, [key])

        return await self._database.read(find)

    async def _decode(self, found: Rows, request: ClaimRequest, now: int | None) -> list[Job]:
        """Decode the rows of ``claim.sql``. Quarantine those that can't be decoded."""
        jobs: list[Job] = []
        corrupt: list[Corrupt] = []
        for row in found:
            try:
                jobs.append(rows.claimed_job(row, request.worker))
            except rows.Corrupt as error:
                corrupt.append((row[rows.KEY], row[rows.EPOCH], rows.corrupt_text(error)))
        if corrupt:
            keys, epochs, errors = (list(column) for column in zip(*corrupt, strict=True))
            await self._database.fetch("quarantine", now, keys, epochs, errors)
        return jobs
