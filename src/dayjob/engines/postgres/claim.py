"""Claims jobs: one statement for equal requests, with scan hints. Corrupt records are quarantined.

A claim stores no reply: its jobs carry its key. A repeated claim returns the jobs that the first try took.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from dayjob.engines.base import BATCH, BATCH_BYTES, MOST_BLOCKED, ClaimRequest, Token, Transient
from dayjob.engines.postgres import rows, scan_hints
from dayjob.engines.postgres.database import Connection, Database, after_commit, token_key
from dayjob.engines.postgres.notifier import Notifier
from dayjob.engines.postgres.rows import Rows
from dayjob.engines.postgres.scan_hints import ScanHints
from dayjob.engines.record import Corrupt, corrupt_text
from dayjob.errors import EngineUnavailable
from dayjob.model.job import EndedJob, Job
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import queue_topic

_log = logging.getLogger("dayjob.engines.postgres")

THOROUGH = 1.0
"""Seconds after which a claim considers all jobs again.

The xmax of a row that several transactions locked together names no transaction. Such a job may be skipped.
"""

_ENOUGH_BYTES = BATCH_BYTES // 2
"""Payload bytes after which a claim returns, even with fewer jobs than its limit."""

SEARCH_INTERVAL = 1.0
"""Seconds between searches of the parts of the index that hints leave out; longer if a search takes long."""

RETRY_LOCKED = 0.25
"""Seconds until the next claim from a queue with limits whose jobs other transactions had locked in part."""

_LOCKED = "0 locked "
"""How ``claim_limited`` names such a queue."""

SEARCH_SHARE = 50
"""Searches may take this part of the time of one connection."""


class Claimer:
    """Serves the claims of one engine."""

    def __init__(
        self, database: Database, hints: ScanHints, notifier: Notifier, quarantined: deque[EndedJob]
    ) -> None:
        self._database = database
        self._hints = hints
        self._notifier = notifier
        self._limited: set[str] = set()
        """The queues that ``claim_limited`` claims from."""
        self._quarantined = quarantined
        self._hinted = asyncio.Lock()
        """Held from a look for late jobs until its claim has ended: no other look comes in between."""
        self._searching: asyncio.Task[None] | None = None
        self._retries: dict[str, asyncio.TimerHandle] = {}
        """The next look at each queue with jobs that other transactions had locked."""
        self._thorough_at = 0.0
        self._most_rows = BATCH
        """The most rows that a statement locks. Few while payloads are large, as most would not fit."""

    async def close(self) -> None:
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()
        searching, self._searching = self._searching, None
        if searching is not None:
            searching.cancel()
            await asyncio.wait({searching})

    async def claim(
        self, requests: Sequence[ClaimRequest], token: Token | None, part: int = 0
    ) -> list[list[Job]]:
        """Claim for each request. Equal requests share a commit. ``part`` is the number of the first commit.

        A repetition looks for the jobs of all requests.
        """
        repeated = token is not None and token.repeated
        claimed: list[list[Job]] = [[] for _ in requests]
        equal: dict[Any, list[int]] = {}
        for number, request in enumerate(requests):
            equal.setdefault((request.queues, request.worker), []).append(number)
        try:
            for numbers in equal.values():
                while numbers:
                    key = token_key(token, part + numbers[0])
                    limit = min(sum(requests[number].limit for number in numbers), BATCH)
                    shared = replace(requests[numbers[0]], limit=limit)
                    jobs = await self._claim(shared, key, repeated=repeated)
                    if not jobs:
                        break
                    while jobs and numbers:
                        number = numbers.pop(0)
                        wanted = requests[number].limit
                        claimed[number], jobs = jobs[:wanted], jobs[wanted:]
        except Transient as error:
            raise after_commit(error) from error.__cause__
        self._database.count_row()
        return claimed

    async def _claim(self, request: ClaimRequest, key: bytes, *, repeated: bool) -> list[Job]:
        """Return jobs up to the limit or ``BATCH_BYTES``, unless there are no more.

        Corrupt ones are replaced by others. ``key`` names the claim. If it is ``repeated``, return the jobs
        of the first try, if there are any.
        """
        if repeated and (found := await self._find(request, key)):
            return await self._decode(found, request, key)
        jobs: list[Job] = []
        size = 0
        while len(jobs) < request.limit:
            limit = min(request.limit - len(jobs), self._most_rows)
            found = await self._take(request, limit, BATCH_BYTES - size, key)
            jobs += await self._decode(found, request, key)
            if len(jobs) == request.limit:
                break
            size += sum(len(row[rows.PAYLOAD]) for row in found)
            if size > _ENOUGH_BYTES:
                self._most_rows = max(2 * len(found), 1)
                break
            if len(found) < limit:
                break
            self._most_rows = min(2 * self._most_rows, BATCH)
        # A job whose lease ended between two statements may be claimed by both: its last claim counts.
        return list({job.key: job for job in jobs}.values())

    async def _take(self, request: ClaimRequest, limit: int, size: int, key: bytes) -> Rows:
        queues = [queue for queue, _ in request.queues]
        leases = [lease for _, lease in request.queues]
        thorough = SYSTEM.elapsed() >= self._thorough_at
        if thorough:
            self._thorough_at = SYSTEM.elapsed() + THOROUGH

        async def take() -> Rows:
            ranges, after_priorities, after_ids, until_priorities, until_ids = self._hints.ranges(queues)
            found = await self._database.fetch(
                "claim", self._database.now(), queues, leases, after_priorities, after_ids, limit,
                request.worker, key, thorough, size, ranges, until_priorities, until_ids,
            )  # fmt: skip
            self._limited.update(found[0][-2])
            return found if found[0][rows.KEY] is not None else []

        if not self._limited.isdisjoint(queues):
            return await self._take_limited(request, limit, size, key)
        if hinted := self._hints.among(queues):
            async with self._hinted:
                snapshots = [hints.snapshot for hints in hinted.values()]
                self._hints.looked(
                    await self._database.fetch("became_pending", list(hinted), snapshots, scan_hints.MAX_LATE)
                )
                found = await take()
                if self._limited.isdisjoint(queues):
                    self._hints.claimed(queues, found)
        else:
            found = await take()
        if not self._limited.isdisjoint(queues):
            return await self._take_limited(request, limit, size, key)
        self._hints.detect_waste(queues, found)
        if self._hints and self._searching is None:
            self._searching = asyncio.get_running_loop().create_task(self._search())
        return found

    async def _take_limited(self, request: ClaimRequest, limit: int, size: int, key: bytes) -> Rows:
        found = await self._database.fetch(
            "claim_limited", self._database.now(), [queue for queue, _ in request.queues],
            [lease for _, lease in request.queues], limit, request.worker, key, size, MOST_BLOCKED,
            scan_hints.WASTED_BLOCKS, scan_hints.GRACE, scan_hints.FULL_SCAN_INTERVAL, scan_hints.MAX_LATE,
        )  # fmt: skip
        texts = [row[rows.TASK] for row in found if row[rows.KEY] is None]
        self._notifier.publish_reply([text for text in texts if not text.startswith(_LOCKED)])
        self._claim_later({text.removeprefix(_LOCKED) for text in texts if text.startswith(_LOCKED)})
        return [row for row in found if row[rows.KEY] is not None]

    def _claim_later(self, queues: set[str]) -> None:
        """Wake the claims of these queues in this process after ``RETRY_LOCKED``: a rollback does not."""
        loop = asyncio.get_running_loop()
        for queue in queues - self._retries.keys():
            self._retries[queue] = loop.call_later(RETRY_LOCKED, self._retry, queue)

    def _retry(self, queue: str) -> None:
        del self._retries[queue]
        self._notifier.signals.publish([queue_topic(queue)])

    async def _search(self) -> None:
        """Search the parts that claims leave out, while there are any."""
        seconds = 0.0
        try:
            while self._hints:
                await SYSTEM.wait(asyncio.Event(), max(SEARCH_INTERVAL, SEARCH_SHARE * seconds))
                queues, priorities, ids = self._hints.hidden()
                if not queues:
                    continue
                started = SYSTEM.elapsed()
                try:
                    found = await self._database.fetch(
                        "overlooked", queues, priorities, ids, scan_hints.MAX_LATE
                    )
                except EngineUnavailable as error:
                    _log.debug("the parts that claims leave out were not searched: %s", error)
                    continue
                finally:
                    seconds = SYSTEM.elapsed() - started
                if found[0][-1] <= scan_hints.WASTED_BLOCKS:
                    self._hints.drop_all()  # A vacuum has removed the dead entries.
                elif found[0][0] is not None:
                    self._hints.overlooked([row[:-1] for row in found])
                    self._notifier.signals.publish({queue_topic(row[0]) for row in found})
        finally:
            self._searching = None

    async def _find(self, request: ClaimRequest, key: bytes) -> Rows:
        """Return the jobs of a claim, after it has ended."""
        queues = [queue for queue, _ in request.queues]

        async def find(connection: Connection) -> Rows:
            await connection.execute(self._database.statements["await_claim"], key)
            return await connection.fetch(self._database.statements["claimed"], queues, [key])

        return await self._database.read(find)

    async def _decode(self, found: Rows, request: ClaimRequest, key: bytes) -> list[Job]:
        """Decode the rows of ``claim.sql``. Quarantine those that can't be decoded."""
        jobs: list[Job] = []
        corrupt: list[bytes] = []
        errors: list[str] = []
        ended: list[EndedJob] = []
        for row in found:
            try:
                jobs.append(rows.claimed_job(row, request.worker, key))
            except Corrupt as error:
                text = corrupt_text(str(error))
                corrupt.append(row[rows.KEY])
                errors.append(text)
                ended.append(rows.quarantined_job(row, text))
        if corrupt:
            [[topics]] = await self._database.fetch("quarantine", self._database.now(), key, corrupt, errors)
            self._notifier.publish_reply(topics)
            self._quarantined.extend(ended)
        return jobs
