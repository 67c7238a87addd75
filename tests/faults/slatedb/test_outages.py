"""A store that refuses requests, stalls or hangs: every call ends in time, and work continues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from slatedb import uniffi

from dayjob import App, Broker, BrokerConfig, EngineUnavailable, NewJob, Worker
from dayjob.engines.slatedb import payload_cache
from dayjob.runtime.clock import SYSTEM, yield_to_loop
from tests.engines.slatedb.damage import open_thread
from tests.engines.slatedb.s3 import Proxy
from tests.faults.slatedb.conftest import QUIET
from tests.faults.slatedb.faults import limit, on_thread, refuse_once
from tests.support.bound import BOUND
from tests.support.processes import until

pytestmark = pytest.mark.slow

LONG = 40.0
"""Seconds after which a call counts as hanging. The time limits are much shorter."""

EXPIRED = (
    b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"
)


async def test_reads_end_within_the_time_limit(
    url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The payloads are in a table of the bucket, and in no cache."""
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue_many([NewJob("q", b"x" * 5000) for _ in range(100)])
        await on_thread(open_thread(url), open_thread(url)._database.flush(table=True))
    monkeypatch.setattr(payload_cache, "ROOM", 0)
    async with Broker(url, config=QUIET) as broker:
        limit(broker, url, 1)
        proxy.failing = b"503 Slow Down"
        async with asyncio.timeout(LONG):
            replies = await asyncio.gather(
                broker.claim("q", limit=50), broker.jobs("q"), broker.stats("q"), return_exceptions=True
            )
        assert [type(reply) for reply in replies[:2]] == [type(replies[0])] * 2
        assert isinstance(replies[0], EngineUnavailable)
        proxy.failing = None

        async def claimed() -> bool:
            try:
                return len(await broker.claim("q", limit=50)) == 50
            except EngineUnavailable:
                return False

        await until(claimed)


async def test_calls_behind_a_stalled_write_end_and_their_repetition_gets_the_reply(
    url: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SlateDB accepts no further write while too many bytes are not durable."""
    thread, stalled = open_thread(url), asyncio.Event()
    write = thread._database.write

    async def stall(changes: Mapping[bytes, bytes | None]) -> uniffi.WriteHandle:
        await stalled.wait()
        return await write(changes)

    monkeypatch.setattr(thread._database, "write", stall)
    limit(broker, url, 1)
    async with asyncio.timeout(LONG):
        for calls in ([broker.enqueue("q", b"one")], [broker.stats("q"), broker.kv_get(b"k"), broker.jobs()]):
            for reply in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(reply, EngineUnavailable)
                assert "the store has not replied" in str(reply)
    limit(broker, url, 30)
    assert thread._loop is not None
    thread._loop.call_soon_threadsafe(stalled.set)
    assert [job.payload for job in await broker.jobs()] == [b"one"]


async def test_close_ends_within_the_time_limit(url: str, proxy: Proxy) -> None:
    broker = await Broker(url, config=QUIET).open()
    limit(broker, url, 1)
    proxy.failing = b"503 Slow Down"
    enqueuing = asyncio.ensure_future(broker.enqueue("q", b"x" * 1000))
    async with asyncio.timeout(LONG):
        await yield_to_loop()
        await broker.close()
        with pytest.raises(EngineUnavailable):
            await enqueuing


async def test_a_second_stop_ends_a_worker_during_an_outage(url: str, proxy: Proxy) -> None:
    """After the first one, it waits until its outcomes are stored."""
    app, ran = App(f"{url}&timeout=5"), asyncio.Event()

    @app.task(name="run")
    async def run() -> None:
        ran.set()

    worker = Worker(app, shutdown_timeout=1)
    running = asyncio.ensure_future(worker.run())
    async with asyncio.timeout(LONG + 60):
        await run.aenqueue()
        await ran.wait()
        proxy.failing = b"503 Slow Down"
        worker.stop()
        worker.stop_now()
        await running
    await app.close()


async def test_a_worker_goes_on_after_a_refused_write(
    url: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """SlateDB stops permanently after one such refusal, so the database is opened again."""
    app = App(url, config=BrokerConfig())
    seen: list[int] = []

    @app.task(name="run")
    async def run(number: int) -> None:
        seen.append(number)

    worker = Worker(app)
    running = asyncio.ensure_future(worker.run())
    async with asyncio.timeout(LONG + 60):
        await run.aenqueue(1)
        await until(lambda: _true(1 in seen))
        refuse_once(proxy, b"404 Not Found")

        async def enqueued() -> bool:
            try:
                await run.aenqueue(2)
            except EngineUnavailable:
                return False
            return proxy.refused == 1

        await until(enqueued)
        await until(lambda: _true(2 in seen))
        worker.stop()
        await running
    assert len(caplog.text) < 50_000
    await app.close()


async def _true(value: bool) -> bool:
    return value


async def test_expired_credentials_are_named(url: str, broker: Broker, proxy: Proxy) -> None:
    await broker.enqueue("q")
    limit(broker, url, 4)
    proxy.failing, proxy.failure_body = b"403 Forbidden", EXPIRED
    with pytest.raises(EngineUnavailable, match="the credentials have expired: renew them"):
        await broker.enqueue("q")


async def test_opening_continues_as_long_as_requests_succeed(url: str, proxy: Proxy) -> None:
    """The time limit is one for each request, not for all of them."""
    async with Broker(url, config=QUIET) as broker:
        for number in range(10):
            await broker.enqueue("q", b"%d" % number)
    proxy.latency, begun = 0.5, SYSTEM.elapsed()
    async with asyncio.timeout(BOUND), Broker(f"{url}&timeout=3", config=QUIET) as broker:
        assert SYSTEM.elapsed() - begun > 3
        proxy.latency = 0
        assert (await broker.stats("q")).pending == 10
