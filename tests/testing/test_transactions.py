"""``using(connection=...)`` in a sandbox: the job exists when the caller's transaction commits."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from dayjob import App, InvalidState, JobState
from dayjob.testing import adrain, assert_enqueued, drain, eager, sandbox
from dayjob.testing.transactions import HeldJobs, SqliteWatch
from tests.engines.postgres.caller_connections import DRIVERS, Caller
from tests.support.servers.postgres import server_url

app = App("postgresql://nowhere/that/exists")


@app.task
def welcome(name: str) -> str:
    return name


@pytest.fixture(autouse=True)
def _sandbox() -> Iterator[None]:
    with sandbox(app):
        yield


# SQLite.


def sqlalchemy_connection(path: Path) -> AbstractContextManager[Any]:
    return create_engine(f"sqlite:///{path}", poolclass=NullPool).connect()


def sqlalchemy_session(path: Path) -> AbstractContextManager[Any]:
    return Session(create_engine(f"sqlite:///{path}", poolclass=NullPool))


SQLITE: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "sqlite3": lambda path: closing(sqlite3.connect(path)),
    "sqlite3 in memory": lambda path: closing(sqlite3.connect(":memory:")),
    "sqlite3 with BEGIN": lambda path: closing(sqlite3.connect(path, isolation_level=None)),
    "sqlalchemy Connection": sqlalchemy_connection,
    "sqlalchemy Session": sqlalchemy_session,
}


@pytest.fixture(params=SQLITE)
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with SQLITE[request.param](tmp_path / "shop.db") as connection:
        yield connection


def begin(connection: Any) -> None:
    if getattr(connection, "isolation_level", "") is None:
        connection.execute("BEGIN")


def execute(connection: Any, sql: str) -> None:
    connection.execute(sql if isinstance(connection, sqlite3.Connection) else text(sql))


def test_a_job_exists_when_the_transaction_commits(connection: Any) -> None:
    begin(connection)
    handle = welcome.using(connection=connection, tenant="acme").enqueue("ada")
    assert (handle.status(), drain(app)) == (None, 0)
    connection.commit()
    assert assert_enqueued(welcome, "ada").tenant == "acme"
    assert drain(app) == 1
    assert handle.result(timeout=0) == "ada"
    assert drain(app) == 0


def test_a_rollback_removes_the_job(connection: Any) -> None:
    begin(connection)
    lost = welcome.using(connection=connection).enqueue("ada")
    connection.rollback()
    begin(connection)
    kept = welcome.using(connection=connection).enqueue_many([("grace",), ("alan",)])
    connection.commit()
    assert drain(app) == 2
    assert lost.status() is None
    assert [handle.status() for handle in kept] == [JobState.DONE] * 2


def test_jobs_of_several_transactions_are_stored_with_their_own(connection: Any) -> None:
    for commit in (True, False, True):
        begin(connection)
        welcome.using(connection=connection).enqueue(str(commit))
        (connection.commit if commit else connection.rollback)()
    assert drain(app) == 2


def test_a_rollback_to_a_savepoint_removes_the_jobs_after_it(connection: Any) -> None:
    begin(connection)
    first = welcome.using(connection=connection).enqueue("first")
    execute(connection, "SAVEPOINT a")
    welcome.using(connection=connection).enqueue("second")
    execute(connection, "SAVEPOINT b")
    welcome.using(connection=connection).enqueue("third")
    execute(connection, "RELEASE b")
    execute(connection, "ROLLBACK TO SAVEPOINT a")
    last = welcome.using(connection=connection).enqueue("last")
    connection.commit()
    assert drain(app) == 2
    assert (first.status(), last.status()) == (JobState.DONE, JobState.DONE)


def test_a_closed_connection_keeps_the_jobs_that_it_committed(connection: Any) -> None:
    begin(connection)
    welcome.using(connection=connection).enqueue("kept")
    connection.commit()
    begin(connection)
    welcome.using(connection=connection).enqueue("lost")
    connection.close()
    assert drain(app) == 1


async def test_a_session_on_aiosqlite_is_followed_too(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db", poolclass=NullPool)
    async with AsyncSession(engine) as session:
        for name, end in (("lost", session.rollback), ("kept", session.commit)):
            await session.execute(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER)"))
            await welcome.using(connection=session).aenqueue(name)
            assert await adrain(app) == 0
            await end()
        assert await adrain(app) == 1
    await app.close()


async def test_a_watched_connection_is_not_freed_so_that_no_other_gets_its_id(tmp_path: Path) -> None:
    """Watches are found by id. A new connection got the watch of a closed one, and failed."""
    held = HeldJobs()
    with closing(sqlite3.connect(tmp_path / "one.db")) as plain:
        await held.insert_tx(plain, [])
        async with aiosqlite.connect(tmp_path / "two.db") as wrapped:
            await held.insert_tx(wrapped, [])
    watches = {key: watch for key, watch in held._watches.items() if isinstance(watch, SqliteWatch)}
    assert len(watches) == 2
    assert [*watches] == [id(watch._raw) for watch in watches.values()]


def test_a_commit_that_fails_stores_no_job(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(
            "PRAGMA foreign_keys = ON; CREATE TABLE a (id INTEGER PRIMARY KEY);"
            "CREATE TABLE b (a REFERENCES a DEFERRABLE INITIALLY DEFERRED);"
        )
        connection.execute("INSERT INTO b VALUES (1)")
        handle = welcome.using(connection=connection).enqueue("ada")
        with pytest.raises(sqlite3.IntegrityError):
            connection.commit()
        assert handle.status() is None
        connection.execute("INSERT INTO a VALUES (1)")
        connection.commit()
        assert handle.status() is JobState.PENDING


def test_an_eager_job_of_a_transaction_runs_after_its_commit(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, eager(app):
        handle = welcome.using(connection=connection).enqueue("ada")
        assert handle.status() is None
        connection.commit()
        assert handle.status() is JobState.PENDING
        assert welcome.enqueue("grace").status() is JobState.DONE
        assert handle.status() is JobState.DONE


def test_an_unusable_connection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="can't be used: pass a connection of sqlite3"):
        welcome.using(connection=object()).enqueue("ada")
    with (
        closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as idle,
        pytest.raises(InvalidState, match="BEGIN"),
    ):
        welcome.using(connection=idle).enqueue("ada")


# PostgreSQL.


@pytest.fixture(params=DRIVERS)
async def caller(request: pytest.FixtureRequest) -> AsyncIterator[Caller]:
    async with DRIVERS[request.param](server_url()) as caller:
        yield caller


async def test_a_job_exists_when_a_postgres_transaction_commits(caller: Caller) -> None:
    async with app:
        handle = await welcome.using(connection=caller.connection).aenqueue("ada")
        assert (await handle.astatus(), await adrain(app)) == (None, 0)
        await caller.commit()
        assert await adrain(app) == 1
        assert await handle.aresult(timeout=0) == "ada"
        assert await adrain(app) == 0


async def test_a_rollback_of_a_postgres_transaction_removes_the_job(caller: Caller) -> None:
    async with app:
        await welcome.using(connection=caller.connection).aenqueue("ada")
        await caller.rollback()
        assert await adrain(app) == 0


async def test_a_rollback_to_a_savepoint_in_postgres_removes_the_jobs_after_it(caller: Caller) -> None:
    async with app:
        send = welcome.using(connection=caller.connection)
        await send.aenqueue("first")
        await caller.execute("SAVEPOINT a")
        lost = await send.aenqueue("second")
        await caller.execute("ROLLBACK TO a")
        await send.aenqueue("third")
        await caller.commit()
        assert await adrain(app) == 2
        assert await lost.astatus() is None


async def test_the_commit_of_a_failed_postgres_transaction_removes_the_job(caller: Caller) -> None:
    async with app:
        await welcome.using(connection=caller.connection).aenqueue("ada")
        with pytest.raises(Exception, match="division by zero"):
            await caller.execute("SELECT 1 / 0")
        await caller.commit()
        assert await adrain(app) == 0


@pytest.mark.parametrize(
    "driver", ["psycopg", "psycopg async", "asyncpg", "sqlalchemy AsyncSession on asyncpg"]
)
async def test_a_closed_postgres_connection_keeps_the_jobs_that_it_committed(driver: str) -> None:
    async with app:
        async with DRIVERS[driver](server_url()) as caller:
            await welcome.using(connection=caller.connection).aenqueue("ada")
            await caller.commit()
        assert await adrain(app) == 1
