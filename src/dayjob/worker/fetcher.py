"""Claiming jobs for a worker: up to its free slots, and fewer if claimed jobs could not begin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from dayjob.broker import Broker
from dayjob.errors import EngineUnavailable
from dayjob.model.durations import Duration
from dayjob.model.job import Job
from dayjob.model.lifecycle import Transition
from dayjob.model.settlement import Settlement
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM, Clock

_log = logging.getLogger("dayjob.worker")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
LONG = 3600.0
"""Seconds that an idle worker waits for a job before it claims again."""

REST = 0.1
"""Seconds without claims after jobs were given back. Other workers get them first."""


class QueueOrder:
    """With weights, each claim begins with another queue, as often as its weight (smooth round robin)."""

    def __init__(self, queues: Sequence[str], weights: Mapping[str, int] | None = None) -> None:
        self.queues = tuple(queues)
        self._weights = dict(weights or {})
        self._credits = dict.fromkeys(self._weights, 0)

    def next(self) -> tuple[str, ...]:
        if not self._weights:
            return self.queues
        for queue, weight in self._weights.items():
            self._credits[queue] += weight
        order = sorted(self._credits, key=self._credits.__getitem__, reverse=True)
        self._credits[order[0]] -= sum(self._weights.values())
        return tuple(order)


class Fetcher:
    """Claims from the worker's queues, or from all."""

    def __init__(
        self, broker: Broker, clock: Clock, order: QueueOrder, lease: Duration | None, worker: str
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._order = order
        self._queues = order.queues
        self._last_queue = ""
        self._lease = lease
        self.worker = worker
        """The id to claim under. It changes when the worker is replaced."""
        self._claimed_as = worker
        self.backlog = False
        """Whether the last claim returned as many jobs as it asked for."""
        self._max_window = self._window = broker.capabilities.claim_batch
        """The most jobs to claim at once. It shrinks when claimed jobs can't begin, and grows again."""
        self._rest_until = 0.0
        self._claiming: asyncio.Timeout | None = None
        self.left_out: Collection[str] = ()
        """The queues that the claim under way leaves out."""

    def serves_others(self, queues: Collection[str]) -> bool:
        """Return whether the worker has queues besides these."""
        return any(queue not in queues for queue in self._queues)

    async def fetch(
        self, limit: int, wait: float, *, promote: bool = False, leave_out: Collection[str] = ()
    ) -> list[Job]:
        """Return up to ``limit`` jobs, or none if none arrived within ``wait`` seconds or before a rest.

        With ``promote``, jobs that are due are promoted before the reply is empty.
        """
        if (rest := self._rest_until - SYSTEM.elapsed()) > 0:
            await SYSTEM.wait(asyncio.Event(), rest)
        limit = min(limit, self._window)
        self.left_out = leave_out
        self._claiming = timeout = asyncio.timeout(None)
        try:
            async with timeout:
                jobs = await self._fetch(limit, wait, promote)
        except TimeoutError:
            if not timeout.expired():
                raise
            jobs = []
        finally:
            self._claiming = None
            self.left_out = ()
        self.backlog = len(jobs) == limit
        return jobs

    async def _fetch(self, limit: int, wait: float, promote: bool) -> list[Job]:
        backoff: Backoff | None = None
        while True:
            try:
                jobs = await self._claim(limit, wait)
                if promote and not jobs:
                    await self._broker.promote()
                    return await self._claim(limit, wait)
                return jobs
            except EngineUnavailable as error:
                backoff = backoff or Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                _log.warning("no jobs can be claimed; next try in %.1f s: %s", backoff.pause, error)
                await backoff.wait(self._clock)

    async def _claim(self, limit: int, wait: float) -> list[Job]:
        worker, lease = self.worker, self._lease
        self._claimed_as = worker
        if self._queues:
            queues = self._order.next()
            if self.left_out:
                queues = tuple(queue for queue in queues if queue not in self.left_out)
            return await self._broker.claim(queues, limit=limit, lease=lease, wait=wait, worker=worker)
        jobs = await self._broker.claim_any(
            limit=limit, lease=lease, wait=wait, worker=worker, after=self._last_queue
        )
        if jobs:
            self._last_queue = jobs[0].queue
        return jobs

    def resize(self, claimed: int, can_begin: int) -> None:
        """Limit the next claims to as many jobs as could begin, or double that limit if all could."""
        self._window = min(2 * self._window, self._max_window) if can_begin == claimed else max(can_begin, 1)

    def rest(self) -> None:
        """Claim nothing for a moment, and less from then on: jobs are given back."""
        self._window = max(self._window // 2, 1)
        self._rest_until = SYSTEM.elapsed() + REST
        self.interrupt()

    def interrupt(self) -> None:
        """End the claim under way without jobs."""
        if self._claiming is not None:
            self._claiming.reschedule(0)
            self._claiming = None

    @property
    def replaced(self) -> bool:
        """Whether the last jobs were claimed for a worker that has been declared dead meanwhile.

        Check it right before the jobs are accepted: their claims may be lost without any signal.
        """
        return self._claimed_as != self.worker

    async def give_back(self, jobs: Sequence[Job]) -> None:
        """Release jobs that this worker will not run, through outages: their runs must not count."""
        backoff: Backoff | None = None
        while True:
            try:
                await self._broker.settle_many([Settlement(job, Transition.RELEASE) for job in jobs])
                return
            except EngineUnavailable as error:
                backoff = backoff or Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                _log.warning(
                    "%d jobs can't be released; next try in %.1f s: %s", len(jobs), backoff.pause, error
                )
                await backoff.wait(self._clock)
