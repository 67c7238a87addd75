"""Bulk work that may take longer than a browser waits: it goes on, and the pages say how far it is."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from dayjob.runtime.clock import SYSTEM, Clock

_log = logging.getLogger("dayjob.dashboard")

Told = Callable[[int], None]

MOST = 4
"""How many may be under way at once."""

PATIENCE = 1.0
"""Seconds that a request waits for its work before it answers that it goes on."""

_REMEMBERED = 5


class Busy(Exception):
    """Enough is under way."""


class Chore:
    """One piece of bulk work."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done = 0
        self.ended = asyncio.Event()
        self.problem: str | None = None

    def told(self, done: int) -> None:
        self.done = done


class Chores:
    """Starts them, and knows the latest."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._running: dict[asyncio.Task[None], Chore] = {}
        self._latest: deque[Chore] = deque(maxlen=_REMEMBERED)

    @property
    def running(self) -> list[Chore]:
        return list(self._running.values())

    @property
    def failed(self) -> list[Chore]:
        return [chore for chore in self._latest if chore.problem is not None]

    async def start(
        self, what: str, work: Callable[[Told], Awaitable[int]], ended: Callable[[Chore], None]
    ) -> Chore:
        """Begin the work, and wait for a moment whether it ends; ``ended`` is called when it has."""
        if len(self._running) >= MOST:
            raise Busy
        chore = Chore(what)
        task = asyncio.ensure_future(self._run(chore, work, ended))
        self._running[task] = chore
        task.add_done_callback(self._running.pop)
        await self._clock.wait(chore.ended, PATIENCE)
        return chore

    async def _run(
        self, chore: Chore, work: Callable[[Told], Awaitable[int]], ended: Callable[[Chore], None]
    ) -> None:
        try:
            chore.done = await work(chore.told)
        except asyncio.CancelledError:
            chore.problem = "the dashboard was stopped"
            raise
        except Exception as error:
            chore.problem = f"{type(error).__name__}: {error}"
            _log.warning("%s ended early, after %d: %s", chore.what, chore.done, chore.problem)
        finally:
            self._latest.append(chore)
            chore.ended.set()
            ended(chore)

    async def stop(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
