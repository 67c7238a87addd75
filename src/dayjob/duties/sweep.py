"""Finished jobs are removed when their retention is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dayjob.duties.short_commits import in_short_commits
from dayjob.runtime.signals import Topic

if TYPE_CHECKING:
    from dayjob.broker.storage import Storage

SWEEP_PAUSE = 3
"""A sweep pauses for so many times as long as it works: nothing waits for it."""


class Sweep:
    """Removes such jobs at each interval."""

    name = "sweep"
    topics: tuple[Topic, ...] = ()

    def __init__(self, storage: Storage, interval: float) -> None:
        self._storage = storage
        self._interval = interval

    async def run_once(self) -> float:
        await self.sweep()
        return self._interval

    async def sweep(self) -> int:
        """Remove the jobs whose retention is over. Return their number."""
        storage = self._storage
        return await in_short_commits(
            lambda limit: storage.write(
                lambda token: storage.engine.sweep(limit, storage.now(), token=token)
            ),
            SWEEP_PAUSE,
        )
