"""The open connections of a pool that have no work. Those that are not needed for a while are closed.

A burst of concurrent calls opens connections that an idle process does not need. One is kept: an idle worker
has heartbeats to store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Connection = TypeVar("Connection")

KEPT = 30.0
"""Seconds after which a connection that was not needed is closed."""


class IdleConnections(Generic[Connection]):
    """A stack: the connection that was used last is used first. ``close`` closes one without an error."""

    def __init__(self, close: Callable[[Connection], Awaitable[None]]) -> None:
        self._close = close
        self._stack: list[Connection] = []
        self._unused = 0
        """The fewest connections without work since the last trim. These were not needed."""
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Future[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._stack)

    def push(self, connection: Connection) -> None:
        self._stack.append(connection)
        if self._timer is None and len(self._stack) > 1:
            self._unused = len(self._stack)
            self._timer = asyncio.get_running_loop().call_later(KEPT, self.trim)

    def pop(self) -> Connection:
        connection = self._stack.pop()
        self._unused = min(self._unused, len(self._stack))
        return connection

    def trim(self) -> None:
        """Close the connections that were not needed since the last trim, but one."""
        self._timer = None
        closed = min(self._unused, len(self._stack) - 1)
        for connection in self._stack[:closed]:
            closing = asyncio.ensure_future(self._close(connection))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        del self._stack[: max(closed, 0)]
        if len(self._stack) > 1:
            self._unused = len(self._stack)
            self._timer = asyncio.get_running_loop().call_later(KEPT, self.trim)

    def clear(self) -> list[Connection]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connections, self._stack = self._stack, []
        return connections

    async def close(self) -> None:
        for connection in self.clear():
            await self._close(connection)
        if self._closing:
            await asyncio.wait(self._closing)
