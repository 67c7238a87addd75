"""Wake-ups from the server: one subscribed connection, opened when somebody first listens.

Whoever looks before a wait awaits ``listen`` first, so that no change falls between the two. That somebody
listens for cancels is no reason by itself, since every broker does: it becomes one with the first claim.

While it is down everybody is woken now and then, to look for themselves, and once more when it is up again:
what was told meanwhile is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from dayjob.engines.redis.link import Link, drop
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import CANCEL, DUE, Signals, Topic, documents_topic, job_topic, queue_topic

_log = logging.getLogger("dayjob.redis")

POLL_INTERVAL = 0.5
"""Seconds between looks while the server can't tell us of changes."""

SILENCE = 15.0
"""Seconds without a word after which the server is asked whether it is still there."""


class News:
    """Listens while it is open, and publishes what it hears; ``hear`` gets what comes for this client."""

    def __init__(
        self, link: Link, signals: Signals, hand_overs: bytes, hear: Callable[[bytes], None]
    ) -> None:
        self._hand_overs = hand_overs
        self._hear = hear
        self._link = link
        self._signals = signals
        self._task: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._heard = False
        self._wanted = False

    def notice(self, topics: Sequence[Topic]) -> None:
        """Somebody begins to listen to these."""
        self._wanted = self._wanted or any(topic != CANCEL for topic in topics)

    async def listen(self, *, for_claims: bool = False) -> None:
        """Return when changes are told of from now on, or polled for; at once if nobody wants to know."""
        self._wanted = self._wanted or for_claims
        if not self._wanted:
            return
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="dayjob redis news")
        if not self._begun.is_set():
            await self._begun.wait()

    async def close(self) -> None:
        task, self._task = self._task, None
        self._begun.clear()
        if task is not None and not task.get_loop().is_closed():
            task.cancel()
            await asyncio.wait({task})

    async def _run(self) -> None:
        told = False
        while True:
            connection = self._link.connection()
            try:
                async with asyncio.timeout(SILENCE):
                    await self._subscribe(connection)
                told = False
                await self._read(connection)
            except (OSError, RedisError) as error:
                if not told:
                    _log.warning("%s: polling until it tells of changes again: %r", self._link.place, error)
                    told = True
            finally:
                await drop(connection)
            self._begun.set()
            self._signals.publish_all()
            await SYSTEM.wait(asyncio.Event(), POLL_INTERVAL)

    async def _subscribe(self, connection: AbstractConnection) -> None:
        channels = (self._link.place.keys.news, self._link.place.keys.ends, self._hand_overs)
        await connection.send_command("SUBSCRIBE", *channels)
        for _ in channels:
            await connection.read_response()
        if self._begun.is_set():
            self._signals.publish_all()
        self._begun.set()

    async def _read(self, connection: AbstractConnection) -> None:
        pulse = asyncio.get_running_loop().create_task(self._check_pulse(connection))
        try:
            while True:
                message = await connection.read_response()
                self._heard = True
                if message[1] == self._hand_overs:
                    self._hear(message[2])
                elif message[0] == b"message":
                    self._signals.publish(self._topics(message[1], message[2]))
        finally:
            pulse.cancel()

    async def _check_pulse(self, connection: AbstractConnection) -> None:
        """End a connection over which nothing comes back: its other end is gone without a word."""
        while True:
            self._heard = False
            await SYSTEM.wait(asyncio.Event(), SILENCE)
            if not self._heard:
                with suppress(RedisError, OSError):
                    await connection.send_command("PING")
                await SYSTEM.wait(asyncio.Event(), SILENCE)
                if not self._heard:
                    await drop(connection)
                    return

    def _topics(self, channel: bytes, message: bytes) -> list[Topic]:
        if channel == self._link.place.keys.ends:
            return [job_topic(message[start : start + 16]) for start in range(0, len(message), 16)]
        heads, *queues = message.split(b"\0")
        heads, *kinds = heads.split(b"\1")
        topics = [queue_topic(queue.decode()) for queue in queues if queue]
        topics += [documents_topic(kind.decode()) for kind in kinds]
        if b"d" in heads:
            topics.append(DUE)
        if b"c" in heads:
            topics.append(CANCEL)
        return topics
