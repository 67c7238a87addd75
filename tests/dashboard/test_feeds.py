"""Live pages: one shared read per feed, at most one update per second, and a bounded lifetime."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Message

from dayjob import Broker, EngineUnavailable
from dayjob.dashboard import dashboard, feeds
from dayjob.dashboard.feeds import Feeds
from dayjob.engines.base import Progress
from dayjob.testing import ManualClock
from tests.dashboard.browsing import Browser, make_running
from tests.support.bound import BOUND


class Stream:
    """A client that reads events directly from the ASGI application."""

    def __init__(self, app: Any, path: str, query: str = "") -> None:
        self._app = app
        self._scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": query.encode(), "headers": [(b"host", b"127.0.0.1")], "scheme": "http",
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "http_version": "1.1",
        }  # fmt: skip
        self._disconnected = asyncio.Event()
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.start: Message | None = None

    async def _receive(self) -> Message:
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def run(self) -> None:
        await self._app(self._scope, self._receive, self.messages.put)

    async def next(self) -> str:
        async with asyncio.timeout(BOUND):
            message = await self.messages.get()
            if message["type"] == "http.response.start":
                self.start = message
                return await self.next()
            return bytes(message["body"]).decode()

    async def update(self) -> dict[str, Any]:
        """Return the data of the next event."""
        while not (text := await self.next()).startswith("data: "):
            pass
        found: dict[str, Any] = json.loads(text.removeprefix("data: "))
        return found

    def disconnect(self) -> None:
        self._disconnected.set()


@asynccontextmanager
async def subscribed(app: Any, path: str, query: str = "") -> AsyncIterator[Stream]:
    stream = Stream(app, path, query)
    running = asyncio.ensure_future(stream.run())
    try:
        yield stream
    finally:
        stream.disconnect()
        async with asyncio.timeout(BOUND):
            await running


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "INTERVAL", 0.01)


async def test_the_overview_stream_sends_changes(broker: Broker) -> None:
    made = dashboard(broker)
    await broker.enqueue("email")
    async with subscribed(made, "/events/overview") as stream:
        first = await stream.update()
        assert stream.start is not None
        assert dict(stream.start["headers"])[b"content-type"].startswith(b"text/event-stream")
        assert first["values"]["total-pending"] == "1"
        assert first["charts"]["chart-throughput"].startswith("<div")
        await broker.enqueue("email")
        while (following := await stream.update())["values"]["total-pending"] != "2":
            pass
        assert following["shape"] == first["shape"]
        await broker.enqueue("other")
        while (await stream.update())["shape"] == first["shape"]:
            pass
    assert made._state.feeds.subscribers == 0


async def test_the_page_and_the_stream_agree_on_the_shape(broker: Broker) -> None:
    made = dashboard(broker)
    job = await make_running(broker)
    for page, path in (
        ("/", "/events/overview"),
        ("/workers", "/events/workers"),
        ("/schedules", "/events/schedules"),
        (f"/jobs/{job.id}", f"/jobs/{job.id}/events"),
    ):
        text = await Browser(made).text(page)
        async with subscribed(made, path) as stream:
            assert f'data-shape="{(await stream.update())["shape"]}"' in text, page


async def test_the_job_stream_sends_its_progress(broker: Broker) -> None:
    made = dashboard(broker)
    job = await make_running(broker)
    await broker.record_progress([Progress(job.key, job.claim, 0.1, "begun")])
    async with subscribed(made, f"/jobs/{job.id}/events") as stream:
        first = await stream.update()
        assert first["progress"] == {"progress": 0.1}
        await broker.record_progress([Progress(job.key, job.claim, 0.9, "nearly")])
        while (following := await stream.update())["progress"] != {"progress": 0.9}:
            pass
        assert following["values"]["progress-text"] == "90% nearly"
        await broker.ack(job)
        while (await stream.update())["shape"] == first["shape"]:
            pass


async def test_a_head_request_ends_at_once(broker: Broker) -> None:
    async with asyncio.timeout(BOUND):
        answer = await Browser(dashboard(broker)).client.head("/events/overview")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_an_unknown_topic_is_a_404(broker: Broker) -> None:
    assert (await Browser(dashboard(broker)).get("/events/nothing")).status_code == 404


async def test_an_unavailable_store_sends_a_problem_and_the_stream_continues(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> Any:
        raise EngineUnavailable("the disk is gone")

    made = dashboard(broker)
    await broker.enqueue("email")
    async with subscribed(made, "/events/overview") as stream:
        await stream.update()
        with monkeypatch.context() as patch:
            patch.setattr(broker, "all_stats", fails)
            while "the disk is gone" not in await stream.next():
                pass
        await stream.update()


async def test_closing_the_dashboard_ends_its_streams(broker: Broker) -> None:
    made = dashboard(broker)
    stream = Stream(made, "/events/overview")
    running = asyncio.ensure_future(stream.run())
    await stream.update()
    made.stop()
    async with asyncio.timeout(BOUND):
        await running


async def test_streams_beyond_the_limit_are_a_503(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MAX_SUBSCRIBERS", 1)
    made = dashboard(broker)
    async with subscribed(made, "/events/overview") as stream:
        await stream.update()
        assert (await Browser(made).get("/events/workers")).status_code == 503


# Feeds, with a manual clock.


class CountedReads:
    def __init__(self) -> None:
        self.count = 0
        self.happened = asyncio.Event()

    async def __call__(self) -> dict[str, Any]:
        self.count += 1
        self.happened.set()
        return {"number": self.count}


async def settle() -> None:
    """Let every ready task run."""
    loop = asyncio.get_running_loop()
    for _ in range(50):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


async def test_subscribers_of_the_same_feed_share_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "INTERVAL", 1.0)
    clock, reads = ManualClock(), CountedReads()
    shared = Feeds(clock)
    streams = [shared.stream(("topic",), reads) for _ in range(50)]
    for stream in streams:
        assert await anext(stream) == b"retry: 1000\n\n"
        assert await anext(stream) == b'data: {"number":1}\n\n'
    assert reads.count == 1
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await settle()
    assert reads.count == 1
    clock.advance(0.9)
    await settle()
    assert reads.count == 1
    clock.advance(0.2)
    assert {await each for each in waiting} == {b'data: {"number":2}\n\n'}
    assert reads.count == 2
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    assert shared.subscribers == 0
    clock.advance(100)
    await settle()
    assert reads.count == 2


async def test_a_slow_client_receives_only_the_latest_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "INTERVAL", 1.0)
    clock, reads = ManualClock(), CountedReads()
    stream = Feeds(clock).stream(("topic",), reads)
    await anext(stream)
    await anext(stream)
    for _ in range(5):
        await settle()
        clock.advance(1.1)
    await settle()
    assert await anext(stream) == b'data: {"number":6}\n\n'
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_slow_read_is_repeated_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "INTERVAL", 1.0)
    clock = ManualClock()
    reads = 0

    async def slow() -> dict[str, Any]:
        nonlocal reads
        reads += 1
        clock.advance(2)
        return {"number": reads}

    stream = Feeds(clock).stream(("topic",), slow)
    await anext(stream)
    await anext(stream)
    await settle()
    clock.advance(7.9)
    await settle()
    assert reads == 1
    clock.advance(0.2)
    await settle()
    assert reads == 2
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_stream_sends_keepalives_and_ends_after_its_lifetime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unchanged() -> dict[str, Any]:
        return {}

    clock = ManualClock()
    stream = Feeds(clock).stream(("topic",), unchanged)
    assert await anext(stream) == b"retry: 1000\n\n"
    assert await anext(stream) == b"data: {}\n\n"
    received = []

    async def read() -> None:
        received.extend([message async for message in stream])

    reading = asyncio.ensure_future(read())
    for _ in range(70):
        await settle()
        clock.advance(1)
    async with asyncio.timeout(BOUND):
        await reading
    assert received == [b": keepalive\n\n"] * 4
