"""The only module that reads a clock or sleeps.

``SystemClock`` is the clock of the host. Tests inject ``dayjob.testing.ManualClock`` and advance it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> int:
        """Return microseconds since 1970 in UTC."""
        ...

    def elapsed(self) -> float:
        """Return seconds of a monotonic clock with an arbitrary start."""
        ...

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        """Wait for the event. Return whether it was set before the timeout."""
        ...


class SystemClock:
    """The clocks of the host."""

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
    """Let the event loop run the callbacks that are ready."""
    await asyncio.sleep(0)


async def set_or_done(event: asyncio.Event, task: asyncio.Future[Any]) -> None:
    """Wait until the event is set or the task is done."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def block(seconds: float) -> None:
    """Block the calling thread. Never call it on an event loop."""
    time.sleep(seconds)
