"""The one home of time: everything that reads a clock or waits goes through here.

``SystemClock`` is the host's. Tests inject ``dayjob.testing.ManualClock`` and move it by hand.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits for it."""

    def now(self) -> int:
        """Microseconds since 1970 in UTC."""
        ...

    def elapsed(self) -> float:
        """Seconds on a clock that never goes back, from an arbitrary start."""
        ...

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        """Wait until the event is set (true) or the seconds have passed (false)."""
        ...


class SystemClock:
    """The host's clocks."""

    def now(self) -> int:
        return time.time_ns() // 1000

    elapsed = staticmethod(time.monotonic)

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        if event.is_set():
            return True
        if timeout is not None and timeout <= 0:
            return False
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True


SYSTEM = SystemClock()


async def yield_to_loop() -> None:
    """Let what is ready on the event loop have its turn first."""
    await asyncio.sleep(0)


def block(seconds: float) -> None:
    """Hold up the calling thread; never to be called on an event loop."""
    time.sleep(seconds)
