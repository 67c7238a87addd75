"""Waiting without sleeping: for turns of the loop, for conditions, for whoever waits on the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from dayjob.testing import ManualClock

T = TypeVar("T")

BOUND = 20.0
"""Real seconds after which a condition that should come is taken to be missing."""

LONG = 1000.0
"""How long tests wait on the injected clock; it passes only when a test advances that far."""


class WatchedClock(ManualClock):
    """A manual clock that tells when somebody began a ``LONG`` wait on it."""

    def __init__(self, start: datetime | None = None) -> None:
        super().__init__(start)
        self._waiting = 0
        self._began = asyncio.Event()

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        if timeout is None or timeout < LONG / 2:
            return await super().wait(event, timeout)
        self._waiting += 1
        self._began.set()
        try:
            return await super().wait(event, timeout)
        finally:
            self._waiting -= 1

    async def until_waiting(self, count: int = 1) -> None:
        """Return as soon as ``count`` waits are under way."""
        async with asyncio.timeout(BOUND):
            while self._waiting < count:
                self._began.clear()
                await self._began.wait()


async def turns(count: int) -> None:
    """Let the event loop go round that many times."""
    for _ in range(count):
        turned: asyncio.Future[None] = asyncio.Future()
        asyncio.get_running_loop().call_soon(turned.set_result, None)
        await turned


SAME_TURN = -1
"""For ``cancel_at``: after the tasks have begun, before anything that they began."""


async def cancel_at(turn: int, tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks that were just made: before their first step (0), in its turn, or some turns later."""
    if turn == SAME_TURN:
        for task in tasks:
            asyncio.get_running_loop().call_soon(task.cancel)
        return
    await turns(turn)
    for task in tasks:
        task.cancel()


async def within(awaitable: Awaitable[T]) -> T:
    """What it returns; it fails if that takes too long."""
    async with asyncio.timeout(BOUND):
        return await awaitable


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return once the condition, which asks the storage, holds."""
    async with asyncio.timeout(BOUND):
        while not await condition():
            await turns(1)
