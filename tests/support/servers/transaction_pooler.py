"""A transaction pooler, as PgBouncer is in that mode: many clients over a few connections to the server.

A client has a server connection from the first message of a transaction to its end. Its next transaction runs
on another one. No session state survives a transaction: named prepared statements are refused, settings and
listens are reset.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote, urlsplit

from tests.support.servers.postgres_cluster import free_port
from tests.support.servers.postgres_protocol import (
    GONE,
    NOT_ENCRYPTED,
    Message,
    abort,
    error,
    opening,
    read_message,
    read_opening,
    ready,
)

ACCEPTED = {
    "user", "database", "application_name", "client_encoding", "DateStyle", "TimeZone",
    "standard_conforming_strings",
}  # fmt: skip
"""The startup parameters that a pooler supports."""

_SESSION = re.compile(r"^\s*(LISTEN|SET\s+(?!LOCAL)|DECLARE)|pg_(try_)?advisory_lock", re.IGNORECASE)

_AUTHENTICATED, _PASSWORD = struct.pack("!i", 0), struct.pack("!i", 3)

_RESET = Message(b"Q", b"DISCARD ALL\0")


class ServerConnection:
    """One session on the server, lent to one client at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.greeting: list[Message] = []

    @classmethod
    async def open(cls, server_url: str) -> ServerConnection:
        parts = urlsplit(server_url)
        connection = cls(*await asyncio.open_connection(parts.hostname, parts.port or 5432))
        try:
            user, database = unquote(parts.username or ""), parts.path.removeprefix("/")
            start = opening({"user": user, "database": database, "client_encoding": "UTF8"})
            connection.writer.write(start.encoded)
            await connection._greet(unquote(parts.password or ""))
        except BaseException:
            await abort(connection.writer)
            raise
        return connection

    async def _greet(self, password: str) -> None:
        while (message := await read_message(self.reader)).kind != b"Z":
            assert message.kind != b"E", f"the server refuses the pooler: {message.body!r}"
            if message.kind == b"S":
                self.greeting.append(message)
            elif message.kind == b"R" and message.body != _AUTHENTICATED:
                assert message.body == _PASSWORD, "the pooler supports cleartext passwords only"
                self.writer.write(Message(b"p", password.encode() + b"\0").encoded)

    async def reset(self) -> None:
        self.writer.write(_RESET.encoded)
        while (await read_message(self.reader)).kind != b"Z":
            pass


class Client:
    """One client's session with the pooler."""

    def __init__(self, pooler: Pooler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pooler = pooler
        self._reader, self._writer = reader, writer
        self._server: ServerConnection | None = None
        self._replies: asyncio.Task[None] | None = None
        self._open_batches = 0
        """The number of batches that the server has not finished."""

    async def run(self) -> None:
        try:
            if await self._start():
                await self._serve()
        except GONE:
            pass
        finally:
            if self._replies is not None:
                self._replies.cancel()
                await asyncio.gather(self._replies, return_exceptions=True)
            if self._server is not None:
                await self._pooler.replace(self._server)
            await abort(self._writer)

    async def _start(self) -> bool:
        """Reply to the client's start. Return False if it is refused."""
        while (first := await read_opening(self._reader)).asks_for_encryption:
            self._writer.write(NOT_ENCRYPTED)
        for name in first.parameters:
            if name not in ACCEPTED:
                refusal = error("FATAL", "08P01", f"unsupported startup parameter: {name}")
                self._writer.write(refusal.encoded)
                await self._writer.drain()
                self._writer.write_eof()
                return False
        for message in (Message(b"R", _AUTHENTICATED), *self._pooler.greeting, ready(b"I")):
            self._writer.write(message.encoded)
        await self._writer.drain()
        return True

    async def _serve(self) -> None:
        while True:
            message = await read_message(self._reader)
            if message.kind == b"X":
                return
            if message.kind == b"P" and message.texts(1)[0]:
                await self._refuse(message)
                continue
            if message.kind in (b"P", b"Q"):
                self._pooler.record(message.texts(2)[-1] if message.kind == b"P" else message.texts(1)[0])
            if self._server is None:
                self._server = await self._pooler.lend()
                self._replies = asyncio.create_task(self._reply(self._server))
            if message.kind in (b"Q", b"S"):
                self._open_batches += 1
            self._server.writer.write(message.encoded)
            await self._server.writer.drain()

    async def _refuse(self, parse: Message) -> None:
        """Refuse a named statement: the next transaction runs on another server connection."""
        self._pooler.refusals += 1
        name = parse.texts(1)[0]
        refusal = error("ERROR", "0A000", f"prepared statement {name!r} is not available here")
        self._writer.write(refusal.encoded)
        await self._writer.drain()
        while (await read_message(self._reader)).kind != b"S":
            pass
        self._writer.write(ready(b"I" if self._server is None else b"E").encoded)
        await self._writer.drain()

    async def _reply(self, server: ServerConnection) -> None:
        """Forward replies until the end of the transaction, then return the connection."""
        try:
            while True:
                message = await read_message(server.reader)
                if message.kind == b"Z":
                    self._open_batches -= 1
                    if message.body == b"I" and self._open_batches == 0:
                        break
                self._writer.write(message.encoded)
                await self._writer.drain()
        except GONE:
            self._writer.transport.abort()
            return
        self._server = self._replies = None
        self._pooler.transactions += 1
        self._pooler.release(server)
        self._writer.write(message.encoded)


class Pooler:
    """Shares a few server connections among its clients."""

    def __init__(self, server_url: str, size: int) -> None:
        self._server_url = server_url
        self._size = size
        self._port = free_port()
        self._idle: asyncio.Queue[ServerConnection] = asyncio.Queue()
        self._open: set[ServerConnection] = set()
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._listening: asyncio.Server | None = None
        self.greeting: list[Message] = []
        self.refusals = 0
        """The number of refused named statements."""
        self.transactions = 0
        self.session_statements: list[str] = []
        """Statements that create session state."""

    def through(self, url: str) -> str:
        """Return the URL of the server through the pooler."""
        parts = urlsplit(url)
        return url.replace(f"@{parts.hostname}:{parts.port or 5432}", f"@127.0.0.1:{self._port}", 1)

    async def open(self) -> None:
        for _ in range(self._size):
            await self._add()
        self._listening = await asyncio.start_server(self._connected, "127.0.0.1", self._port)

    async def _add(self) -> None:
        connection = await ServerConnection.open(self._server_url)
        self.greeting = connection.greeting
        self._open.add(connection)
        self._idle.put_nowait(connection)

    async def lend(self) -> ServerConnection:
        """Return the connection that was idle longest, with its session state reset."""
        while True:
            connection = await self._idle.get()
            try:
                await connection.reset()
            except GONE:
                await self.replace(connection)
            else:
                return connection

    def release(self, connection: ServerConnection) -> None:
        self._idle.put_nowait(connection)

    async def replace(self, connection: ServerConnection) -> None:
        """Replace the connection of a client that left inside a transaction, which rolls it back."""
        self._open.discard(connection)
        await abort(connection.writer)
        await self._add()

    def record(self, statement: str) -> None:
        if _SESSION.search(statement):
            self.session_statements.append(statement)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(Client(self, reader, writer).run())
        self._clients[task] = writer
        task.add_done_callback(self._clients.pop)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        clients = dict(self._clients)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await abort(*clients.values(), *(connection.writer for connection in self._open))


@asynccontextmanager
async def pooler(server_url: str, size: int = 2) -> AsyncIterator[Pooler]:
    """Run a pooler in front of the server during the block."""
    pooling = Pooler(server_url, size)
    try:
        await pooling.open()
        yield pooling
    finally:
        await pooling.close()
