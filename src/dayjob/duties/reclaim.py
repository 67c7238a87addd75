"""The claims of dead workers are ended, so that their jobs run again.

A worker is dead when its process is known to be gone, or after a silence of ``dead_after``. After an outage
every worker has been silent, so silence does not count until each had the time for a new heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dayjob.duties.short_commits import in_short_commits
from dayjob.engines.base import RetentionByQueue
from dayjob.runtime.clock import Clock
from dayjob.runtime.signals import Topic

if TYPE_CHECKING:
    from dayjob.broker.storage import Storage
    from dayjob.broker.worker_registry import WorkerRegistry

BEATS = 3
"""Heartbeats that a worker sends within the time after which it counts as dead."""

RECLAIM_INTERVAL = 1.0


class Reclaim:
    """Checks the registered workers at each interval."""

    name = "reclaim"
    topics: tuple[Topic, ...] = ()

    def __init__(
        self,
        storage: Storage,
        registry: WorkerRegistry,
        retention: RetentionByQueue,
        dead_after: float,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._registry = registry
        self._retention = retention
        self._interval = min(dead_after / BEATS, RECLAIM_INTERVAL)
        self._grace = dead_after / BEATS + self._interval
        self._outage = min(5 * self._interval, dead_after * (BEATS - 1) / BEATS)
        self._clock = clock
        self._steady_since: float | None = None
        self._checked = float("-inf")

    async def run_once(self) -> float:
        now = self._clock.elapsed()
        if now - self._checked > self._outage:
            self._steady_since = now
        self._checked = float("-inf")
        steady = self._steady_since is not None and now - self._steady_since >= self._grace
        await self.reclaim(trust_silence=steady)
        self._checked = now
        return self._interval

    async def reclaim(self, *, trust_silence: bool) -> int:
        """End the claims of dead workers and remove them from the registry. Return the number of claims."""
        dead = await self._registry.mark_dead(trust_silence)
        total = await self.reclaim_from([seen.member.id for seen in dead])
        for seen in dead:
            await self._registry.remove(seen)
        return total

    async def reclaim_from(self, workers: Sequence[str]) -> int:
        """End the claims of these workers. Return their number."""
        storage = self._storage
        if not workers:
            return 0
        return await in_short_commits(
            lambda limit: storage.write(
                lambda token: storage.engine.reclaim(
                    workers, limit, self._retention, storage.now(), token=token
                )
            )
        )
