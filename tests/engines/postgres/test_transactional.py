"""``enqueue(connection=...)``: the job is part of the caller's transaction, with every supported driver."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, closing
from typing import Any, TypeVar

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from dayjob import App, Broker, BrokerConfig, ConfigError, Enqueued, InvalidState, Job, JobState, NewJob
from dayjob.engines.postgres.settings import PostgresSettings
from tests.engines.postgres.caller_connections import ASYNC, DRIVERS, SYNC, Caller, Driver, with_driver
from tests.support.arrange import claim_one, record
from tests.support.observe import check_counters, everything
from tests.support.servers.postgres import server_url, with_options
from tests.support.servers.private_postgres import private_server
from tests.support.workers import until, with_timeout

QUIET = BrokerConfig(duties=False)
HOUR = 3600.0

T = TypeVar("T")


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


@pytest.fixture
async def caller(driver: Driver, broker: Broker) -> AsyncIterator[Caller]:
    """An application with an open transaction; the tables exist."""
    async with driver(server_url()) as caller:
        yield caller


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only notifications wake waiting callers."""
    monkeypatch.setattr("dayjob.engines.postgres.notifier.CHECK", HOUR)


@asynccontextmanager
async def waiting_claim(
    url: str, console: psycopg.Connection[tuple[Any, ...]], schema: str
) -> AsyncIterator[asyncio.Task[Any]]:
    """A waiting claim of another broker that only a notification wakes."""

    def listens() -> bool:
        query = "SELECT FROM pg_stat_activity WHERE state = 'idle' AND query ILIKE %s"
        return console.execute(query, [f"LISTEN%{schema}%"]).fetchone() is not None

    async with Broker(with_options(url, poll="1000"), config=QUIET) as other:
        claim = asyncio.create_task(other.claim("q", wait=HOUR))
        await until(listens)
        try:
            yield claim
        finally:
            claim.cancel()


@asynccontextmanager
async def notifications(schema: str) -> AsyncIterator[list[str]]:
    """The notifications that are sent in the block, complete after it."""
    channel = PostgresSettings("", "", schema).channel
    received: list[str] = []
    over = asyncio.Event()

    def receive(_: object, __: int, ___: str, message: str) -> None:
        if message == "over":
            over.set()
        else:
            received.append(message)

    connection = await asyncpg.connect(server_url())
    try:
        await connection.add_listener(channel, receive)
        yield received
        await connection.execute("SELECT pg_notify($1, 'over')", channel)
        await with_timeout(over.wait())
    finally:
        await connection.close()


# Commit and rollback.


@pytest.mark.usefixtures("no_polling")
async def test_a_commit_makes_the_job_claimable_and_wakes_a_waiting_claim(
    broker: Broker, caller: Caller, url: str, schema: str, console: psycopg.Connection[tuple[Any, ...]]
) -> None:
    async with waiting_claim(url, console, schema) as waiting:
        enqueued = await broker.enqueue("q", b"data", connection=caller.connection)
        assert enqueued.created
        assert await broker.get(enqueued.id) is None, "not before the commit"
        assert not waiting.done()
        await caller.commit()
        (job,) = await with_timeout(waiting)
        assert (job.id, job.payload) == (enqueued.id, b"data")
    await check_counters(broker)


async def test_a_rollback_leaves_no_trace(
    broker: Broker, caller: Caller, schema: str, console: psycopg.Connection[tuple[Any, ...]]
) -> None:
    before = await everything(broker)
    async with notifications(schema) as received:
        enqueued = await broker.enqueue("new", kv={b"k": b"v"}, dedup_key="d", connection=caller.connection)
        await broker.enqueue_many([NewJob("new"), NewJob("newer")], connection=caller.connection)
        await caller.rollback()
    assert received == []
    assert await everything(broker) == before
    assert await broker.queues() == []
    assert await broker.get(enqueued.id) is None
    assert await broker.kv_get(b"k") is None
    for table in ("jobs", "counters", "replies", "kv"):
        assert console.execute(f'SELECT FROM "{schema}".{table}').fetchall() == []
    assert (await broker.enqueue("new", dedup_key="d")).created, "the key is free"


async def test_all_options_work_in_a_transaction(broker: Broker, caller: Caller) -> None:
    first = await broker.enqueue(
        "q", b"\x00data\xff", task="t", headers={"h": "ü\n'\"\\"}, kv={b"k\x00": b"v\x00"}, dedup_key="d'\"",
        delay=60, priority=5, max_attempts=7, tenant="acme", expires=120, connection=caller.connection,
    )  # fmt: skip
    again = await broker.enqueue("q", dedup_key="d'\"", kv={b"k\x00": b"no"}, connection=caller.connection)
    assert again == Enqueued(first.id, False)
    await caller.commit()
    job = await record(broker, first.id)
    assert (job.payload, job.task, job.headers) == (b"\x00data\xff", "t", {"h": "ü\n'\"\\"})
    assert (job.state, job.priority, job.max_attempts, job.tenant) == (JobState.SCHEDULED, 5, 7, "acme")
    assert (job.run_at - job.enqueued_at).total_seconds() == 60
    assert job.expires_at is not None
    assert (job.expires_at - job.enqueued_at).total_seconds() == 120
    assert await broker.kv_get(b"k\x00") == b"v\x00"
    assert await broker.enqueue("q", dedup_key="d'\"") == Enqueued(first.id, False)
    await check_counters(broker)


async def test_enqueue_many_in_a_transaction_skips_held_keys_and_existing_ids(
    broker: Broker, caller: Caller
) -> None:
    held = await broker.enqueue("q", b"held", dedup_key="held")
    enqueued = await broker.enqueue_many(
        [
            NewJob("q", b"plain"),
            NewJob("q", b"keyed", dedup_key="new"),
            NewJob("q", b"late", dedup_key="held"),
            NewJob("r", b"another", dedup_key="held", kv={b"k": b"v"}),
            NewJob("q", b"same id", id=held.id),
        ],
        connection=caller.connection,
    )
    await caller.commit()
    assert [each.created for each in enqueued] == [True, True, False, True, False]
    assert enqueued[2].id == enqueued[4].id == held.id
    assert [job.payload for job in await broker.jobs()] == [b"held", b"plain", b"keyed", b"another"]
    assert await broker.kv_get(b"k") == b"v"
    await check_counters(broker)


async def test_a_rollback_to_a_savepoint_removes_its_jobs(broker: Broker, caller: Caller) -> None:
    await broker.enqueue("q", b"before", connection=caller.connection)
    await caller.execute("SAVEPOINT here")
    await broker.enqueue("q", b"within", dedup_key="d", kv={b"k": b"v"}, connection=caller.connection)
    await caller.execute("ROLLBACK TO SAVEPOINT here")
    await broker.enqueue("q", b"after", dedup_key="d", connection=caller.connection)
    await caller.commit()
    assert [job.payload for job in await broker.claim("q", limit=10)] == [b"before", b"after"]
    assert await broker.kv_get(b"k") is None
    await check_counters(broker)


async def test_the_caller_s_own_writes_commit_with_the_job(
    broker: Broker, caller: Caller, schema: str, console: psycopg.Connection[tuple[Any, ...]]
) -> None:
    console.execute(f'CREATE TABLE "{schema}".orders (number int)')
    await caller.execute(f'INSERT INTO "{schema}".orders VALUES (1)')
    await broker.enqueue("q", connection=caller.connection)
    await caller.execute(f'INSERT INTO "{schema}".orders VALUES (2)')
    await caller.commit()
    assert console.execute(f'SELECT number FROM "{schema}".orders').fetchall() == [(1,), (2,)]
    await claim_one(broker)


# Tasks.


async def test_a_task_joins_the_transaction(driver: Driver, url: str) -> None:
    app = App(url, config=QUIET)

    @app.task(queue="q", dedup=True)
    def work(number: int) -> int:
        return number

    async with app, driver(server_url()) as caller:
        handle = await work.using(connection=caller.connection).aenqueue(1)
        again = await work.using(connection=caller.connection).aenqueue(1)
        assert (handle.created, again.created, again.id) == (True, False, handle.id)
        await work.using(connection=caller.connection).aenqueue_many([(2,), (3,)])
        assert await handle.astatus() is None
        await caller.commit()
        assert await handle.astatus() is JobState.PENDING
        assert len(await app.broker.claim("q", limit=10)) == 3


@pytest.mark.parametrize("name", SYNC)
def test_a_task_joins_the_transaction_of_synchronous_code(name: str, url: str) -> None:
    with App(url, config=QUIET) as app, asyncio.Runner() as runner:

        @app.task(queue="q")
        def work(number: int) -> int:
            return number

        opened = SYNC[name](server_url())
        caller = runner.run(_awaiting(opened.__aenter__()))
        using = work.using(connection=caller.connection)
        using.enqueue(0)
        runner.run(_awaiting(caller.rollback()))
        if name == "psycopg in autocommit":
            runner.run(_awaiting(caller.execute("BEGIN")))
        handles = [using.enqueue(1), *using.enqueue_many([(2,), (3,)])]
        runner.run(_awaiting(caller.commit()))
        runner.run(_awaiting(opened.__aexit__(None, None, None)))

        async def claim() -> list[Job]:
            return await (await app.opened()).claim("q", limit=10)

        assert [job.id for job in app.call(claim)] == [handle.id for handle in handles]


async def _awaiting(awaitable: Awaitable[T]) -> T:
    return await awaitable


# Refused connections.


async def test_a_connection_without_a_transaction_is_refused(broker: Broker) -> None:
    url = server_url()
    connection = await asyncpg.connect(url)
    sync_engine = create_engine(with_driver(url, "psycopg"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    async_engines = [
        create_async_engine(with_driver(url, name), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        for name in ("psycopg", "asyncpg")
    ]
    with (
        psycopg.connect(url, autocommit=True) as plain,
        sync_engine.connect() as sqlalchemy,
        Session(sync_engine) as session,
    ):
        async with (
            await psycopg.AsyncConnection.connect(url, autocommit=True) as asynchronous,
            async_engines[0].connect() as first,
            async_engines[1].connect() as second,
            AsyncSession(async_engines[1]) as async_session,
        ):
            connections = [
                connection, plain, asynchronous, sqlalchemy, session, first, second, async_session,
            ]  # fmt: skip
            for refused in connections:
                with pytest.raises(InvalidState, match="has no open transaction: begin one first"):
                    await broker.enqueue("q", connection=refused)
    await connection.close()
    assert await broker.queues() == []


async def test_a_transaction_that_has_ended_is_refused(broker: Broker) -> None:
    connection = await asyncpg.connect(server_url())
    async with connection.transaction():
        await broker.enqueue("q", connection=connection)
    with pytest.raises(InvalidState, match="has no open transaction"):
        await broker.enqueue("q", connection=connection)
    await connection.close()
    assert (await broker.stats("q")).pending == 1


async def test_another_database_is_refused(broker: Broker, schema: str) -> None:
    async with (
        private_server() as server,
        Broker(with_options(server.url, schema=schema), config=QUIET) as other,
    ):
        for open_one in (DRIVERS["psycopg"], DRIVERS["asyncpg"]):
            async with open_one(server.url) as caller:
                with pytest.raises(
                    ConfigError, match=r"leads to another database than .*: pass a connection"
                ):
                    await broker.enqueue("q", connection=caller.connection)
                await caller.commit()
        assert await other.queues() == await broker.queues() == []


async def test_an_object_that_is_no_connection_is_refused(broker: Broker) -> None:
    for wrong in ("text", 5, object(), create_engine("sqlite://")):
        with pytest.raises(TypeError, match=r"connection=.*can't be used: pass one of psycopg 3 .*asyncpg"):
            await broker.enqueue("q", connection=wrong)
    assert await broker.queues() == []


async def test_a_connection_of_another_kind_of_database_is_refused(broker: Broker) -> None:
    engine = create_engine("sqlite://")
    with closing(sqlite3.connect(":memory:")) as plain, Session(engine) as session, engine.connect() as one:
        for wrong in (plain, session, one):
            with pytest.raises(TypeError, match="can't be used: pass one of psycopg 3"):
                await broker.enqueue("q", connection=wrong)
    engine.dispose()
    assert await broker.queues() == []


async def test_an_object_of_a_driver_that_is_no_connection_is_refused(broker: Broker) -> None:
    connection = await asyncpg.connect(server_url())
    async with asyncpg.create_pool(server_url(), min_size=0) as pool:
        with psycopg.connect(server_url()) as psycopg_connection, psycopg_connection.cursor() as cursor:
            for wrong in (pool, connection.transaction(), cursor):
                with pytest.raises(TypeError, match="can't be used: pass one of psycopg 3"):
                    await broker.enqueue("q", connection=wrong)
    await connection.close()
    assert await broker.queues() == []


@pytest.mark.parametrize("name", ASYNC)
async def test_synchronous_code_can_not_use_an_asynchronous_connection(name: str, url: str) -> None:
    app = App(url, config=QUIET)

    @app.task(queue="q")
    def work(number: int) -> int:
        return number

    def enqueue_here(caller: Caller) -> None:
        with app:
            work.using(connection=caller.connection).enqueue(1)

    async with app, ASYNC[name](server_url()) as caller:
        with pytest.raises(TypeError, match="is asynchronous: use aenqueue"):
            await asyncio.to_thread(enqueue_here, caller)
        handle = await work.using(connection=caller.connection).aenqueue(2)
        await caller.commit()
        assert [job.id for job in await app.broker.jobs()] == [handle.id], "the transaction continued"
