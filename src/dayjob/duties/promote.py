"""Scheduled jobs become pending when they are due, and expired ones are cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dayjob.duties.short_commits import in_short_commits
from dayjob.engines.base import RetentionByQueue
from dayjob.model.durations import SECOND
from dayjob.runtime.signals import DUE, Topic

if TYPE_CHECKING:
    from dayjob.broker.storage import Storage


class Promote:
    """Sleeps until the next due time. An earlier arrival wakes it."""

    name = "promote"
    topics: tuple[Topic, ...] = (DUE,)

    def __init__(self, storage: Storage, retention: RetentionByQueue, interval: float) -> None:
        self._storage = storage
        self._retention = retention
        self._interval = interval

    async def run_once(self) -> float:
        due = await self.next_due()
        if due == 0:
            await self.promote()
            due = await self.next_due()
        return self._interval if due is None else min(due / SECOND, self._interval)

    async def next_due(self) -> int | None:
        """Return microseconds until the next job is due or expires; None if there is none."""
        storage = self._storage
        return await storage.read(lambda: storage.engine.next_due(storage.now()))

    async def promote(self) -> int:
        """Make due jobs pending and cancel expired ones. Return how many became pending."""
        storage, total = self._storage, 0

        async def some(limit: int) -> int:
            nonlocal total
            due, expired = await storage.write(
                lambda token: storage.engine.promote(limit, self._retention, storage.now(), token=token)
            )
            total += due
            return max(due, expired)

        await in_short_commits(some)
        return total
