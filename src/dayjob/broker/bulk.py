"""Operator commands on many jobs, in commits of ``MAX_BATCH``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from dayjob.duties.short_commits import MAX_BATCH

OnProgress = Callable[[int], None]
"""Gets the number of jobs changed so far, after each commit."""


async def in_chunks(
    keys: Sequence[bytes], change: Callable[[Sequence[bytes]], Awaitable[int]], on_progress: OnProgress | None
) -> int:
    """Change the jobs with these keys. Return how many were changed."""
    total = 0
    for start in range(0, len(keys), MAX_BATCH):
        total += await change(keys[start : start + MAX_BATCH])
        if on_progress is not None:
            on_progress(total)
    return total


async def up_to(left: int, change: Callable[[int], Awaitable[int]], on_progress: OnProgress | None) -> int:
    """Change up to so many jobs, while there are any. Return how many were changed.

    Jobs that arrive meanwhile don't prolong it.
    """
    total = 0
    while left > 0:
        changed = await change(min(left, MAX_BATCH))
        if changed == 0:
            break
        total += changed
        left -= changed
        if on_progress is not None:
            on_progress(total)
    return total
