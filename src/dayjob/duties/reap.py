"""Claims whose lease has expired or whose process is gone are ended, so that their jobs run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dayjob.duties.short_commits import in_short_commits
from dayjob.engines.base import RetentionByQueue
from dayjob.runtime.signals import Topic

if TYPE_CHECKING:
    from dayjob.broker.storage import Storage

ORPHAN_INTERVAL = 1.0
"""Seconds between checks for claims of dead processes, where the engine knows them."""


class Reap:
    """Ends such claims at each interval."""

    name = "reap"
    topics: tuple[Topic, ...] = ()

    def __init__(self, storage: Storage, retention: RetentionByQueue, interval: float) -> None:
        orphans = storage.engine.capabilities.knows_orphans
        self._storage = storage
        self._retention = retention
        self._interval = min(interval, ORPHAN_INTERVAL) if orphans else interval

    async def run_once(self) -> float:
        await self.reap()
        return self._interval

    async def reap(self) -> int:
        """End expired and orphaned claims. Return their number."""
        storage = self._storage
        return await in_short_commits(
            lambda limit: storage.write(
                lambda token: storage.engine.reap(limit, self._retention, storage.now(), token=token)
            )
        )
