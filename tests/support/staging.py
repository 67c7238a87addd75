"""Control over a broker between two steps: engine verbs that a test holds or fails, and recorded waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from dayjob import Broker
from dayjob.runtime.clock import Clock
from tests.support.bound import BOUND


class Gate:
    """Holds every task that passes until it is opened. From then on it stays open."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def passed(self) -> None:
        self._reached.set()
        await self._opened.wait()

    async def reached(self) -> None:
        """Return when a task is held at the gate."""
        async with asyncio.timeout(BOUND):
            await self._reached.wait()

    def open(self) -> None:
        self._opened.set()


class Stage:
    """One verb of a broker's engine. A test counts, holds and fails its calls."""

    def __init__(self, broker: Broker, verb: str) -> None:
        self._engine: Any = broker._engine
        self._verb = getattr(self._engine, verb)
        setattr(self._engine, verb, self._call)
        self.calls: list[tuple[Any, ...]] = []
        self.failures: deque[Exception] = deque()
        """The next calls fail with these, before they do anything."""
        self.before: Gate | None = None
        self.after: Gate | None = None
        """Holds after the commit, before the broker gets the reply."""
        self.last: Callable[[], object] | None = None
        """Called just before the broker gets the reply."""

    async def _call(self, *arguments: Any, **named: Any) -> Any:
        self.calls.append(arguments)
        if self.before is not None:
            await self.before.passed()
        if self.failures:
            raise self.failures.popleft()
        reply = await self._verb(*arguments, **named)
        if self.after is not None:
            await self.after.passed()
        if self.last is not None:
            self.last()
        return reply

    @property
    def sizes(self) -> list[int]:
        """The number of items of each call."""
        return [len(arguments[0]) for arguments in self.calls]


class ObservedClock:
    """Another clock, with a record of the waits on it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: asyncio.Queue[float | None] = asyncio.Queue()

    def now(self) -> int:
        return self._clock.now()

    def elapsed(self) -> float:
        return self._clock.elapsed()

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        self._waits.put_nowait(timeout)
        return await self._clock.wait(event, timeout)

    async def next_wait(self) -> float | None:
        """Return the timeout of the next wait, in the order in which they began."""
        async with asyncio.timeout(BOUND):
            return await self._waits.get()

    @property
    def unseen(self) -> int:
        """The number of waits that ``next_wait`` has not returned yet."""
        return self._waits.qsize()


async def turns(count: int = 20) -> None:
    """Run the event loop often enough for everything that happens without waiting."""
    for _ in range(count):
        turned: asyncio.Future[None] = asyncio.Future()
        asyncio.get_running_loop().call_soon(turned.set_result, None)
        await turned
