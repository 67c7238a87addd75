"""Receives notifications on one connection, and falls back to polling while it can't.

The listener starts with the first wait. When its connection breaks, waiting callers are woken at short
intervals until it listens again, and once more then, for changes made in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dayjob.engines.postgres.pool import Connection, connect
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import Signals

_log = logging.getLogger("dayjob.engines.postgres")

CHECK = 5.0
"""Seconds between checks of the connection. Each also wakes all waits, for missed notifications."""

_LONGEST_PAUSE = 5.0


class Listener:
    """Listens on the event loop on which it was started. ``on_message`` gets each message."""

    def __init__(
        self, settings: PostgresSettings, signals: Signals, on_message: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._signals = signals
        self._on_message = on_message
        self._task: asyncio.Task[None] | None = None
        self._started = asyncio.Event()

    def start(self) -> None:
        """Start, unless it is started already."""
        if self._task is None:
            loop = self._poll if self._settings.pgbouncer else self._listen
            self._task = asyncio.get_running_loop().create_task(loop(), name="dayjob listener")

    async def ready(self) -> None:
        """Return when it listens or polls. A read before that might miss a change right after it."""
        if self._task is not None and not self._started.is_set():
            await self._started.wait()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _poll(self) -> None:
        self._started.set()
        while True:
            await SYSTEM.wait(asyncio.Event(), self._settings.poll)
            self._signals.publish_all()

    async def _listen(self) -> None:
        poll = self._settings.poll
        longest = min(poll, _LONGEST_PAUSE)
        backoff = Backoff(min(poll / 4, longest), longest)
        logged = False
        while True:
            try:
                await self._listen_once()
                backoff.reset()
                logged = False
            except Exception as error:
                if not logged:
                    logged = True
                    _log.warning(
                        "%s: polling until notifications arrive again: %r", self._settings.url, error
                    )
            self._started.set()
            self._signals.publish_all()
            await backoff.wait(SYSTEM)
            self._signals.publish_all()

    async def _listen_once(self) -> None:
        """Listen until the connection breaks."""
        connection = await connect(self._settings, self._settings.timeout)
        broken = asyncio.Event()
        connection.add_termination_listener(lambda *_: broken.set())
        try:
            await connection.add_listener(self._settings.channel, self._receive)
            if self._started.is_set():  # Callers that read in the meantime got no notification.
                self._signals.publish_all()
            self._started.set()
            _log.debug("%s: listening for notifications", self._settings.url)
            while not await SYSTEM.wait(broken, CHECK):
                await connection.fetchval("SELECT 1", timeout=CHECK)
                self._signals.publish_all()
        finally:
            with suppress(Exception):
                connection.terminate()

    def _receive(self, connection: Connection, pid: int, channel: str, message: Any) -> None:
        self._on_message(str(message))
