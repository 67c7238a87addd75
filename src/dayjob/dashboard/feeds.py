"""Live pages as server-sent events: all subscribers of a feed share one read of the store.

A feed reads while it has subscribers, at most once a second and for at most a fifth of the time. A slow
client misses updates in between, and receives the latest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from dayjob.errors import DayjobError
from dayjob.event_stream import COMMENT, KEEPALIVE, LIFETIME
from dayjob.runtime.clock import SYSTEM, Clock

_log = logging.getLogger("dayjob.dashboard")

INTERVAL = 1.0
SHARE = 5
MAX_SUBSCRIBERS = 500

Read = Callable[[], Awaitable[dict[str, Any]]]
Key = tuple[str, ...]


class TooManySubscribers(Exception):
    """``MAX_SUBSCRIBERS`` streams are open."""


class Subscriber:
    """The latest message of a feed that one client has not received yet."""

    def __init__(self) -> None:
        self.updated = asyncio.Event()
        self.message: bytes | None = None

    def notify(self, message: bytes) -> None:
        self.message = message
        self.updated.set()


class Feed:
    """Reads in a loop, and notifies its subscribers of changes."""

    def __init__(self, read: Read, clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._last: bytes | None = None
        self._task: asyncio.Task[None] | None = None
        self._never = asyncio.Event()
        self.subscribers: set[Subscriber] = set()

    def subscribe(self) -> Subscriber:
        subscriber = Subscriber()
        self.subscribers.add(subscriber)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        elif self._last is not None:
            subscriber.notify(self._last)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self.subscribers.discard(subscriber)
        if not self.subscribers:
            self.stop()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._last = None

    async def _run(self) -> None:
        while True:
            begun = self._clock.elapsed()
            message = await self._next_message()
            if message != self._last:
                self._last = message
                for subscriber in self.subscribers:
                    subscriber.notify(message)
            took = self._clock.elapsed() - begun
            await self._clock.wait(self._never, max(INTERVAL, (SHARE - 1) * took))

    async def _next_message(self) -> bytes:
        try:
            return b"data: %b\n\n" % msgspec.json.encode(await self._read())
        except DayjobError as error:
            return b"event: problem\ndata: %b\n\n" % msgspec.json.encode(str(error))
        except Exception:
            _log.exception("A live update failed")
            return b'event: problem\ndata: "internal error, see the log"\n\n'


class Feeds:
    """The feeds that have subscribers."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._feeds: dict[Key, Feed] = {}
        self._stopped = asyncio.Event()

    @property
    def subscribers(self) -> int:
        return sum(len(feed.subscribers) for feed in self._feeds.values())

    def check_capacity(self) -> None:
        if self.subscribers >= MAX_SUBSCRIBERS:
            raise TooManySubscribers

    def stop(self) -> None:
        """End all streams."""
        self._stopped.set()
        for feed in self._feeds.values():
            for subscriber in feed.subscribers:
                subscriber.updated.set()

    async def stream(self, key: Key, read: Read) -> AsyncIterator[bytes]:
        """Yield the feed's updates until ``LIFETIME`` is over."""
        feed = self._feeds.setdefault(key, Feed(read, self._clock))
        subscriber = feed.subscribe()
        until = self._clock.elapsed() + LIFETIME
        try:
            yield b"retry: 1000\n\n"
            while not self._stopped.is_set() and (left := until - self._clock.elapsed()) > 0:
                await self._clock.wait(subscriber.updated, min(KEEPALIVE, left))
                message, subscriber.message = subscriber.message, None
                subscriber.updated.clear()
                yield COMMENT if message is None else message
        finally:
            feed.unsubscribe(subscriber)
            if not feed.subscribers:
                self._feeds.pop(key, None)
