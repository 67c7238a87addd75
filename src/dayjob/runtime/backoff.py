"""Back-off: growing pauses between the tries of one operation."""

from __future__ import annotations

import asyncio

from dayjob.runtime import entropy
from dayjob.runtime.clock import Clock


class Backoff:
    """Each pause is twice the last, up to ``longest`` seconds. ``jitter`` spreads it by half to either side.

    ``reset`` starts again with the first pause, after a success.
    """

    def __init__(self, first: float, longest: float, *, jitter: bool = False) -> None:
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self._next = first

    def reset(self) -> None:
        self._next = self._first

    @property
    def pause(self) -> float:
        """The next pause in seconds, before jitter."""
        return self._next

    async def wait(self, clock: Clock, at_most: float | None = None) -> None:
        """Wait for the next pause, or for ``at_most`` seconds if that is shorter."""
        pause = self._next * (0.5 + entropy.fraction()) if self._jitter else self._next
        self._next = min(self._next * 2, self._longest)
        await clock.wait(asyncio.Event(), pause if at_most is None else min(pause, at_most))
