"""A proxy between an engine and its Redis server that drops replies, cuts connections and sends errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET

from dayjob.runtime.clock import SYSTEM
from tests.support.waiting import turns


class Proxy:
    """Forwards everything, except for the faults that a test sets."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        """The socket of the server, for new connections."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.losing = 0
        """Replies of scripts still to drop: the server executes the call, and the connection is closed."""
        self.lost = 0
        """Replies dropped so far."""
        self.replies: list[bytes] = []
        """Replies to send to the next script calls, which then don't reach the server."""
        self.bytes_per_second: float | None = None
        """The rate at which requests and replies are forwarded; None is unlimited."""
        self._flowing = asyncio.Event()
        self._flowing.set()

    def url(self, prefix: str, options: str = "") -> str:
        return f"redis://127.0.0.1:{self.port}/0?prefix={prefix}{options}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def limit_buffers(self) -> None:
        """Let new connections hold little data on the way, so that their clients notice a slow link."""
        assert self._server is not None
        for listener in self._server.sockets:
            listener.setsockopt(SOL_SOCKET, SO_RCVBUF, 2**16)

    async def stop(self) -> None:
        """Stop listening, and close every connection."""
        assert self._server is not None
        stop_accepting(self._server)
        await close_listening(self._server)
        await self.cut()

    def stall(self) -> None:
        """Forward nothing, without breaking connections."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward the stalled messages and all later ones."""
        self._flowing.set()

    async def cut(self) -> None:
        """Close every connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._server is not None
        if not self._server.is_serving():  # It was accepted before the port was closed.
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            await self._forward(reader, writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_unix_connection(self.socket)
        script_called = asyncio.Event()
        forwarding = asyncio.create_task(self._forward_replies(to_reader, writer, script_called))
        try:
            while request := await reader.read(2**16):
                if b"\nEVAL" in request:
                    if self.replies:
                        writer.write(self.replies.pop(0))
                        continue
                    script_called.set()
                await self._flowing.wait()
                to_writer.write(request)
                await to_writer.drain()
                await self._throttle(request)
        finally:
            forwarding.cancel()
            to_writer.close()

    async def _forward_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, script_called: asyncio.Event
    ) -> None:
        """Forward replies. Close the connection instead of forwarding one that is to be dropped."""
        with suppress(OSError):
            while reply := await reader.read(2**16):
                if script_called.is_set() and self.losing and not reply.startswith(b"-NOSCRIPT"):
                    self.losing -= 1
                    self.lost += 1
                    break
                script_called.clear()
                await self._flowing.wait()
                writer.write(reply)
                await writer.drain()
                await self._throttle(reply)
        writer.close()

    async def _throttle(self, data: bytes) -> None:
        if self.bytes_per_second is not None:
            await SYSTEM.wait(asyncio.Event(), len(data) / self.bytes_per_second)


def stop_accepting(server: asyncio.Server) -> None:
    """Accept no further connections. ``close_listening`` must follow."""
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener.fileno())


async def close_listening(server: asyncio.Server) -> None:
    """Close the port. A connection that asyncio accepts while a server is closed would never be closed."""
    await turns(3)
    server.close()


@asynccontextmanager
async def proxied(socket: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(socket)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
