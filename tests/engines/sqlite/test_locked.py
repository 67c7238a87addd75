"""Another process holds the write lock: calls wait for it, up to ``timeout``."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, EngineUnavailable, Job, NewJob
from tests.support.bound import BOUND
from tests.support.processes import pause, until

QUIET = BrokerConfig(duties=False)
SHORT_TIMEOUT = "?timeout=0.2"


@pytest.fixture
def foreign(path: Path, broker: Broker) -> Iterator[sqlite3.Connection]:
    """Another connection, to an existing file."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


async def test_calls_wait_for_the_lock(broker: Broker, foreign: sqlite3.Connection) -> None:
    held = await running(broker)
    foreign.execute("BEGIN IMMEDIATE")
    calls = [
        asyncio.create_task(call)
        for call in (
            broker.enqueue("q"), broker.enqueue_many([NewJob("q")]), broker.ack(held),
            broker.kv_put(b"key", b"value"), broker.pause("other"), broker.claim("empty"),
        )
    ]  # fmt: skip
    await pause(0.3)
    assert not any(call.done() for call in calls)
    assert (await broker.stats("q")).running == 1, "reads do not wait"
    assert await broker.get(held.id) is not None
    foreign.execute("COMMIT")
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*calls)
    stats = await broker.stats("q")
    assert (stats.pending, stats.running, stats.done) == (2, 0, 1)


async def running(broker: Broker) -> Job:
    await broker.enqueue("q")
    [job] = await broker.claim("q")
    return job


async def test_after_the_timeout_calls_fail_and_nothing_is_written(
    url: str, foreign: sqlite3.Connection
) -> None:
    async with Broker(url + SHORT_TIMEOUT, config=QUIET) as broker:
        held = await running(broker)
        foreign.execute("BEGIN IMMEDIATE")
        calls = (
            broker.enqueue("q", kv={b"key": b"value"}), broker.enqueue_many([NewJob("q")] * 3),
            broker.ack(held), broker.claim("q"), broker.cancel(held.id), broker.pause("q"),
        )  # fmt: skip
        async with asyncio.timeout(BOUND):
            answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, EngineUnavailable), answer
            assert url in str(answer)
            assert "stayed locked for 0.2 s" in str(answer)
        foreign.execute("ROLLBACK")

        stats = await broker.stats("q")
        assert (stats.pending, stats.running) == (0, 1)
        assert await broker.kv_get(b"key") is None
        assert await broker.paused() == set()
        found = await broker.get(held.id)
        assert found is not None
        assert not found.cancel_requested

        await broker.ack(held)
        await broker.enqueue("q", kv={b"key": b"value"})
        assert len(await broker.claim("q")) == 1


async def test_opening_does_not_wait_for_the_lock_but_the_first_write_does(
    url: str, foreign: sqlite3.Connection
) -> None:
    foreign.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(BOUND), Broker(url, config=QUIET) as other:
        assert await other.queues() == [], "reads do not wait"
        writing = asyncio.create_task(other.enqueue("q"))
        await pause(0.2)
        assert not writing.done()
        foreign.execute("COMMIT")
        assert (await writing).created


async def test_the_first_write_fails_after_the_timeout(url: str, foreign: sqlite3.Connection) -> None:
    foreign.execute("BEGIN IMMEDIATE")
    async with Broker(url + SHORT_TIMEOUT, config=QUIET) as other:
        with pytest.raises(EngineUnavailable, match=r"stayed locked for 0\.2 s"):
            await other.enqueue("q")
        foreign.execute("COMMIT")
        assert (await other.enqueue("q")).created


async def test_a_locked_file_without_tables_gets_them_once_the_lock_is_free(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("CREATE TABLE users (name TEXT)")
        foreign.execute("BEGIN IMMEDIATE")
        foreign.execute("INSERT INTO users VALUES ('ada')")
        async with asyncio.timeout(BOUND), Broker(f"sqlite:///{path}", config=QUIET) as other:
            calls = [asyncio.create_task(other.stats("q")), asyncio.create_task(other.enqueue("q"))]
            await pause(0.2)
            assert not any(call.done() for call in calls)
            foreign.execute("COMMIT")
            await asyncio.gather(*calls)
            assert (await other.stats("q")).pending == 1


async def test_the_duties_continue_after_the_lock(url: str, foreign: sqlite3.Connection) -> None:
    config = BrokerConfig(promote_interval=0.1, reap_interval=0.1)
    async with Broker(url + SHORT_TIMEOUT, config=config) as broker:
        await broker.enqueue("q", delay=0.1)
        await broker.enqueue("lapsing")
        [lapsing] = await broker.claim("lapsing", lease=0.1)
        foreign.execute("BEGIN IMMEDIATE")
        await pause(0.6)
        foreign.execute("COMMIT")
        assert len(await broker.claim("q", wait=10)) == 1
        assert [job.id for job in await broker.claim("lapsing", wait=10)] == [lapsing.id]


async def test_an_endless_reader_does_not_block_writers(broker: Broker, foreign: sqlite3.Connection) -> None:
    foreign.execute("BEGIN")
    foreign.execute("SELECT count(*) FROM dayjob_jobs").fetchone()
    for _ in range(20):
        await broker.enqueue("q")
    assert len(await broker.claim("q", limit=20)) == 20
    assert foreign.execute("SELECT count(*) FROM dayjob_jobs").fetchone() == (0,)
    foreign.execute("COMMIT")

    async def seen() -> bool:
        count: tuple[int] = foreign.execute("SELECT count(*) FROM dayjob_jobs").fetchone()
        return count == (20,)

    await until(seen, 5)
