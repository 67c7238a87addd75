"""Any request to the dashboard, in process, and any bytes to its server and to that of the metrics.

A response is never a server error, and the server answers the next request.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.routing import Route

from dayjob import App, Broker, BrokerConfig, NewJob, Recurring, Retention
from dayjob.dashboard import dashboard
from dayjob.dashboard.app import routes
from dayjob.dashboard.server import InThread, bind
from dayjob.metrics import MetricsServer
from tests.dashboard.browsing import TOKEN
from tests.fuzz.inputs import TEXT, few
from tests.support.bound import BOUND
from tests.support.waiting import with_timeout

DAY = 24 * 3600
CONFIG = BrokerConfig(duties=False, retention=Retention(done=DAY, dead=DAY, cancelled=DAY))

ROUTES = [(route.path, route.methods or set()) for route in routes() if isinstance(route, Route)]
PAGES = ["/{any}", "/api/{any}", "/static/{any}", *(path for path, methods in ROUTES if "GET" in methods)]
ACTIONS = [path for path, methods in ROUTES if "POST" in methods]
FIELDS = (
    "state", "queue", "task", "tenant", "worker", "recurring", "arg", "search", "after", "limit",
    "oldest_first", "all", "id", "ids", "message", "next", "csrf", "token", "payload", "arguments", "delay",
    "priority", "count",
)  # fmt: skip
IDS = ["00000000-0000-7000-8000-000000000000", "0" * 32]

BYTES = TEXT.map(lambda text: text.encode(errors="surrogatepass")) | st.binary(max_size=40)
PAIR = st.tuples(
    st.sampled_from(FIELDS).map(str.encode) | BYTES,
    BYTES.map(lambda value: quote_from_bytes(value).encode()) | BYTES,
)
QUERY = st.lists(PAIR, max_size=4).map(lambda pairs: b"&".join(b"=".join(pair) for pair in pairs))
HOST = (
    st.sampled_from([b"[", b"[::1", b"[::1]:x", b"h:1:2", b"", b"127.0.0.1:99999", b"a..b", b"\xff"]) | BYTES
)
HEADER = st.tuples(st.just(b"host"), HOST) | st.tuples(
    st.sampled_from(
        [
            b"host", b"cookie", b"authorization", b"origin", b"referer", b"content-type", b"content-length",
            b"accept", b"range", b"if-none-match", b"if-modified-since", b"x-forwarded-for", b"x-csrf-token",
            b"last-event-id", b"accept-encoding", b"sec-fetch-site", b"transfer-encoding",
        ]
    ),
    BYTES
    | st.sampled_from(
        [b"Bearer x", b"Basic eA==", b"Basic \xff", b"text/html", b"application/json", b"bytes=9-1"]
    ),
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes, bytes, list[tuple[bytes, bytes]], bytes]:
    """Draw a method, a path, a query, headers and a body. A third of the requests are authorized."""
    method = draw(
        st.sampled_from(["GET", "GET", "POST", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "\x01", "get"])
    )
    template = draw(st.sampled_from(ACTIONS if method == "POST" else PAGES))
    value = draw(st.sampled_from(IDS).map(str.encode) | BYTES)
    path = re.sub(rb"\{\w+\}", lambda _: value, template.encode())
    headers = draw(st.lists(HEADER, max_size=3))
    body = b""
    if method in ("POST", "PUT"):
        body = draw(QUERY | st.binary(max_size=100))
        kind = draw(st.sampled_from([b"application/x-www-form-urlencoded", b"application/json", b""]))
        headers.append((b"content-type", kind))
    if draw(st.integers(0, 2)):
        headers += [(b"authorization", f"Bearer {TOKEN}".encode()), (b"host", b"127.0.0.1")]
    return method, path, draw(QUERY), headers, body


_clients = count()


async def status_of(app: Any, method: str, path: bytes, query: bytes, headers: Any, body: bytes) -> int:
    """Send one request as an ASGI server does, and disconnect after it. Return the status.

    Each request has another client: failed logins slow a client down.
    """
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    statuses: list[int] = []

    async def receive() -> Any:
        return sent.pop() if sent else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path.decode(errors="replace"), "raw_path": path, "root_path": "", "query_string": query,
        "headers": headers, "client": (f"10.{next(_clients)}", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await with_timeout(app(scope, receive, send))
    return statuses[0]


async def fill(broker: Broker) -> None:
    """Store a job in each state, with values that are hard to show."""
    odd: Any = {"payload": b'{"a": "\xff', "headers": {"x<": "\u202e\n"}, "tenant": "t\x01"}
    names = ["done", "dead", "cancelled", "running", "pending"]
    made = await broker.enqueue_many([NewJob(name, task="t<b>", **odd) for name in names])
    [done] = await broker.claim("done")
    await broker.ack(done, result=b"\xff\xfe")
    [dead] = await broker.claim("dead")
    await broker.dead_letter(dead, "\x1b[31m<script>")
    await broker.cancel(made[2].id)
    await broker.claim("running", worker="w<")
    await broker.enqueue("later", b"", delay=3600)
    await broker.schedule(Recurring("s<", cron="*/5 * * * *", payload=b"\xff"))


def test_no_request_to_the_dashboard_is_a_server_error(caplog: pytest.LogCaptureFixture) -> None:
    with asyncio.Runner() as runner:
        broker = runner.run(Broker("memory://", config=CONFIG).open())
        runner.run(fill(broker))
        IDS[0] = runner.run(broker.jobs())[0].id
        app = dashboard(broker, token=TOKEN)

        @given(requests())
        @example(("GET", b"/jobs/", b"state=\x80", [(b"authorization", f"Bearer {TOKEN}".encode())], b""))
        @few(4)
        def check(request: Any) -> None:
            status = runner.run(status_of(app, *request))
            assert 200 <= status < 500

        check()
        runner.run(app.close())
        runner.run(broker.close())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# Over a socket.

LINE = st.sampled_from([b"GET", b"POST", b"HEAD", b"PRI", b"\xff", b""])
TARGET = (
    st.sampled_from([b"/", b"/healthz", b"/metrics", b"*", b"http://x/", b"//", b"/jobs?" + b"a" * 9000])
    | BYTES
)
VERSION = st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.1x", b""])
RAW_HEADER = st.tuples(HEADER, st.sampled_from([b": ", b":", b" : ", b" "])).map(
    lambda pair: pair[0][0] + pair[1] + pair[0][1]
) | st.sampled_from(
    [
        b"Content-Length: -1", b"Content-Length: 9999999999999999999", b"Transfer-Encoding: chunked",
        b" folded",
        b"Upgrade: websocket\r\nConnection: Upgrade", b"Expect: 100-continue", b"X: LONG",
    ]
)  # fmt: skip
ODD_LINE = st.tuples(LINE, TARGET, VERSION).map(b" ".join)
USUAL_LINE = st.sampled_from([b"GET /healthz HTTP/1.1", b"GET /metrics HTTP/1.1", b"GET / HTTP/1.1"])
RAW = st.binary(max_size=200) | st.builds(
    lambda line, headers, body: line + b"\r\n" + b"\r\n".join(headers) + b"\r\n\r\n" + body,
    ODD_LINE | USUAL_LINE | USUAL_LINE,
    st.lists(RAW_HEADER | HEADER.map(b": ".join), max_size=4),
    st.binary(max_size=50),
)

INVALID_CHUNK = b"GET / HTTP/1.1\r\nHost: elsewhere\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
"""The server refuses the body after the dashboard got the request, and its response is too late."""


def exchange(port: int, data: bytes, *, end: bool = True) -> bytes:
    """Send the bytes, end the stream, and return the reply of the server.

    uvicorn drops a client that ends its stream. It processes the request nevertheless, and logs an error.
    """
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=BOUND) as connection:
        try:
            connection.sendall(data.replace(b"LONG", b"y" * 70_000))
            if end:
                connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                received += chunk
        except OSError:
            pass  # The server may end the connection before it has read everything.
    return received


def abort(port: int, data: bytes) -> None:
    """Send the bytes and reset the connection: the server can't send its reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=BOUND) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(data)


@contextmanager
def serving_dashboard(folder: Path) -> Iterator[int]:
    app = App(f"sqlite:///{folder}/jobs.db")
    listening = bind("127.0.0.1", 0)
    server = InThread(app, dashboard(app), listening)
    server.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.stop()


@contextmanager
def serving_metrics(folder: Path) -> Iterator[int]:
    url = f"sqlite:///{folder}/jobs.db"
    server = MetricsServer(lambda: Broker(url, config=BrokerConfig(duties=False)), 0)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


@pytest.mark.parametrize("serving", [serving_dashboard, serving_metrics])
def test_no_bytes_stop_a_server(
    serving: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    threads = threading.active_count()  # Of other tests in this process.
    health = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    with serving(tmp_path) as port:
        assert b" 200 " in exchange(port, health, end=False).partition(b"\r\n")[0]

        @given(RAW)
        @few(3)
        @example(INVALID_CHUNK)
        def check(data: bytes) -> None:
            abort(port, data)
            first = exchange(port, data).partition(b"\r\n")[0]
            assert b" 500 " not in first
            assert b" 503 " not in first
            assert b" 501 " not in first or not data.startswith((b"GET ", b"HEAD "))

        check()
        assert b" 200 " in exchange(port, health, end=False).partition(b"\r\n")[0]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert "Traceback" not in capfd.readouterr().err
    assert threading.active_count() < threads + 20
