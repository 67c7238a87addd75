"""The loop that every duty runs in: do it, wait until it is next wanted or a signal comes, again.

Safe to stop twice or before it started. A duty that fails is logged and tried again after a growing
pause; it never ends the loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from dayjob.errors import Closed, EngineFenced
from dayjob.runtime.clock import Clock
from dayjob.runtime.signals import Signals, Topic

_log = logging.getLogger("dayjob.duties")

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class Duty(Protocol):
    """A chore. ``topics`` are the signals that call for it before its time."""

    name: str
    topics: tuple[Topic, ...]

    async def run_once(self) -> float | None:
        """Do what is to be done now; seconds until it is wanted again, or None to wait for a signal."""
        ...


class Service:
    """Runs one duty in the background while it is started."""

    def __init__(self, duty: Duty, signals: Signals, clock: Clock) -> None:
        self._duty = duty
        self._signals = signals
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"dayjob duty {self._duty.name}"
            )

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        with self._signals.listen(self._duty.topics) as event:
            while True:
                event.clear()
                try:
                    delay = await self._duty.run_once()
                except Closed:
                    return
                except EngineFenced as error:
                    _log.info("the %s duty stops: %s", self._duty.name, error)
                    return
                except Exception:
                    _log.exception("the %s duty failed; trying again in %.1f s", self._duty.name, pause)
                    await self._clock.wait(asyncio.Event(), pause)  # No signal cuts it short.
                    pause = min(pause * 2, _LONGEST_PAUSE)
                else:
                    pause = _FIRST_PAUSE
                    await self._clock.wait(event, delay)
