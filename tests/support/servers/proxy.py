"""A proxy between an engine and its Redis server that loses answers, cuts connections and answers itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Proxy:
    """Passes everything on, unless told otherwise."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.losing = 0
        """How many answers of scripts to lose: the server acts on the call, and the connection ends."""
        self.lost = 0
        """How many it has lost."""
        self.replies: list[bytes] = []
        """What to answer to the next calls of scripts, which then don't reach the server."""

    def url(self, prefix: str, options: str = "") -> str:
        return f"redis://127.0.0.1:{self.port}/0?prefix={prefix}{options}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the door, and every connection with it."""
        assert self._server is not None
        self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """End every connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._pass_on(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_unix_connection(self._socket)
        asked_script = asyncio.Event()
        answering = asyncio.create_task(self._answer(to_reader, writer, asked_script))
        try:
            while request := await reader.read(2**16):
                if b"\nEVAL" in request:
                    if self.replies:
                        writer.write(self.replies.pop(0))
                        continue
                    asked_script.set()
                to_writer.write(request)
                await to_writer.drain()
        finally:
            answering.cancel()
            to_writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked_script: asyncio.Event
    ) -> None:
        """Pass answers on; one that is to be lost ends the connection instead."""
        with suppress(OSError):
            while answer := await reader.read(2**16):
                if asked_script.is_set() and self.losing and not answer.startswith(b"-NOSCRIPT"):
                    self.losing -= 1
                    self.lost += 1
                    break
                asked_script.clear()
                writer.write(answer)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def proxied(socket: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(socket)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
