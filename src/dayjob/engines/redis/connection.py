"""One open connection to the server: commands in, replies out, one call at a time.

The driver opens the connection and authenticates. Its transport then belongs to this class, which parses
replies where the data arrives. The driver's streams would add a turn of the event loop, several coroutines
and a timer to each call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import hiredis
from redis._parsers.base import BaseParser
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import InvalidResponse, RedisError

_PART = 256 * 1024
"""Bytes of a request that are sent at once. Each part restarts the time limit."""

_BUFFERED, _SLOWEST = 16 * 1024 * 1024, 1024 * 1024
"""Bytes of a request that buffers on the way may hold, and bytes per second at which they are emptied."""

_INCOMPLETE = object()


class Connection(asyncio.Protocol):
    """Takes over the transport of an open connection of the driver.

    The time limit of a call is about silence: it starts again whenever data is sent or arrives. One timer
    serves many calls: it is set again when it fires, not with each call.
    """

    def __init__(self, driver: AbstractConnection) -> None:
        assert driver._writer is not None
        self._writer = driver._writer  # Kept: it closes the transport when it is collected.
        driver._reader = driver._writer = None
        self._transport = self._writer.transport
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=BaseParser.parse_error, notEnoughData=_INCOMPLETE
        )
        self.is_closed = self._transport.is_closing()
        self._waiter: asyncio.Future[list[Any]] | None = None
        self._replies: list[Any] = []
        self._expected = 0
        self._silence = 0.0
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.on_message: Callable[[list[Any]], None] | None = None
        """Gets the messages of a subscription, and every reply that no call waits for."""
        self.lost: asyncio.Future[Exception] = self._loop.create_future()
        """Done when the connection is lost, with the reason."""
        self._writable: asyncio.Future[None] | None = None
        """Set while the transport has enough data to send."""
        self._transport.set_protocol(self)

    async def call(self, requests: Sequence[bytes], silence: float) -> list[Any]:
        """Send the packed commands together, and return a reply to each. An error reply is returned."""
        self._silence = silence
        self._deadline = self._loop.time() + silence
        if self._timer is None or self._timer_at > self._deadline:
            self._set_timer()
        self._replies = []
        self._expected = len(requests)
        waiter: asyncio.Future[list[Any]] = self._loop.create_future()
        self._waiter = waiter
        request = requests[0] if len(requests) == 1 else b"".join(requests)
        try:
            if self.is_closed:
                self._fail(LostConnection("the server closed the connection"))
            elif len(request) <= _PART:
                self._transport.write(request)  # The wait for the reply limits the buffer.
            else:
                await self._send_parts(request, waiter)
            return await waiter
        finally:
            self._waiter = None
            if not waiter.done():
                waiter.cancel()
            elif not waiter.cancelled():
                waiter.exception()  # Also of a waiter that a cancelled call does not await.

    async def _send_parts(self, request: bytes, waiter: asyncio.Future[list[Any]]) -> None:
        """Send a long request. The time limit restarts with each part that leaves this process."""
        silence = self._silence + min(len(request), _BUFFERED) / _SLOWEST
        for start in range(0, len(request), _PART):
            if waiter.done():
                return
            self._deadline = self._loop.time() + silence
            self._transport.write(request[start : start + _PART])
            if self._writable is not None:
                await self._writable
        self._deadline = self._loop.time() + silence

    def write(self, request: bytes) -> None:
        """Send a packed command without a call. ``on_message`` gets its reply."""
        self._transport.write(request)

    def close(self) -> None:
        """Close without waiting for the server: a TLS shutdown would."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with suppress(RedisError, OSError, RuntimeError):
            self._transport.abort()

    # The events of the transport.

    def data_received(self, data: bytes) -> None:
        self._deadline = self._loop.time() + self._silence
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                waiter = self._waiter
                if self.on_message is not None and (waiter is None or _is_message(reply)):
                    self.on_message(reply)
                elif waiter is None or waiter.done() or isinstance(reply, LostConnection):
                    raise (
                        reply if isinstance(reply, LostConnection) else InvalidResponse("an unexpected reply")
                    )
                else:
                    self._replies.append(reply)
                    if len(self._replies) == self._expected:
                        self._waiter = None
                        waiter.set_result(self._replies)
        except Exception as error:
            self._fail(error)
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.close()
        self._fail(
            error if isinstance(error, OSError) else LostConnection("the server closed the connection")
        )

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is not None:
            if self._deadline > self._loop.time():
                self._set_timer()
            else:
                self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        if not self.lost.done():
            self.lost.set_result(error)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.resume_writing()


def _is_message(reply: object) -> bool:
    return isinstance(reply, list) and len(reply) > 0 and reply[0] == b"message"
