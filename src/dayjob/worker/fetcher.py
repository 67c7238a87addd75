"""Claiming jobs for a worker: up to its free slots, through outages."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dayjob.broker import Broker
from dayjob.errors import EngineUnavailable
from dayjob.model.durations import Duration
from dayjob.model.job import Job
from dayjob.model.lifecycle import Transition
from dayjob.model.settlement import Settlement
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import Clock

_log = logging.getLogger("dayjob.worker")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
LONG = 3600.0
"""Seconds that an idle worker waits for a job before it claims again."""


class Fetcher:
    """Claims from the worker's queues, or from all."""

    def __init__(
        self, broker: Broker, clock: Clock, queues: Sequence[str], lease: Duration | None, worker: str
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._queues = tuple(queues)
        self._lease = lease
        self.worker = worker
        """The id to claim under. It changes when the worker is replaced."""
        self._claimed_as = worker

    async def fetch(self, limit: int, wait: float) -> list[Job]:
        """Return up to ``limit`` jobs, or none if none arrived within ``wait`` seconds.

        Without a wait, jobs that are due are promoted before the reply is empty.
        """
        backoff: Backoff | None = None
        while True:
            try:
                jobs = await self._claim(limit, wait)
                if wait == 0 and not jobs:
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
            return await self._broker.claim(self._queues, limit=limit, lease=lease, wait=wait, worker=worker)
        return await self._broker.claim_any(limit=limit, lease=lease, wait=wait, worker=worker)

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
