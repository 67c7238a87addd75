"""Notifications from the server: one subscribed connection, opened by the first listener.

``listen`` is awaited before each read that a wait may follow, so that no change falls between the two. Every
broker listens for cancel requests, so that alone does not open the connection; the first claim does.

While the connection is down, all topics are published at an interval, so that listeners poll. They are
published once more after a reconnect, because the messages in between are lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from redis.exceptions import ConnectionError as LostConnection

from dayjob.engines.redis.client import Client, packed
from dayjob.engines.redis.connection import Connection
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import CANCEL, DUE, Signals, Topic, documents_topic, job_topic, queue_topic

_log = logging.getLogger("dayjob.redis")

POLL_INTERVAL = 0.5
"""Seconds between polls while there is no subscription."""

_LOGGED_EVERY = 1000
"""Of so many malformed messages, one is logged."""

SILENCE = 15.0
"""Seconds without a message after which the connection is checked."""


class Subscriber:
    """Publishes notifications to ``signals``. ``on_handoff`` gets the messages of this client's channel."""

    def __init__(
        self,
        client: Client,
        signals: Signals,
        handoff_channel: bytes,
        on_handoff: Callable[[bytes], None],
    ) -> None:
        self._client = client
        self._signals = signals
        self._handoff_channel = handoff_channel
        self.on_handoff = on_handoff
        self._task: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._received = False
        self._wanted = False
        self._malformed = 0
        self._start_timeout = min(SILENCE, client.settings.timeout)
        """Seconds for each step of the start. Reads wait for it."""

    def on_listen(self, topics: Sequence[Topic]) -> None:
        """Record that a listener has registered for these topics."""
        self._wanted = self._wanted or any(topic != CANCEL for topic in topics)

    async def listen(self, *, for_claims: bool = False) -> None:
        """Return when changes are published from now on. Without a listener, return at once."""
        self._wanted = self._wanted or for_claims
        if not self._wanted:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="dayjob redis subscriber")
        if not self._begun.is_set():
            await self._begun.wait()

    async def close(self) -> None:
        task, self._task = self._task, None
        self._begun.clear()
        if task is not None and not task.get_loop().is_closed():
            task.cancel()
            await asyncio.wait({task})

    async def _run(self) -> None:
        logged = False
        backoff = Backoff(POLL_INTERVAL, POLL_INTERVAL, jitter=True)
        while True:
            connection: Connection | None = None
            try:
                connection = await self._client.open(self._start_timeout)
                await self._subscribe(connection)
                logged = False
                await self._read(connection)
            except Exception as error:  # Also errors of the driver on a reply that it does not expect.
                if not logged:
                    _log.warning(
                        "%s: the subscription is down, polling until it is back: %r",
                        self._client.settings.shown,
                        error,
                    )
                    logged = True
            finally:
                if connection is not None:
                    connection.close()
            self._begun.set()
            self._signals.publish_all()
            await backoff.wait(SYSTEM)

    async def _subscribe(self, connection: Connection) -> None:
        keys = self._client.settings.keys
        channels = (keys.changes, keys.ends, self._handoff_channel)
        connection.on_message = self._on_reply
        replies = await connection.call(
            [packed(("SUBSCRIBE", channel)) for channel in channels], self._start_timeout
        )
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        if self._begun.is_set():
            self._signals.publish_all()
        self._begun.set()

    async def _read(self, connection: Connection) -> None:
        checking = asyncio.get_running_loop().create_task(self._check_connection(connection))
        try:
            await connection.wait_until_lost()
        finally:
            checking.cancel()
        raise LostConnection("the server closed the connection")

    def _on_reply(self, reply: list[bytes]) -> None:
        self._received = True
        if reply[0] == b"message":
            self._on_message(reply[1], reply[2])

    def _on_message(self, channel: bytes, message: bytes) -> None:
        """Publish a message. A malformed one, which any client can send, counts as a change of all topics."""
        try:
            if channel == self._handoff_channel:
                self.on_handoff(message)
            else:
                self._signals.publish_received(self._topics(channel, message))
        except Exception as error:
            self._signals.publish_all()
            if self._malformed % _LOGGED_EVERY == 0:
                _log.warning(
                    "%s: a malformed message on channel %r: another program may use it; polling once: %r",
                    self._client.settings.shown, channel[:200], error,
                )  # fmt: skip
            self._malformed += 1

    async def _check_connection(self, connection: Connection) -> None:
        """Close a connection on which nothing arrives, not even the reply to a PING."""
        while True:
            self._received = False
            await SYSTEM.wait(asyncio.Event(), SILENCE)
            if not self._received:
                connection.write(packed(("PING",)))
                await SYSTEM.wait(asyncio.Event(), SILENCE)
                if not self._received:
                    connection.close()
                    return

    def _topics(self, channel: bytes, message: bytes) -> list[Topic]:
        if channel == self._client.settings.keys.ends:
            return [job_topic(message[start : start + 16]) for start in range(0, len(message), 16)]
        flags, *queues = message.split(b"\0")
        flags, *kinds = flags.split(b"\1")
        topics = [queue_topic(queue.decode()) for queue in queues if queue]
        topics += [documents_topic(kind.decode()) for kind in kinds]
        if b"d" in flags:
            topics.append(DUE)
        if b"c" in flags:
            topics.append(CANCEL)
        return topics
