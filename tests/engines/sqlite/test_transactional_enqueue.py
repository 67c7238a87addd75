"""``enqueue(connection=...)``: the job belongs to the caller's transaction on the queue's own file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import aiosqlite
import pytest

from dayjob import App, Broker, BrokerConfig, ConfigError, EngineUnavailable, InvalidState, JobState
from dayjob.runtime.clock import SYSTEM
from tests.engines.sqlite.threads import on_writer
from tests.support.bound import BOUND
from tests.support.processes import pause

QUIET = BrokerConfig(duties=False)


@pytest.fixture
def connection(path: Path, broker: Broker) -> Iterator[sqlite3.Connection]:
    """The application's connection, with its own table."""
    connection = sqlite3.connect(path, timeout=1)
    connection.execute("CREATE TABLE orders (number INTEGER)")
    connection.commit()
    yield connection
    connection.close()


async def test_a_rollback_leaves_no_job(broker: Broker, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO orders VALUES (1)")
    enqueued = await broker.enqueue("new", kv={b"key": b"value"}, dedup_key="one", connection=connection)
    assert enqueued.created
    connection.rollback()
    assert await broker.get(enqueued.id) is None
    assert await broker.queues() == []
    assert await broker.kv_get(b"key") is None
    assert (await broker.enqueue("new", dedup_key="one")).created


async def test_the_job_is_there_when_the_transaction_commits(
    broker: Broker, connection: sqlite3.Connection
) -> None:
    connection.execute("INSERT INTO orders VALUES (1)")
    enqueued = await broker.enqueue("q", b"payload", kv={b"key": b"value"}, connection=connection)
    assert await broker.get(enqueued.id) is None, "not before"
    assert (await broker.stats("q")).pending == 0
    connection.commit()
    [job] = await broker.claim("q")
    assert (job.id, job.payload) == (enqueued.id, b"payload")
    assert await broker.kv_get(b"key") == b"value"
    await broker.ack(job)
    assert (await broker.stats("q")).done == 1
    assert connection.execute("SELECT number FROM orders").fetchall() == [(1,)]


async def test_several_jobs_of_a_transaction_are_all_or_none(
    broker: Broker, connection: sqlite3.Connection
) -> None:
    for _ in range(3):
        await broker.enqueue("q", connection=connection)
    connection.rollback()
    assert (await broker.stats("q")).pending == 0
    for _ in range(3):
        await broker.enqueue("q", connection=connection)
    connection.commit()
    assert len(await broker.claim("q", limit=10)) == 3


async def test_a_commit_wakes_a_waiting_claim(broker: Broker, connection: sqlite3.Connection) -> None:
    waiting = asyncio.create_task(broker.claim("q", wait=20))
    await pause(0.1)
    enqueued = await broker.enqueue("q", connection=connection)
    await pause(0.1)
    assert not waiting.done()
    connection.commit()
    committed = SYSTEM.elapsed()
    [job] = await waiting
    assert job.id == enqueued.id
    assert SYSTEM.elapsed() - committed < 4, "before the next look without a wake-up"


async def test_a_commit_wakes_the_promote_duty(url: str, connection: sqlite3.Connection) -> None:
    """The job is due before the duty's next run, and arrives through another connection."""
    async with Broker(url, config=BrokerConfig(promote_interval=60)) as dutiful:
        waiting = asyncio.create_task(dutiful.claim("q", wait=20))
        await pause(0.1)
        await dutiful.enqueue("q", delay=0.2, connection=connection)
        connection.commit()
        begun = SYSTEM.elapsed()
        assert len(await waiting) == 1
        assert SYSTEM.elapsed() - begun < 15


async def test_dedup_holds_between_transactions_and_plain_calls(
    broker: Broker, connection: sqlite3.Connection
) -> None:
    first = await broker.enqueue("q", dedup_key="one")
    second = await broker.enqueue("q", dedup_key="one", connection=connection)
    assert (second.id, second.created) == (first.id, False)
    third = await broker.enqueue("q", dedup_key="two", connection=connection)
    connection.commit()
    fourth = await broker.enqueue("q", dedup_key="two")
    assert (fourth.id, fourth.created) == (third.id, False)


async def test_an_enqueue_joins_the_transaction_that_the_caller_began(broker: Broker, path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    await broker.enqueue("q", connection=connection)
    connection.execute("ROLLBACK")
    connection.execute("BEGIN IMMEDIATE")
    enqueued = await broker.enqueue("q", connection=connection)
    connection.execute("COMMIT")
    connection.close()
    assert [job.id for job in await broker.claim("q", limit=5)] == [enqueued.id]


async def test_row_factories_of_the_caller_have_no_effect(
    broker: Broker, connection: sqlite3.Connection
) -> None:
    connection.row_factory = sqlite3.Row
    await broker.enqueue("q", dedup_key="one", connection=connection)
    connection.commit()
    connection.row_factory = lambda cursor, row: {"row": row}
    assert not (await broker.enqueue("q", dedup_key="one", connection=connection)).created
    connection.rollback()


async def test_a_connection_to_another_path_of_the_same_file_is_accepted(
    broker: Broker, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "alias.db").symlink_to(path)
    connection = sqlite3.connect(tmp_path / "alias.db")
    enqueued = await broker.enqueue("q", connection=connection)
    connection.commit()
    connection.close()
    assert await broker.get(enqueued.id) is not None


async def test_a_connection_to_another_file_is_refused(broker: Broker, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    async with Broker(f"sqlite:///{other}", config=QUIET):
        """Another queue: the job would be lost in it."""
    for name in (str(other), ":memory:", ""):
        connection = sqlite3.connect(name)
        with pytest.raises(ConfigError, match="pass a connection to the queue's own file") as caught:
            await broker.enqueue("q", connection=connection)
        assert str(path) in str(caught.value)
        assert not connection.in_transaction
        connection.close()
    assert await broker.queues() == []


async def test_an_autocommit_connection_without_a_transaction_is_refused(broker: Broker, path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(InvalidState, match="execute BEGIN on it first"):
        await broker.enqueue("q", connection=connection)
    assert not connection.in_transaction
    connection.close()
    assert await broker.queues() == []


async def test_a_connection_of_aiosqlite_is_used_in_its_own_thread(broker: Broker, path: Path) -> None:
    async with aiosqlite.connect(path) as connection:
        lost = await broker.enqueue("q", connection=connection)
        await connection.rollback()
        kept = await broker.enqueue("q", connection=connection)
        assert await broker.get(kept.id) is None
        await connection.commit()
        assert [job.id for job in await broker.claim("q", limit=2)] == [kept.id]
        assert await broker.get(lost.id) is None
        with pytest.raises(TypeError, match="is asynchronous: use aenqueue"):
            broker.enqueue_tx([], connection)


@pytest.mark.parametrize("connection", ["text", 5, object()])
async def test_an_object_that_is_not_a_connection_is_refused(broker: Broker, connection: object) -> None:
    with pytest.raises(TypeError, match=r"connection=.* can't be used: pass a connection of sqlite3"):
        await broker.enqueue("q", connection=connection)


@pytest.mark.parametrize("begun", [False, True], ids=["no transaction", "a reading transaction"])
async def test_a_lock_of_another_process_raises_engine_unavailable(
    broker: Broker, connection: sqlite3.Connection, path: Path, begun: bool
) -> None:
    connection.execute("PRAGMA busy_timeout = 50")
    if begun:
        connection.isolation_level = None
        connection.execute("BEGIN")
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(EngineUnavailable, match="locked"):
            await broker.enqueue("q", connection=connection)
    connection.rollback()
    await broker.enqueue("q")


# The first use of a file by a process, inside a write transaction.


@pytest.fixture
def shop(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a new file without tables of a queue, with an open write transaction."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
        connection.execute("INSERT INTO users VALUES ('ada')")
        assert connection.in_transaction
        yield connection


async def test_the_first_use_of_a_new_file_may_be_in_a_transaction(
    url: str, shop: sqlite3.Connection
) -> None:
    async with asyncio.timeout(BOUND), Broker(url, config=QUIET) as broker:
        first = await broker.enqueue("q", b"1", connection=shop)
        second = await broker.enqueue("q", b"2", connection=shop)
        shop.commit()
        assert [job.id for job in await broker.claim("q", limit=5)] == [first.id, second.id]
        assert await on_writer(broker, "PRAGMA journal_mode") == [("wal",)]


async def test_a_rollback_of_the_first_use_leaves_no_tables_and_a_usable_queue(
    url: str, shop: sqlite3.Connection
) -> None:
    async with asyncio.timeout(BOUND), Broker(url, config=QUIET) as broker:
        await broker.enqueue("q", connection=shop)
        shop.rollback()
        assert shop.execute("SELECT name FROM sqlite_master").fetchall() == [("users",)]
        assert (await broker.stats("q")).pending == 0
        enqueued = await broker.enqueue("q", connection=shop)
        shop.commit()
        assert [job.id for job in await broker.claim("q")] == [enqueued.id]


async def test_the_first_use_of_an_existing_queue_may_be_in_a_transaction(url: str, path: Path) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE dayjob_kv SET value = x''")
        assert connection.in_transaction
        async with asyncio.timeout(BOUND), Broker(url, config=QUIET) as broker:
            await broker.enqueue("q", connection=connection)
            connection.commit()
            assert (await broker.stats("q")).pending == 2


def test_the_first_synchronous_call_of_an_app_may_be_in_a_transaction(
    url: str, shop: sqlite3.Connection
) -> None:
    app = App(f"{url}?timeout=5")

    @app.task
    def welcome(name: str) -> str:
        return name

    handle = welcome.using(connection=shop).enqueue("ada")
    shop.commit()
    with app:
        assert handle.status() is JobState.PENDING
