"""Notifications and hand-offs from the server: one subscribed connection, opened by the first listener.

It also blocks on the list of the jobs that are handed off to this process. With version 3 of the protocol,
one connection can do both. The subscription to the channel of the list's name shows other clients that the
process is alive; it has no messages.

``listen`` is awaited before each read that a wait may follow, so that no change falls between the two. Every
broker listens for cancel requests, so that alone does not open the connection; the first claim does.

While the connection is down, all topics are published at an interval, so that listeners poll. They are
published once more after a reconnect, because the messages in between are lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from hiredis import PushNotification
from msgspec import Struct, field

from dayjob.engines.redis.client import Client, Command, described, packed
from dayjob.engines.redis.connection import Connection
from dayjob.engines.redis.handoffs import Acknowledgment, Handoffs, OnReplies
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import CANCEL, DUE, Signals, Topic, documents_topic, job_topic, queue_topic

_log = logging.getLogger("dayjob.redis")

POLL_INTERVAL = 0.5
"""Seconds between polls while there is no subscription."""

_LOGGED_EVERY = 1000
"""Of so many malformed messages, one is logged."""

_HANDOFF_WAIT = 15
"""Seconds after which the server ends a wait for hand-offs with an empty reply, and the next one begins."""

SILENCE = 25.0
"""Seconds without a message or reply after which the connection is closed."""


Reply = TypeVar("Reply")


class _Call(Struct):
    expected: int
    on_replies: OnReplies
    limit: asyncio.TimerHandle | None = None
    replies: list[Any] = field(default_factory=list)

    def end(self, replies: list[Any] | None) -> None:
        if self.limit is not None:
            self.limit.cancel()
        self.on_replies(replies)


class Subscriber:
    """Publishes notifications to ``signals``, and passes the messages of its list to ``handoffs``."""

    def __init__(self, client: Client, signals: Signals, handoffs: Handoffs) -> None:
        self._client = client
        self._signals = signals
        self._handoffs = handoffs
        self._wait = packed(("BLPOP", handoffs.list, _HANDOFF_WAIT))
        self._calls: deque[_Call] = deque()
        """The calls on the connection whose replies have not come."""
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
                        "%s: the subscription is down, polling until it is back: %s",
                        self._client.settings.shown,
                        described(error),
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
        connection.on_message = partial(self._on_reply, connection)
        channels = (keys.changes, keys.ends, self._handoffs.list)
        commands: list[Command] = [("HELLO", 3), *(("SUBSCRIBE", channel) for channel in channels)]
        replies = await connection.call([packed(command) for command in commands], self._start_timeout)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        self._wait_for_handoff(connection)
        if self._begun.is_set():
            self._signals.publish_all()
        self._begun.set()

    async def _read(self, connection: Connection) -> None:
        checking = asyncio.get_running_loop().create_task(self._check_connection(connection))
        try:
            raise await connection.lost
        finally:
            checking.cancel()
            calls, self._calls = self._calls, deque()
            for call in calls:
                call.end(None)

    def _on_reply(self, connection: Connection, reply: Any) -> None:
        self._received = True
        if not isinstance(reply, PushNotification):
            call = self._calls[0]
            call.replies.append(reply)
            if len(call.replies) == call.expected:
                self._calls.popleft()
                call.end(call.replies)
        elif reply[0] == b"message":
            self._act(reply[1], self._publish, reply[1], reply[2])

    def _wait_for_handoff(self, connection: Connection, acknowledgment: Acknowledgment | None = None) -> None:
        """Send an acknowledgment, and block behind it on the list. One write costs less than two."""
        requests = self._wait
        if acknowledgment is not None:
            acknowledge, expected, on_replies = acknowledgment
            requests = acknowledge + requests
            limit = asyncio.get_running_loop().call_later(self._client.silence, connection.close)
            self._calls.append(_Call(expected, on_replies, limit))
        self._calls.append(_Call(1, partial(self._on_handoff, connection)))
        connection.write(requests)

    def _on_handoff(self, connection: Connection, replies: list[Any] | None) -> None:
        if replies is None:
            return
        [reply] = replies
        if isinstance(reply, Exception):
            raise reply
        acknowledgment = None if reply is None else self._act(reply[0], self._handoffs.receive, reply[1])
        self._wait_for_handoff(connection, acknowledgment)

    def _act(self, source: bytes, action: Callable[..., Reply], *message: Any) -> Reply | None:
        """Act on a message. A malformed one counts as a change of all topics: any client can publish it."""
        try:
            return action(*message)
        except Exception as error:
            self._signals.publish_all()
            if self._malformed % _LOGGED_EVERY == 0:
                _log.warning(
                    "%s: a malformed message on channel %r: another program may use it; polling once: %r",
                    self._client.settings.shown, source[:200], error,
                )  # fmt: skip
            self._malformed += 1
            return None

    async def _check_connection(self, connection: Connection) -> None:
        """Close a connection on which nothing arrives, not even the end of a wait for hand-offs."""
        while True:
            self._received = False
            await SYSTEM.wait(asyncio.Event(), SILENCE)
            if not self._received:
                connection.close()
                return

    def _publish(self, channel: bytes, message: bytes) -> None:
        if channel == self._handoffs.list:
            raise ValueError("this channel has no messages")
        if channel == self._client.settings.keys.ends:
            topics = [job_topic(message[start : start + 16]) for start in range(0, len(message), 16)]
        else:
            flags, *queues = message.split(b"\0")
            flags, *kinds = flags.split(b"\1")
            topics = [queue_topic(queue.decode()) for queue in queues if queue]
            topics += [documents_topic(kind.decode()) for kind in kinds]
            if b"d" in flags:
                topics.append(DUE)
            if b"c" in flags:
                topics.append(CANCEL)
        self._signals.publish_received(topics)
