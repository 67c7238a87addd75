"""Claims jobs: one statement per request, with scan hints. Corrupt records are quarantined and replaced.

A claim stores no reply: its jobs carry its key. A repeated claim returns the jobs that the first try took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dayjob.engines.base import BATCH, BATCH_BYTES, ClaimRequest, Token, Transient
from dayjob.engines.postgres import rows
from dayjob.engines.postgres.database import Connection, Database, after_commit, token_key
from dayjob.model.job import Job
from dayjob.runtime.clock import SYSTEM

THOROUGH = 1.0
"""Seconds after which a claim considers all jobs again.

The xmax of a row that several transactions locked together names no transaction. Such a job may be skipped.
"""

_ENOUGH_BYTES = BATCH_BYTES // 2
"""Payload bytes after which a claim returns, even with fewer jobs than its limit."""

Rows = Sequence[Sequence[Any]]


class Claimer:
    """Serves the claims of one engine."""

    def __init__(self, database: Database, hints: ScanHints) -> None:
        self._database = database
        self._hints = hints
        self._thorough_at = 0.0
        self._most_rows = BATCH
        """The most rows that a statement locks. Few while payloads are large, as most would not fit."""

    async def claim(
        self, requests: Sequence[ClaimRequest], now: int | None, token: Token | None, part: int = 0
    ) -> list[list[Job]]:
        """Claim for each request, in a commit each. ``part`` is the number of the first commit in its write.

        A repetition looks for the jobs of all requests.
        """
        repeated = token is not None and token.repeated
        claimed: list[list[Job]] = []
        try:
            for number, request in enumerate(requests, part):
                key = token_key(token, number)
                claimed.append(await self._claim(request, now, key, repeated=repeated))
        except Transient as error:
            raise after_commit(error) from error.__cause__
        self._database.count_row()
        return claimed

    async def _claim(
        self, request: ClaimRequest, now: int | None, key: bytes, *, repeated: bool
    ) -> list[Job]:
        """Return jobs up to the limit or ``BATCH_BYTES``, unless there are no more.

        Corrupt ones are replaced by others. ``key`` names the claim. If it is ``repeated``, return the jobs
        of the first try, if there are any.
        """
        if repeated and (found := await self._find(request, key)):
            return await self._decode(found, request, now, key)
        jobs: list[Job] = []
        size = 0
        while len(jobs) < request.limit:
            limit = min(request.limit - len(jobs), self._most_rows)
            found = await self._take(request, limit, BATCH_BYTES - size, now, key)
            jobs += await self._decode(found, request, now, key)
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
        # A job whose lease ended between two statements may be claimed by both: its last claim counts.
        return list({job.key: job for job in jobs}.values())

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

    async def _decode(self, found: Rows, request: ClaimRequest, now: int | None, key: bytes) -> list[Job]:
        """Decode the rows of ``claim.sql``. Quarantine those that can't be decoded."""
        jobs: list[Job] = []
        corrupt: list[bytes] = []
        errors: list[str] = []
        for row in found:
            try:
                jobs.append(rows.claimed_job(row, request.worker, key))
            except rows.Corrupt as error:
                corrupt.append(row[rows.KEY])
                errors.append(rows.corrupt_text(error))
        if corrupt:
            await self._database.fetch("quarantine", now, key, corrupt, errors)
        return jobs


Position = tuple[int, bytes]
"""Priority and id."""

START: Position = (-1, bytes(16))
LAST_ID = b"\xff" * 16

WASTED_BLOCKS = 100
"""Unneeded index blocks read by one claim, above which a hint is set. A block has about 100 entries."""

_JOBS_PER_BLOCK = 20
"""The fewest jobs in a block of the index, if the name of their queue is long."""

SHORTEST = 1.0
"""Seconds that a hint lasts; longer if the scan without one took long."""

SHARE = 20
"""Scans without a hint may take this part of the time."""


class ScanHints:
    """Where a claim starts its scan of a queue while the index of pending jobs is full of dead entries.

    The entry of a claimed job stays in the index until the next vacuum, or for as long as any transaction
    holds an old snapshot, and every claim would step over all of them again. A claim reports how many index
    blocks it read. When those are many more than it needed, the next claims of the queue start after the last
    claimed job.

    A hint would hide jobs that return to the queue or precede the others. It is therefore dropped when this
    process makes such a change or is notified of one, when a claim finds fewer jobs than it wanted, and when
    it expires (``SHORTEST``). A job that another process puts first waits until then at most. While few
    jobs were claimed since the last vacuum, there are no hints.
    """

    def __init__(self) -> None:
        self._hints: dict[str, tuple[Position, float]] = {}

    def positions(self, queues: Sequence[str]) -> list[Position]:
        """Return the position after which to scan each queue."""
        if not self._hints:
            return [START] * len(queues)
        now = SYSTEM.elapsed()
        for queue in queues:
            if queue in self._hints and self._hints[queue][1] <= now:
                del self._hints[queue]
        return [self._hints[queue][0] if queue in self._hints else START for queue in queues]

    def update(self, claimed: Sequence[Any], seconds: float) -> None:
        """Set or move hints by the rows of a claim, which took that long."""
        if not claimed:
            return
        wasteful = claimed[-1][-1] - len(claimed) // _JOBS_PER_BLOCK > WASTED_BLOCKS
        if not wasteful and not self._hints:
            return
        until = SYSTEM.elapsed() + max(SHORTEST, SHARE * seconds)
        last = {row[rows.QUEUE]: row for row in claimed}
        for queue, row in last.items():
            position = (row[rows.PRIORITY], row[rows.KEY])
            if queue in self._hints:
                self._hints[queue] = (position, self._hints[queue][1])
            elif wasteful:
                self._hints[queue] = (position, until)

    def job_pending(self, queue: str, position: Position) -> None:
        """Drop the hint of the queue if a job became pending before it."""
        hint = self._hints.get(queue)
        if hint is not None and position < hint[0]:
            del self._hints[queue]

    def drop(self, queues: Sequence[str]) -> bool:
        """Drop the hints of the queues. Return whether there was one."""
        dropped = [queue for queue in queues if self._hints.pop(queue, None) is not None]
        return bool(dropped)

    def drop_all(self) -> None:
        self._hints.clear()
