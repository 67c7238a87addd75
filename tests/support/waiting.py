"""Waiting without sleeping: for turns of the loop, for conditions, for waits on the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from dayjob.testing import ManualClock
from tests.support.bound import BOUND

T = TypeVar("T")


LONG = 1000.0
"""A timeout on the injected clock, which passes only if a test advances that far."""


class WatchedClock(ManualClock):
    """A manual clock that lists the waits on it."""

    def __init__(self, start: datetime | None = None) -> None:
        super().__init__(start)
        self._waits: list[tuple[float, asyncio.Event, asyncio.Task[Any] | None]] = []
        self._began = asyncio.Event()

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        end = float("inf") if timeout is None else self.elapsed() + timeout
        wait = (end, event, asyncio.current_task())
        self._waits.append(wait)
        self._began.set()
        try:
            return await super().wait(event, timeout)
        finally:
            self._waits.remove(wait)

    async def until_waiting(self, count: int = 1) -> None:
        """Wait until ``count`` waits with a ``LONG`` timeout are under way."""
        await self._until(lambda left: LONG / 2 < left < float("inf"), count)

    async def until_waiting_for(self, seconds: float) -> None:
        """Wait until a wait with exactly this timeout is under way, so that the work before it is done."""
        await self._until(lambda left: abs(left - seconds) < 0.001, 1)

    async def until_duties_wait(self) -> None:
        """Wait until the duties have done their work, so that none sees a jump of the clock during it."""

        def all_wait() -> bool:
            duties = {task for task in asyncio.all_tasks() if task.get_name().startswith("dayjob duty")}
            return duties <= {task for left, task in self._under_way() if left > 0}

        await self._until_holds(all_wait)

    async def _until(self, fits: Callable[[float], bool], count: int) -> None:
        await self._until_holds(lambda: sum(fits(left) for left, _ in self._under_way()) >= count)

    def _under_way(self) -> Iterator[tuple[float, asyncio.Task[Any] | None]]:
        """Yield the seconds that are left of each wait, and its task."""
        return ((end - self.elapsed(), task) for end, event, task in self._waits if not event.is_set())

    async def _until_holds(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND):
            while not condition():
                self._began.clear()
                await self._began.wait()


async def turns(count: int) -> None:
    """Let the event loop run that many turns."""
    for _ in range(count):
        turned = asyncio.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        await turned.wait()


SAME_TURN = -1
"""For ``cancel_at``: after the tasks have started, before the callbacks that they scheduled."""


async def cancel_at(turn: int, tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel new tasks: before their first step (0), in its turn, or some turns later."""
    if turn == SAME_TURN:
        for task in tasks:
            asyncio.get_running_loop().call_soon(task.cancel)
        return
    await turns(turn)
    for task in tasks:
        task.cancel()


async def with_timeout(awaitable: Awaitable[T]) -> T:
    """Return the result of the awaitable. Raise ``TimeoutError`` if that takes too long."""
    async with asyncio.timeout(BOUND):
        return await awaitable


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition, which reads the storage, holds."""
    async with asyncio.timeout(BOUND):
        while not await condition():
            await turns(1)
