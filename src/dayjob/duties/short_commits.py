"""Bulk work in short commits, so that claims and settlements get their turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dayjob.runtime.clock import SYSTEM

MAX_BATCH = 1000
"""The largest number of jobs that a duty or an operator's command changes in one commit."""

MIN_BATCH = 100

COMMIT_TIME = 0.004
"""Seconds that a commit should take. The batch size follows from it."""

_SHORTEST_PAUSE = 0.001


async def in_short_commits(work: Callable[[int], Awaitable[int]], pause: int = 1) -> int:
    """Call the work with a limit until it changes fewer jobs than that. Return the number of all.

    After each commit, pause for ``pause`` times as long as it took.
    """
    total, limit = 0, MIN_BATCH
    while True:
        started = SYSTEM.elapsed()
        changed = await work(limit)
        took = SYSTEM.elapsed() - started
        total += changed
        if changed < limit:
            return total
        fitting = round(limit * COMMIT_TIME / max(took, COMMIT_TIME / 2))  # At most twice the last.
        limit = min(max(fitting, MIN_BATCH), MAX_BATCH)
        await SYSTEM.wait(asyncio.Event(), max(pause * took, _SHORTEST_PAUSE))
