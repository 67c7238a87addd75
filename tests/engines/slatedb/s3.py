"""An S3 server for tests: moto in its own process, and a proxy that delays, refuses and counts requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dayjob.runtime.clock import SYSTEM
from tests.support.bound import BOUND

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
    "AWS_REGION": "us-east-1",
}
BUCKET = "bucket"

_SERVER = """
import sys, threading
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


class Server:
    """A running moto server. It ends when its input is closed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SERVER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def make_bucket(self, name: str = BUCKET) -> None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
        connection.request("PUT", f"/{name}")
        assert connection.getresponse().status == 200
        connection.close()

    def close(self) -> None:
        self._process.communicate(timeout=BOUND)


class Proxy:
    """A proxy before the server: it delays, fails on demand, and counts the requests."""

    def __init__(self, upstream: int) -> None:
        self.latency = 0.0
        self.failing: bytes | None = None
        """The status line of the failure, or None."""
        self.failure_body = b""
        self.fails: Callable[[str, str], bool] = lambda method, path: True
        """Whether a request fails, by method and path, while ``failing`` is set."""
        self.delays: Callable[[str, str], bool] = lambda method, path: True
        self.dropped_headers: frozenset[str] = frozenset()
        self.requests: Counter[str] = Counter()
        self.refused = 0
        self.took: list[float] = []
        """The seconds of each PUT, with latency."""
        self._upstream = upstream
        self.port = 0
        self.conversations: set[asyncio.Task[None]] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self.conversations.add(task)
        task.add_done_callback(self.conversations.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with closed_after(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            (method, path), begun = lines[0].split()[:2], SYSTEM.elapsed()
            self.requests[method] += 1
            if self.latency and self.delays(method, path):
                await SYSTEM.wait(asyncio.Event(), self.latency)
            if self.failing is not None and self.fails(method, path):
                self.refused += 1
                head = f"Content-Length: {len(self.failure_body)}\r\nConnection: close\r\n\r\n".encode()
                writer.write(b"HTTP/1.1 %b\r\n%b%b" % (self.failing, head, self.failure_body))
            else:
                await self._relay(lines, body, writer)
            await writer.drain()
            if method == "PUT":
                self.took.append(SYSTEM.elapsed() - begun)

    async def _relay(self, lines: list[str], body: bytes, writer: asyncio.StreamWriter) -> None:
        dropped = {"connection", *self.dropped_headers}
        kept = [line for line in lines if line and line.partition(":")[0].lower() not in dropped]
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        async with closed_after(up_writer):
            up_writer.write("\r\n".join([*kept, "Connection: close", "", ""]).encode("latin-1") + body)
            while some := await up_reader.read(1 << 16):
                writer.write(some)


@asynccontextmanager
async def closed_after(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Close the connection in any case, also if the other side hangs up."""
    try:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            yield
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def proxying(upstream: int) -> AsyncIterator[Proxy]:
    """Run a proxy on this event loop for the block."""
    proxy = Proxy(upstream)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await server.wait_closed()
        conversations = list(proxy.conversations)
        for task in conversations:
            task.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    server.make_bucket()
    yield server
    server.close()


@pytest.fixture
async def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    async with proxying(server.port) as proxy:
        yield proxy


@pytest.fixture
def base(tmp_path: Path) -> str:
    """A prefix for this test."""
    return f"s3://{BUCKET}/{tmp_path.name}"
