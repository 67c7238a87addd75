"""``enqueue(connection=...)`` with SQLAlchemy on the queue's own file: its Session and its Connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from dayjob import App, Broker, BrokerConfig, ConfigError, Enqueued, JobState, NewJob
from tests.support.arrange import record
from tests.support.bound import BOUND
from tests.support.observe import check_counters, everything

QUIET = BrokerConfig(duties=False)

Open = Callable[[Engine], AbstractContextManager[Any]]

KINDS: dict[str, Open] = {
    "Session": Session,
    "scoped_session": lambda engine: scoped_session(sessionmaker(engine))(),
    "Connection": lambda engine: engine.connect(),
}


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool, connect_args={"timeout": 1})
    yield engine
    engine.dispose()


@pytest.fixture(params=KINDS)
def connection(request: pytest.FixtureRequest, broker: Broker, engine: Engine) -> Iterator[Any]:
    """A Session or a Connection of the application that has not been used yet."""
    with KINDS[request.param](engine) as connection:
        yield connection


async def test_a_commit_makes_the_job_claimable_and_wakes_a_waiting_claim(
    broker: Broker, connection: Any
) -> None:
    waiting = asyncio.create_task(broker.claim("q", wait=BOUND))
    enqueued = await broker.enqueue("q", b"data", connection=connection)
    assert enqueued.created
    assert await broker.get(enqueued.id) is None, "not before"
    assert not waiting.done()
    connection.commit()
    assert [(job.id, job.payload) for job in await waiting] == [(enqueued.id, b"data")]
    await check_counters(broker)


async def test_a_rollback_leaves_no_job(broker: Broker, connection: Any) -> None:
    before = await everything(broker)
    await broker.enqueue("new", kv={b"k": b"v"}, dedup_key="d", connection=connection)
    await broker.enqueue_many([NewJob("new"), NewJob("newer")], connection=connection)
    connection.rollback()
    assert await everything(broker) == before
    assert await broker.queues() == []
    assert await broker.kv_get(b"k") is None
    assert (await broker.enqueue("new", dedup_key="d")).created


async def test_a_connection_closed_without_a_commit_leaves_no_job(broker: Broker, connection: Any) -> None:
    await broker.enqueue("new", connection=connection)
    connection.close()
    assert await broker.queues() == []


async def test_options_apply_in_the_transaction(broker: Broker, connection: Any) -> None:
    first = await broker.enqueue(
        "q", b"data", headers={"h": "ü"}, kv={b"k": b"v"}, dedup_key="d", delay=60, connection=connection
    )
    again = await broker.enqueue("q", dedup_key="d", kv={b"k": b"no"}, connection=connection)
    assert again == Enqueued(first.id, False)
    connection.commit()
    job = await record(broker, first.id)
    assert (job.state, job.payload, job.headers) == (JobState.SCHEDULED, b"data", {"h": "ü"})
    assert (job.run_at - job.enqueued_at).total_seconds() == 60
    assert await broker.kv_get(b"k") == b"v"
    assert await broker.enqueue("q", dedup_key="d") == Enqueued(first.id, False)


async def test_the_job_and_the_caller_s_writes_are_atomic(broker: Broker, connection: Any) -> None:
    connection.execute(text("CREATE TABLE orders (number INTEGER)"))
    connection.commit()
    for number, end in ((1, connection.rollback), (2, connection.commit)):
        connection.execute(text(f"INSERT INTO orders VALUES ({number})"))
        await broker.enqueue("q", b"%d" % number, connection=connection)
        end()
    assert connection.execute(text("SELECT number FROM orders")).fetchall() == [(2,)]
    connection.rollback()
    assert [job.payload for job in await broker.claim("q", limit=5)] == [b"2"]


async def test_a_rollback_to_a_savepoint_removes_its_jobs(broker: Broker, connection: Any) -> None:
    await broker.enqueue("q", b"before", connection=connection)
    connection.execute(text("SAVEPOINT here"))
    await broker.enqueue("q", b"within", dedup_key="d", connection=connection)
    connection.execute(text("ROLLBACK TO SAVEPOINT here"))
    await broker.enqueue("q", b"after", dedup_key="d", connection=connection)
    connection.commit()
    assert [job.payload for job in await broker.claim("q", limit=5)] == [b"before", b"after"]
    await check_counters(broker)


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_joins_the_transaction(kind: str, url: str, engine: Engine) -> None:
    with App(url, config=QUIET) as app:

        @app.task(queue="q")
        def work(number: int) -> int:
            return number

        app.call(app.opened)
        with KINDS[kind](engine) as connection:
            using = work.using(connection=connection)
            using.enqueue(0)
            connection.rollback()
            handles = [using.enqueue(1), *using.enqueue_many([(2,), (3,)])]
            assert handles[0].status() is None
            connection.commit()
        assert [handle.status() for handle in handles] == [JobState.PENDING] * 3
        stats = app.call(lambda: _pending(app))
        assert stats == 3


async def _pending(app: App) -> int:
    return (await (await app.opened()).stats("q")).pending


@pytest.mark.parametrize("kind", KINDS)
async def test_another_file_is_refused(broker: Broker, kind: str, tmp_path: Path) -> None:
    other = create_engine(f"sqlite:///{tmp_path}/other.db", poolclass=NullPool)
    with KINDS[kind](other) as connection:
        with pytest.raises(ConfigError, match="pass a connection to the queue's own file"):
            await broker.enqueue("q", connection=connection)
        connection.rollback()
    assert await broker.queues() == []


async def test_an_engine_is_refused_as_a_connection(broker: Broker, engine: Engine) -> None:
    with pytest.raises(TypeError, match=r"can't be used: pass a connection of sqlite3 .* SQLAlchemy"):
        await broker.enqueue("q", connection=engine)
