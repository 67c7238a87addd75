"""Ways to catch a broker between two steps: its engine's verbs held up or failed, its clock's waits seen."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from dayjob import Broker
from dayjob.runtime.clock import Clock

BOUND = 20.0
"""Real seconds after which what should come is taken to be missing."""


class Gate:
    """Where whoever passes is held until it is opened; from then on it stays open."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def passed(self) -> None:
        self._reached.set()
        await self._opened.wait()

    async def reached(self) -> None:
        """Return when somebody is held at the gate."""
        async with asyncio.timeout(BOUND):
            await self._reached.wait()

    def open(self) -> None:
        self._opened.set()


class Stage:
    """One verb of a broker's engine, whose calls a test counts, holds up, and fails."""

    def __init__(self, broker: Broker, verb: str) -> None:
        self._engine: Any = broker._engine
        self._verb = getattr(self._engine, verb)
        setattr(self._engine, verb, self._call)
        self.calls: list[tuple[Any, ...]] = []
        self.failures: deque[Exception] = deque()
        """The next calls fail with these, before they do anything."""
        self.before: Gate | None = None
        self.after: Gate | None = None
        """Held after the commit, before the broker knows of it."""
        self.last: Callable[[], object] | None = None
        """Called just before the broker gets the answer."""

    async def _call(self, *arguments: Any, **named: Any) -> Any:
        self.calls.append(arguments)
        if self.before is not None:
            await self.before.passed()
        if self.failures:
            raise self.failures.popleft()
        answer = await self._verb(*arguments, **named)
        if self.after is not None:
            await self.after.passed()
        if self.last is not None:
            self.last()
        return answer

    @property
    def sizes(self) -> list[int]:
        """How many items each call had."""
        return [len(arguments[0]) for arguments in self.calls]


class ObservedClock:
    """Another clock, and a record of who waits on it for how long."""

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
        """For how long the next wait, in the order in which they began, was to last."""
        async with asyncio.timeout(BOUND):
            return await self._waits.get()

    @property
    def unseen(self) -> int:
        """How many waits began that were not asked for yet."""
        return self._waits.qsize()


async def turns(count: int = 20) -> None:
    """Let the event loop go round, often enough for whatever was going to happen without waiting."""
    for _ in range(count):
        turned: asyncio.Future[None] = asyncio.Future()
        asyncio.get_running_loop().call_soon(turned.set_result, None)
        await turned
