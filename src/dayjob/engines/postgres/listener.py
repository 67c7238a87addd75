"""Hearing of what other processes did: one connection that listens, and looks now and then where it can't.

It starts when somebody begins to wait. When its connection breaks, whoever waits looks at short
intervals until it listens again, and once more then, for whatever happened in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dayjob.engines.postgres.place import Place
from dayjob.engines.postgres.pool import Connection, connect
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import Signals

_log = logging.getLogger("dayjob.engines.postgres")

CHECK = 5.0
"""Seconds between checks that the connection lives; a look then also finds what was never announced."""

_LONGEST_PAUSE = 5.0


class Listener:
    """Listens on the event loop on which it was started; ``heard`` gets each message."""

    def __init__(self, place: Place, signals: Signals, heard: Callable[[str], None]) -> None:
        self._place = place
        self._signals = signals
        self._heard = heard
        self._task: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    def start(self) -> None:
        """Start, if it has not been started."""
        if self._task is None:
            work = self._poll if self._place.pgbouncer else self._listen
            self._task = asyncio.get_running_loop().create_task(work(), name="dayjob listener")

    async def ready(self) -> None:
        """Return when it listens, or polls. A look before that might miss what happens right after it."""
        if self._task is not None and not self._begun.is_set():
            await self._begun.wait()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _poll(self) -> None:
        self._begun.set()
        while True:
            await SYSTEM.wait(asyncio.Event(), self._place.poll)
            self._signals.publish_all()

    async def _listen(self) -> None:
        pause = self._place.poll / 4
        told = False
        while True:
            try:
                await self._listen_once()
                pause, told = self._place.poll / 4, False
            except Exception as error:
                if not told:
                    told = True
                    _log.warning("%s: polling until notifications come again: %r", self._place.url, error)
            self._begun.set()
            self._signals.publish_all()
            await SYSTEM.wait(asyncio.Event(), pause)
            self._signals.publish_all()
            pause = min(pause * 2, self._place.poll, _LONGEST_PAUSE)

    async def _listen_once(self) -> None:
        """Listen until the connection breaks."""
        connection = await connect(self._place, self._place.timeout)
        broken = asyncio.Event()
        connection.add_termination_listener(lambda *_: broken.set())
        try:
            await connection.add_listener(self._place.channel, self._receive)
            if self._begun.is_set():  # Whoever looked meanwhile has heard nothing.
                self._signals.publish_all()
            self._begun.set()
            _log.debug("%s: notifications come", self._place.url)
            while not await SYSTEM.wait(broken, CHECK):
                await connection.fetchval("SELECT 1", timeout=CHECK)
                self._signals.publish_all()
        finally:
            with suppress(Exception):
                connection.terminate()

    def _receive(self, connection: Connection, pid: int, channel: str, message: Any) -> None:
        self._heard(str(message))
