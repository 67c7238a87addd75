"""The loop that runs a duty: run it, wait for its delay or a signal, run it again.

Stopping is safe at any time: twice, or before the start. A duty that fails is logged and repeated after a
growing pause; a failure never ends the loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from dayjob.errors import Closed, EngineFenced, EngineUnavailable
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import Clock
from dayjob.runtime.signals import Signals, Topic

_log = logging.getLogger("dayjob.duties")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class Duty(Protocol):
    """Background work. A signal on one of ``topics`` runs it before its delay is over."""

    name: str
    topics: tuple[Topic, ...] = ()

    async def run_once(self) -> float | None:
        """Do the work that is due. Return seconds until the next run, or None to wait for a signal."""
        ...


class Service:
    """Runs one duty in the background while it is started."""

    def __init__(self, duty: Duty, signals: Signals, clock: Clock) -> None:
        self._duty = duty
        self._signals = signals
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        """Not ``task.cancelling()``, which is also true while the timeout of a wait ends it."""

    def start(self) -> None:
        if self._task is None:
            self._cancelled = False
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"dayjob duty {self._duty.name}"
            )

    def cancel(self) -> None:
        """Start no further run. ``stop`` waits for the end."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def stop(self) -> None:
        self.cancel()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait({task})

    async def _run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
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
                except Exception as error:
                    outage = isinstance(error, EngineUnavailable)
                    _log.error(
                        "the %s duty failed; next try in %.1f s: %s", self._duty.name, backoff.pause, error,
                        exc_info=not outage,
                    )  # fmt: skip
                    await backoff.wait(self._clock)  # No signal cuts it short.
                else:
                    backoff.reset()
                    await self._clock.wait(event, delay)
