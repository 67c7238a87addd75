"""Live pages: one look at a time for everyone who watches the same thing, sent as server-sent events.

A feed looks while somebody watches, at most once a second and never for more than a fifth of the time. A
client that reads slowly misses updates in between, and gets the latest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dayjob.errors import DayjobError
from dayjob.runtime.clock import SYSTEM, Clock

_log = logging.getLogger("dayjob.dashboard")

INTERVAL = 1.0
SHARE = 5
ALIVE = 15.0
"""Seconds of silence after which a comment shows that the line holds, and finds out whether it does."""

LIFETIME = 60.0
"""Seconds after which a stream ends, and the browser opens another: a server that shuts down waits for it."""

MOST_WATCHERS = 500

Look = Callable[[], Awaitable[dict[str, Any]]]
Key = tuple[str, ...]


class TooMany(Exception):
    """There are enough watchers."""


class Watcher:
    """One client's place in a feed: the latest message that it has not sent yet."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.message: bytes | None = None

    def offer(self, message: bytes) -> None:
        self.message = message
        self.news.set()


class Feed:
    """Looks, and hands what it sees to the watchers if it has changed."""

    def __init__(self, look: Look, clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._last: bytes | None = None
        self._task: asyncio.Task[None] | None = None
        self._never = asyncio.Event()
        self.watchers: set[Watcher] = set()

    def join(self) -> Watcher:
        watcher = Watcher()
        self.watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        elif self._last is not None:
            watcher.offer(self._last)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self.watchers.discard(watcher)
        if not self.watchers:
            self.stop()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._last = None

    async def _run(self) -> None:
        while True:
            begun = self._clock.elapsed()
            message = await self._see()
            if message != self._last:
                self._last = message
                for watcher in self.watchers:
                    watcher.offer(message)
            took = self._clock.elapsed() - begun
            await self._clock.wait(self._never, max(INTERVAL, (SHARE - 1) * took))

    async def _see(self) -> bytes:
        try:
            return b"data: %b\n\n" % msgspec.json.encode(await self._look())
        except DayjobError as error:
            return b"event: problem\ndata: %b\n\n" % msgspec.json.encode(str(error))
        except Exception:
            _log.exception("a live page can't be brought up to date")
            return b'event: problem\ndata: "something is wrong, see the log"\n\n'


class Feeds:
    """The feeds that are watched now."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._feeds: dict[Key, Feed] = {}
        self._stopped = asyncio.Event()

    @property
    def watchers(self) -> int:
        return sum(len(feed.watchers) for feed in self._feeds.values())

    def check(self) -> None:
        if self.watchers >= MOST_WATCHERS:
            raise TooMany

    def stop(self) -> None:
        """End all streams."""
        self._stopped.set()
        for feed in self._feeds.values():
            for watcher in feed.watchers:
                watcher.news.set()

    async def watch(self, key: Key, look: Look) -> AsyncIterator[bytes]:
        """What changes, as it is seen, until the stream's time is over."""
        feed = self._feeds.setdefault(key, Feed(look, self._clock))
        watcher = feed.join()
        until = self._clock.elapsed() + LIFETIME
        try:
            yield b"retry: 1000\n\n"
            while not self._stopped.is_set() and (left := until - self._clock.elapsed()) > 0:
                await self._clock.wait(watcher.news, min(ALIVE, left))
                message, watcher.message = watcher.message, None
                watcher.news.clear()
                yield b": alive\n\n" if message is None else message
        finally:
            feed.leave(watcher)
            if not feed.watchers:
                self._feeds.pop(key, None)


class EventStream(Response):
    """Sends what comes until it ends or the client goes."""

    media_type = "text/event-stream"

    def __init__(self, messages: AsyncIterator[bytes]) -> None:
        self._messages = messages
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        messages = self._messages
        try:
            with suppress(OSError):
                async for message in messages:
                    await send({"type": "http.response.body", "body": message, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            closing = getattr(messages, "aclose", None)
            if closing is not None:
                await closing()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
