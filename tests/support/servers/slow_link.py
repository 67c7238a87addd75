"""A TCP proxy whose connections share one slow link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from dayjob.runtime.clock import SYSTEM

_CHUNK = 64 * 1024

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class SlowLink:
    """Forwards ``bytes_per_second`` in each direction, over all connections together."""

    def __init__(self, connect: Connect, bytes_per_second: int) -> None:
        self._connect = connect
        self._rate = bytes_per_second
        self._free_at = [0.0, 0.0]
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SlowLink]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                server_reader, server_writer = await self._connect()
                try:
                    up = self._forward(reader, server_writer, 0)
                    down = self._forward(server_reader, writer, 1)
                    await asyncio.gather(up, down)
                finally:
                    server_writer.close()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, direction: int
    ) -> None:
        while chunk := await source.read(_CHUNK):
            now = SYSTEM.elapsed()
            self._free_at[direction] = max(now, self._free_at[direction]) + len(chunk) / self._rate
            await SYSTEM.wait(asyncio.Event(), self._free_at[direction] - now)
            target.write(chunk)
            await target.drain()
        target.write_eof()
