"""The claims that wait in this process.

A job reaches a waiting claim in three ways. A signal wakes the claim, and it claims again. The storage
hands a job off to it, through ``ClaimRequest.waiting``. An insert in this process claims for it, through
``insert_and_claim``, so that the claim has the job after one call of the engine instead of two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from dayjob.engines.base import ClaimRequest, Insertion, WaitingClaim
from dayjob.model.job import Job
from dayjob.runtime.clock import Clock


class WaitingClaims:
    """The waiting claims by queue, for inserts in this process."""

    def __init__(self) -> None:
        self._by_queue: dict[str, dict[WaitingClaim, None]] = {}

    async def wait(self, claim: WaitingClaim, request: ClaimRequest, clock: Clock, seconds: float) -> None:
        """Wait for the claim's event or the time, and for the end of a hand-off that is under way."""
        claim.request = request
        for queue, _ in request.queues:
            self._by_queue.setdefault(queue, {})[claim] = None
        try:
            await clock.wait(claim.event, seconds)
            if claim.handoff is not None:
                await asyncio.shield(claim.handoff)
        finally:
            self._remove(claim)

    def begin_handoff(self, jobs: Iterable[Insertion]) -> list[WaitingClaim]:
        """Return the claims that these jobs may serve. ``end_handoff`` must follow for each."""
        if not self._by_queue:
            return []
        queues = {job.queue for job in jobs if job.delay is None and job.run_at is None}
        claims = list(dict.fromkeys(claim for queue in queues for claim in self._by_queue.get(queue, ())))
        for claim in claims:
            self._remove(claim)
            claim.handoff = asyncio.get_running_loop().create_future()
        return claims

    @staticmethod
    def end_handoff(claim: WaitingClaim, jobs: Sequence[Job]) -> None:
        for job in jobs:
            claim.deliver(job)
        assert claim.handoff is not None
        claim.handoff.set_result(None)
        claim.handoff = None
        claim.event.set()

    def _remove(self, claim: WaitingClaim) -> None:
        assert claim.request is not None
        for queue, _ in claim.request.queues:
            waiting = self._by_queue.get(queue)
            if waiting is not None:
                waiting.pop(claim, None)
                if not waiting:
                    del self._by_queue[queue]
