"""``in_session``: a job belongs to the transaction of a session, in the same database or after the commit."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, assert_type
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from dayjob import App, EngineUnavailable, InvalidState, JobHandle, Task
from dayjob.contrib.sqlalchemy import HeldJobs, _shared, in_session
from dayjob.engines.store import run_now
from dayjob.runtime.ids import new_key
from dayjob.testing import drain, eager, sandbox
from tests.support.bound import BOUND
from tests.support.servers.postgres import schema_url, server_url

DRIVERS = {
    "sqlite": "sqlite", "sqlite, async": "sqlite+aiosqlite", "psycopg": "postgresql+psycopg",
    "psycopg, async": "postgresql+psycopg", "asyncpg, async": "postgresql+asyncpg",
}  # fmt: skip
QUEUES = ("same database", "another database", "no database")
BOTH = ("sqlite", "sqlite, async")

Scenario = Callable[[Any], Awaitable[None]]


class Site:
    """A site with sessions of one driver, and its queue. A scenario is the same for sync and async ones."""

    def __init__(self, folder: Path, driver: str, queue: str) -> None:
        self.asynchronous = driver.endswith("async")
        is_sqlite = driver.startswith("sqlite")
        database = f"sqlite:///{folder}/site.db" if is_sqlite else server_url()
        url = database if is_sqlite else schema_url(folder)
        if queue == "no database":
            url = "memory://"
        elif queue == "another database":
            url = f"sqlite:///{folder}/jobs.db" if is_sqlite else url
            database = database if is_sqlite else _another_database()
        elif self.asynchronous:  # The URL of a queue may name a driver too.
            url = f"{DRIVERS[driver]}:{url.partition(':')[2]}"
        self.joins = queue == "same database"
        self.app = App(url)
        self.ship: Task[[int], int, Any] = self.app.task(name="ship")(_ship)
        database = f"{DRIVERS[driver]}:{database.partition(':')[2]}"
        create: Callable[..., Any] = create_async_engine if self.asynchronous else create_engine
        self._engine = create(database, poolclass=NullPool)
        self.engine: Engine = self._engine.sync_engine if self.asynchronous else self._engine
        if is_sqlite:
            _begin_transactions(self.engine)

    def run(self, scenario: Scenario) -> None:
        """Run the scenario: on an event loop, or in this thread without one."""
        if self.asynchronous:
            asyncio.run(self._run(scenario))
        else:
            with self.app:
                run_now(self._run(scenario))

    async def _run(self, scenario: Scenario) -> None:
        if not self.asynchronous:
            with Session(self._engine) as session:
                await scenario(session)
            return
        async with self.app, AsyncSession(self._engine) as session:
            await scenario(session)

    async def enqueue(self, session: Any, order: int, **options: Any) -> JobHandle[int]:
        task = in_session(session, self.ship, **options)
        return await task.aenqueue(order) if self.asynchronous else task.enqueue(order)

    async def stored(self) -> list[int]:
        """Return the orders of the stored jobs."""

        async def read() -> list[int]:
            jobs = await (await self.app.opened()).jobs()
            assert self.ship.arguments is not None
            return sorted(self.ship.arguments.by_name(job.payload)["order"] for job in jobs)

        return await read() if self.asynchronous else self.app.call(read)


@cache
def _another_database() -> str:
    """Return the URL of a database without a queue. ``_no_database_is_left`` removes it."""
    name = f"site_{new_key().hex()}"
    with psycopg.connect(server_url(), autocommit=True) as console:
        console.execute(f"CREATE DATABASE {name}")
    return urlsplit(server_url())._replace(path=f"/{name}").geturl()


@pytest.fixture(scope="module", autouse=True)
def _no_database_is_left() -> Iterator[None]:
    yield
    if _another_database.cache_info().currsize:
        name = urlsplit(_another_database()).path.removeprefix("/")
        with psycopg.connect(server_url(), autocommit=True) as console:
            console.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def _ship(order: int) -> int:
    return order


async def done(result: Any) -> Any:
    """Return the result of a call of a session, sync or async."""
    return await result if inspect.isawaitable(result) else result


def _begin_transactions(engine: Engine) -> None:
    """Let SQLAlchemy begin the transactions of sqlite3, so that savepoints work, as its docs advise."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


@pytest.fixture(params=[(driver, queue) for driver in DRIVERS for queue in QUEUES], ids=" on ".join)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, *request.param)


def test_a_job_exists_when_the_transaction_has_committed(site: Site) -> None:
    async def scenario(session: Any) -> None:
        for order in (1, 2):  # The second one finds the sharing known.
            handle = await site.enqueue(session, order, tenant="acme")
            assert handle.created
            assert await site.stored() == list(range(1, order))
            await done(session.execute(text("SELECT 1")))
            await done(session.commit())
            assert await site.stored() == list(range(1, order + 1))
            record = await handle.arecord() if site.asynchronous else handle.record()
            assert record is not None
            assert (record.id, record.tenant) == (handle.id, "acme")
        assert _shared[site.engine] == {site.app.url: site.joins}
        assert (HeldJobs in session.info) is not site.joins

    site.run(scenario)


def test_a_rollback_and_a_closed_session_leave_no_job(site: Site) -> None:
    async def scenario(session: Any) -> None:
        await site.enqueue(session, 1)
        await done(session.rollback())
        await site.enqueue(session, 2)
        await done(session.close())
        await site.enqueue(session, 3)
        await done(session.commit())
        assert await site.stored() == [3]

    site.run(scenario)


def test_savepoints_nest(site: Site) -> None:
    """A rollback to a savepoint removes its jobs. Those of a released one belong to the next outer one."""

    async def scenario(session: Any) -> None:
        await site.enqueue(session, 1)
        outer = await done(session.begin_nested())
        await site.enqueue(session, 2)
        inner = await done(session.begin_nested())
        await site.enqueue(session, 3)
        await done(inner.commit())
        assert await site.stored() == []
        await done(outer.rollback())
        kept = await done(session.begin_nested())
        await site.enqueue(session, 4)
        lost = await done(session.begin_nested())
        await site.enqueue(session, 5)
        await done(lost.rollback())
        await site.enqueue(session, 6)
        await done(kept.commit())
        await done(session.commit())
        assert await site.stored() == [1, 4, 6]

    site.run(scenario)


def test_a_commit_releases_the_open_savepoints(site: Site) -> None:
    async def scenario(session: Any) -> None:
        await done(session.begin_nested())
        await site.enqueue(session, 1)
        await done(session.commit())
        assert await site.stored() == [1]

    site.run(scenario)


def test_the_transaction_of_the_site_survives_the_first_look_for_the_queue(site: Site) -> None:
    """On PostgreSQL, a statement that fails because the queue is elsewhere would end the transaction."""

    async def scenario(session: Any) -> None:
        await done(session.execute(text("CREATE TEMPORARY TABLE orders (id INTEGER)")))
        await done(session.execute(text("INSERT INTO orders VALUES (7)")))
        await site.enqueue(session, 7)
        assert (await done(session.execute(text("SELECT id FROM orders")))).scalars().all() == [7]
        await done(session.commit())
        assert await site.stored() == [7]

    site.run(scenario)


# The rest does not depend on the driver.


@pytest.fixture(params=BOTH)
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """A site whose jobs are stored after the commit."""
    return Site(tmp_path, request.param, "another database")


def test_an_invalid_job_is_refused_before_the_commit(held: Site) -> None:
    async def scenario(session: Any) -> None:
        await held.enqueue(session, 2)
        with pytest.raises(ValueError, match="tenant"):
            await held.enqueue(session, 1, tenant="")
        with pytest.raises(TypeError, match="order"):
            await held.enqueue(session, "five")  # type: ignore[arg-type]
        await done(session.commit())
        assert await held.stored() == [2]

    held.run(scenario)


def test_jobs_that_can_not_be_stored_after_the_commit_are_an_error_of_the_commit(
    held: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: Any) -> Any:
        raise EngineUnavailable("no route")

    async def scenario(session: Any) -> None:
        await held.enqueue(session, 1)
        with monkeypatch.context() as outage:
            outage.setattr(held.app, "opened", unavailable)
            with pytest.raises(EngineUnavailable) as raised:
                await done(session.commit())
        assert raised.value.__notes__ == [
            "The transaction of the session has committed, and 1 jobs of it are not stored: "
            "enqueue them again."
        ]
        await held.enqueue(session, 2)
        await done(session.commit())
        assert await held.stored() == [2]

    held.run(scenario)


def test_a_given_id_is_the_id_of_the_job(held: Site) -> None:
    id = "0191e0a0-0000-7000-8000-000000000001"

    async def scenario(session: Any) -> None:
        for _ in range(2):
            assert (await held.enqueue(session, 1, id=id)).id == id
            await done(session.commit())
        assert await held.stored() == [1]

    held.run(scenario)


def test_the_log_shows_that_the_queue_is_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dayjob.sqlalchemy")
    held = Site(tmp_path, "sqlite", "another database")

    async def scenario(session: Any) -> None:
        await held.enqueue(session, 1)
        await held.enqueue(session, 2)

    held.run(scenario)
    [line] = [record.getMessage() for record in caplog.records]
    assert "are stored after the commit" in line
    assert "site.db" in line


def test_scoped_sessions_are_accepted(tmp_path: Path) -> None:
    site = Site(tmp_path, "sqlite", "another database")
    session = scoped_session(sessionmaker(site.engine))
    assert_type(in_session(session, site.ship).enqueue(1), JobHandle[int])
    session.commit()
    session.remove()
    assert drain(site.app) == 1
    site.app.call(site.app.close)


async def test_async_scoped_sessions_are_accepted(tmp_path: Path) -> None:
    site = Site(tmp_path, "sqlite, async", "same database")
    session = async_scoped_session(async_sessionmaker(site._engine), asyncio.current_task)
    async with site.app:
        assert_type(await in_session(session, site.ship).aenqueue(1), JobHandle[int])
        await session.commit()
        await session.remove()
        assert await site.stored() == [1]


async def test_a_sync_session_on_an_event_loop_is_refused_before_anything_is_held(tmp_path: Path) -> None:
    """The commit could not store its job: it would block the loop."""
    site = Site(tmp_path, "sqlite", "no database")
    with Session(site.engine) as session:
        with pytest.raises(InvalidState, match="use aenqueue"):
            in_session(session, site.ship).enqueue(1)
        assert HeldJobs not in session.info


@pytest.mark.parametrize("queue", QUEUES)
def test_in_a_sandbox_the_job_exists_after_the_commit(tmp_path: Path, queue: str) -> None:
    site = Site(tmp_path, "sqlite", queue)
    with sandbox(site.app), Session(site.engine) as session:
        in_session(session, site.ship).enqueue(1)
        session.rollback()
        kept = in_session(session, site.ship).enqueue(2)
        assert drain(site.app) == 0
        session.commit()
        assert drain(site.app) == 1
        assert kept.result(timeout=0) == 2
        with eager(site.app):
            in_session(session, site.ship).enqueue(3)
            session.commit()
            assert drain(site.app) == 0


@pytest.mark.parametrize("queue", QUEUES)
async def test_in_a_sandbox_the_job_of_an_async_session_exists_after_the_commit(
    tmp_path: Path, queue: str
) -> None:
    site = Site(tmp_path, "sqlite, async", queue)
    with sandbox(site.app):
        async with AsyncSession(site._engine) as session:
            with eager(site.app):
                kept = await in_session(session, site.ship).aenqueue(2)
                assert await site.stored() == []
                await session.commit()
            assert await kept.aresult(timeout=0) == 2
        await site.app.close()


def test_synchronous_sessions_need_no_greenlet() -> None:
    """SQLAlchemy 2.1 installs it with ``sqlalchemy[asyncio]`` only."""
    program = "import sys; sys.modules['greenlet'] = None; import dayjob.contrib.sqlalchemy"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=BOUND)


def test_an_error_of_the_database_at_the_commit_drops_the_job(tmp_path: Path) -> None:
    site = Site(tmp_path, "sqlite", "another database")
    with closing(sqlite3.connect(tmp_path / "site.db")) as connection:
        connection.executescript(
            "CREATE TABLE a (id INTEGER PRIMARY KEY);"
            "CREATE TABLE b (a REFERENCES a DEFERRABLE INITIALLY DEFERRED);"
        )

    async def scenario(session: Any) -> None:
        session.connection().exec_driver_sql("COMMIT")
        session.connection().exec_driver_sql("PRAGMA foreign_keys = ON")
        session.connection().exec_driver_sql("BEGIN")
        session.execute(text("INSERT INTO b VALUES (1)"))
        await site.enqueue(session, 1)
        with pytest.raises(Exception, match="FOREIGN KEY"):
            session.commit()
        session.rollback()
        assert await site.stored() == []

    site.run(scenario)
