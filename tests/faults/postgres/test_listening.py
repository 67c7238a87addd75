"""Notifications wake waiting callers: few are sent, and a broken listening connection is replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from psycopg import AsyncConnection

from dayjob import Broker, BrokerConfig, EngineUnavailable, NewJob
from dayjob.runtime.clock import SYSTEM
from tests.support.arrange import KEEP_ALL, claim_one
from tests.support.bound import BOUND
from tests.support.servers.postgres import schema_of, server_url, with_options
from tests.support.servers.postgres_proxy import Proxy
from tests.support.workers import until, with_timeout

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)

HOUR = 3600.0


@pytest.fixture(autouse=True)
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only notifications wake waiting callers."""
    monkeypatch.setattr("dayjob.engines.postgres.notifier.CHECK", HOUR)


@pytest.fixture
async def console() -> AsyncIterator[AsyncConnection[tuple[object, ...]]]:
    async with await AsyncConnection.connect(server_url(), autocommit=True) as console:
        yield console


class Listeners:
    """The sessions that listen for one schema."""

    def __init__(self, console: AsyncConnection[tuple[object, ...]], schema: str) -> None:
        self._console = console
        self._schema = schema

    async def pids(self) -> set[object]:
        cursor = await self._console.execute(
            "SELECT pid FROM pg_stat_activity WHERE state = 'idle' AND query ILIKE %s",
            [f"LISTEN%{self._schema}%"],
        )
        return {pid for (pid,) in await cursor.fetchall()}

    async def until(self, count: int, besides: AbstractSet[object] = frozenset()) -> set[object]:
        """Wait for that many. Return their process ids."""

        async def listen() -> bool:
            return len(await self.pids() - besides) == count

        await until(listen)
        return await self.pids() - besides

    async def end(self, pids: set[object]) -> None:
        await self._console.execute(
            "SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [[*pids]]
        )


@pytest.fixture
def listeners(console: AsyncConnection[tuple[object, ...]], tmp_path: Path) -> Listeners:
    return Listeners(console, schema_of(tmp_path))


async def test_all_waits_of_a_process_share_one_listening_connection(
    direct_url: str, listeners: Listeners
) -> None:
    async with Broker(direct_url, config=QUIET) as broker, Broker(direct_url, config=QUIET) as other:
        waiting = [asyncio.create_task(broker.claim(f"q{n}", wait=HOUR)) for n in range(20)]
        await listeners.until(1)
        await other.enqueue_many([NewJob(f"q{n}") for n in range(20)])
        claimed = await with_timeout(asyncio.gather(*waiting))
        assert [len(jobs) for jobs in claimed] == [1] * 20
        assert len(await listeners.pids()) == 1


async def test_a_terminated_listening_connection_is_replaced(direct_url: str, listeners: Listeners) -> None:
    async with Broker(direct_url, config=QUIET) as broker, Broker(direct_url, config=QUIET) as other:
        ended: set[object] = set()
        for _ in range(3):
            waiting = asyncio.create_task(broker.claim("q", wait=HOUR))
            listening = await listeners.until(1, besides=ended)
            await listeners.end(listening)
            ended |= listening
            await listeners.until(1, besides=ended)
            enqueued = await other.enqueue("q")
            (job,) = await with_timeout(waiting)
            assert job.id == enqueued.id


async def test_a_server_that_falls_silent_while_the_listener_starts_is_unavailable(
    wire: Proxy, url: str
) -> None:
    """Reads wait for the start of the listener, which has a time limit."""

    def stall(sent: str) -> bool:
        if "LISTEN" in sent:
            wire.stall()
        return False

    async with Broker(with_options(url, timeout="3"), config=QUIET) as broker:
        wire.cut()
        wire.lose_reply(stall)
        with pytest.raises(EngineUnavailable):
            await with_timeout(broker.claim("q", wait=HOUR))
        wire.resume()


async def test_changes_during_an_outage_are_found_and_the_outage_is_logged(
    wire: Proxy, url: str, direct_url: str, listeners: Listeners, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dayjob.engines.postgres")
    url = with_options(url, timeout=str(BOUND))  # On a slow machine the outage takes longer than 15 s.
    async with Broker(url, config=QUIET) as broker, Broker(direct_url, config=QUIET) as other:
        claim = asyncio.create_task(broker.claim("q", wait=HOUR))
        ended = asyncio.create_task(broker.wait((await other.enqueue("w")).id, HOUR))
        await listeners.until(1)
        wire.refuse()
        wire.cut()
        enqueued = await other.enqueue("q")
        await other.ack(await claim_one(other, "w"))
        await until(lambda: "polling until notifications arrive again" in caplog.text)
        await wire.accept()
        (job,) = await with_timeout(claim)
        assert job.id == enqueued.id
        assert (await with_timeout(ended)).status == "completed"


@asynccontextmanager
async def received(schema: str) -> AsyncIterator[asyncio.Queue[str]]:
    """The notifications for the schema during the block."""
    notifications: asyncio.Queue[str] = asyncio.Queue()

    async with await AsyncConnection.connect(server_url(), autocommit=True) as connection:
        await connection.execute(f'LISTEN "dayjob {schema}"')

        async def listen() -> None:
            async for notification in connection.notifies():
                notifications.put_nowait(notification.payload)

        listening = asyncio.create_task(listen())
        try:
            yield notifications
        finally:
            listening.cancel()
            await asyncio.wait({listening})


async def test_a_busy_queue_does_not_send_a_notification_per_insert(
    direct_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = 0.5
    monkeypatch.setattr("dayjob.engines.postgres.notifier.SHORTEST_WINDOW", window)
    inserts = 300
    async with Broker(direct_url, config=QUIET) as broker, received(schema_of(tmp_path)) as notifications:
        begun = SYSTEM.elapsed()
        for _ in range(inserts):
            await broker.enqueue("q")
        windows = (SYSTEM.elapsed() - begun) / window
        await until(lambda: notifications.qsize() >= 2)
    assert notifications.qsize() <= 2 * windows + 3, "at most one at each end of a window"
    assert notifications.qsize() < inserts / 2


async def test_every_job_of_a_burst_wakes_a_waiting_claim(direct_url: str) -> None:
    """A job wakes a claim however soon it follows the one before."""
    async with Broker(direct_url, config=QUIET) as broker, Broker(direct_url, config=QUIET) as other:
        claimed: list[str] = []

        async def claim_all() -> None:
            while len(claimed) < 100:
                claimed.extend(job.id for job in await broker.claim("q", limit=10, wait=HOUR))

        claiming = asyncio.create_task(claim_all())
        enqueued = [(await other.enqueue("q")).id for _ in range(100)]
        await with_timeout(claiming)
        assert sorted(claimed) == enqueued


async def test_a_cancel_reaches_a_claim_in_another_process_after_an_outage(
    wire: Proxy, url: str, direct_url: str, listeners: Listeners
) -> None:
    async with Broker(url, config=QUIET) as broker, Broker(direct_url, config=QUIET) as other:
        await other.enqueue("q")
        job = await claim_one(broker)
        await listeners.until(1)
        wire.refuse()
        wire.cut()
        await other.cancel(job.id)
        await wire.accept()
        await with_timeout(job.cancel_token.wait())
        await broker.mark_cancelled(job)
