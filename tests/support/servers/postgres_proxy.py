"""A proxy between PostgreSQL and its clients that simulates network faults.

It cuts connections, refuses them, stalls, slows down, and loses the reply of a commit: the server has
committed, and the client gets an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from dayjob.runtime.clock import SYSTEM
from tests.support.bound import BOUND
from tests.support.servers.postgres_cluster import free_port
from tests.support.servers.postgres_protocol import GONE, Message, abort, read_message, read_opening
from tests.support.servers.proxy import close_listening, stop_accepting

Matches = Callable[[str], bool]


class Loss:
    """A reply to lose: that of the next transaction with a statement that ``matches``."""

    def __init__(self, matches: Matches) -> None:
        self.matches = matches
        self._happened = asyncio.Event()

    @property
    def has_happened(self) -> bool:
        return self._happened.is_set()

    async def happens(self) -> None:
        async with asyncio.timeout(BOUND):
            await self._happened.wait()

    def happen(self) -> None:
        self._happened.set()


class Link:
    """One client's connection, with another one to the server behind it."""

    def __init__(self, proxy: Proxy, client: _Streams, server: _Streams) -> None:
        self._proxy = proxy
        self._client, self._client_writer = client
        self._server, self._server_writer = server
        self._statements: dict[str, str] = {}
        self._portals: dict[str, str] = {}
        self._loss: Loss | None = None
        self._withholding = False
        self._withheld: list[Message] = []

    async def run(self) -> None:
        try:
            while (first := await read_opening(self._client)).asks_for_encryption:
                self._server_writer.write(first.encoded)
                self._client_writer.write(await self._server.readexactly(1))
            self._server_writer.write(first.encoded)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward_requests())
                group.create_task(self._forward_replies())
        except* GONE:
            pass
        finally:
            await abort(self._server_writer)

    def cut(self) -> None:
        self._client_writer.transport.abort()
        self._server_writer.transport.abort()

    async def _forward_requests(self) -> None:
        while True:
            message = await read_message(self._client)
            await self._proxy.flows()
            if (statement := self._statement_of(message)) is not None:
                self._loss = self._loss or self._proxy.take_loss(statement)
                self._withholding = self._loss is not None
            self._server_writer.write(message.encoded)
            await self._server_writer.drain()
            await self._proxy.throttle(message)

    def _statement_of(self, message: Message) -> str | None:
        """Return the statement that the message runs, or None."""
        if message.kind == b"Q":
            return message.texts(1)[0]
        if message.kind == b"P":
            name, statement = message.texts(2)
            self._statements[name] = statement
        elif message.kind == b"B":
            portal, name = message.texts(2)
            self._portals[portal] = self._statements.get(name, "")
        elif message.kind == b"E":
            return self._portals.get(message.texts(1)[0], "")
        return None

    async def _forward_replies(self) -> None:
        while True:
            message = await read_message(self._server)
            await self._proxy.flows()
            self._withheld.append(message)
            if self._withholding:
                if message.kind != b"Z":
                    continue
                if self._loses(message):
                    self.cut()
                    return
            for held in self._withheld:
                self._client_writer.write(held.encoded)
                await self._proxy.throttle(held)
            self._withheld.clear()
            await self._client_writer.drain()

    def _loses(self, ready: Message) -> bool:
        """Whether this is the reply of the commit. A failed statement has none."""
        assert self._loss is not None
        self._withholding = False
        if any(held.kind == b"E" for held in self._withheld):
            self._proxy.restore_loss(self._loss)
            self._loss = None
        elif ready.body == b"I":
            self._loss.happen()
            return True
        return False


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """Forwards everything until a fault is set."""

    def __init__(self, server_url: str) -> None:
        self.lead_to(server_url)
        self._port = free_port()
        self._server: asyncio.Server | None = None
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """The end of the last closing of the port."""
        self._closing.set_result(None)
        self._links: set[Link] = set()
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._losses: list[Loss] = []
        self.bytes_per_second: float | None = None
        """The rate at which each connection forwards requests, and replies; None is unlimited."""
        self._flowing = asyncio.Event()
        self._flowing.set()

    def through(self, url: str) -> str:
        """Return the URL of the server through the proxy."""
        parts = urlsplit(url)
        address = f"{parts.hostname}:{parts.port or 5432}"
        return url.replace(f"@{address}", f"@127.0.0.1:{self._port}", 1)

    def lead_to(self, server_url: str) -> None:
        """Forward new connections to this server."""
        parts = urlsplit(server_url)
        assert parts.hostname is not None
        self._target = (parts.hostname, parts.port or 5432)

    @property
    def connections(self) -> int:
        return len(self._links)

    @property
    def clients(self) -> int:
        """The number of clients, also of those that are not connected to the server yet."""
        return len(self._clients)

    # Faults.

    def cut(self) -> None:
        """Break all open connections, also those whose connection to the server is not open yet."""
        for link in self._links:
            link.cut()
        for client in self._clients.values():
            client.transport.abort()

    def refuse(self) -> None:
        """Refuse new connections: close the port, when asyncio has handed over those that it has accepted."""
        if self._server is not None:
            server, self._server = self._server, None
            stop_accepting(server)
            self._closing = asyncio.ensure_future(close_listening(server))

    async def accept(self) -> None:
        """Accept new connections again."""
        await self._closing
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)

    def stall(self) -> None:
        """Forward nothing, without breaking connections."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward the stalled messages and all later ones."""
        self._flowing.set()

    def lose_reply(self, matches: str | Matches) -> Loss:
        """Lose the reply of the next transaction with a matching statement (one that contains the text).

        The server commits. Then the connection is cut.
        """
        text = matches
        loss = Loss((lambda statement: text in statement) if isinstance(text, str) else text)
        self._losses.append(loss)
        return loss

    # Used by the links.

    async def flows(self) -> None:
        await self._flowing.wait()

    async def throttle(self, message: Message) -> None:
        """Wait for the time that the message takes on a slow link."""
        if self.bytes_per_second is not None:
            await SYSTEM.wait(asyncio.Event(), len(message.encoded) / self.bytes_per_second)

    def take_loss(self, statement: str) -> Loss | None:
        for loss in self._losses:
            if loss.matches(statement):
                self._losses.remove(loss)
                return loss
        return None

    def restore_loss(self, loss: Loss) -> None:
        self._losses.append(loss)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # It was accepted before the port was closed.
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve((reader, writer)))
        self._clients[task] = writer
        task.add_done_callback(self._clients.pop)

    async def _serve(self, client: _Streams) -> None:
        try:
            await self.flows()
            link = Link(self, client, await asyncio.open_connection(*self._target))
            self._links.add(link)
            try:
                await link.run()
            finally:
                self._links.discard(link)
        except OSError:
            pass  # The server accepts no connection, so the client gets none.
        finally:
            await abort(client[1])

    async def close(self) -> None:
        self.refuse()
        await self._closing
        clients = dict(self._clients)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await abort(*clients.values())


@asynccontextmanager
async def proxy(server_url: str) -> AsyncIterator[Proxy]:
    """Run a proxy to the server during the block."""
    running = Proxy(server_url)
    await running.accept()
    try:
        yield running
    finally:
        await running.close()
