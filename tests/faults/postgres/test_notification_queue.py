"""A full notification queue: another session listens inside an open transaction and reads nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from psycopg import AsyncConnection
from psycopg.errors import ProgramLimitExceeded

from dayjob import App, Broker, BrokerConfig, CancelOutcome, Context, JobState, NewJob, Recurring
from dayjob.engines.base import Transient
from dayjob.engines.postgres import statements
from tests.support.arrange import KEEP_ALL, claim_one
from tests.support.servers.private_postgres import PrivateServer, private_server
from tests.support.workers import until, with_timeout, working

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)


@pytest.fixture
async def server() -> AsyncIterator[PrivateServer]:
    async with private_server("18", max_notify_queue_pages="64") as server:
        yield server


@pytest.fixture
async def hog(server: PrivateServer) -> AsyncIterator[AsyncConnection[tuple[object, ...]]]:
    """The session of another application, whose notifications have filled the queue."""
    async with await AsyncConnection.connect(server.url, autocommit=True) as session:
        await session.execute("LISTEN other")
        async with session.transaction():
            await session.execute("SELECT 1")
            with suppress(ProgramLimitExceeded):
                while True:
                    await server.fetch("SELECT pg_notify('other', repeat('x', 7000) || random())")
            yield session


async def usage(server: PrivateServer) -> float:
    return float((await server.fetch("SELECT pg_notification_queue_usage()"))[0][0])


@pytest.mark.usefixtures("hog")
async def test_every_write_that_notifies_is_committed_without_its_notification(server: PrivateServer) -> None:
    async with Broker(server.url, config=QUIET) as broker:
        assert await usage(server) > 0.9
        assert (await broker.enqueue("q")).created
        assert (await broker.enqueue("r", delay=3600)).created
        assert all(each.created for each in await broker.enqueue_many([NewJob("q"), NewJob("s")]))
        assert (await broker.enqueue("q", dedup_key="k")).created
        async with await AsyncConnection.connect(server.url) as connection:
            await broker.enqueue("q", connection=connection)
        assert (await broker.stats("q")).pending == 4
        job = await claim_one(broker)
        assert await broker.cancel(job.id) is CancelOutcome.REQUESTED
        await broker.ack(job, enqueue=[NewJob("next")])
        assert (await broker.stats("next")).pending == 1
        await broker.resume("q")
        await broker.schedule(Recurring("s", every=10, queue="q"))
        [check] = [each for each in await broker.diagnose() if each.check == "notifications"]
        assert check.level == "warning"
        assert "idle in transaction" in str(check.remedy)


@pytest.mark.usefixtures("hog")
async def test_a_successful_run_with_a_follow_up_stays_a_success(server: PrivateServer) -> None:
    app = App(server.url, config=BrokerConfig(retention=KEEP_ALL))
    runs: list[str] = []

    @app.task
    async def second() -> None:
        runs.append("second")

    @app.task(max_attempts=2)
    async def first(ctx: Context) -> None:
        runs.append("first")
        ctx.then(second.bind())

    async with app:
        handle = await first.aenqueue()
        async with working(app):
            await with_timeout(app.broker.wait(handle.id))
            assert await handle.astatus() is JobState.DONE
            [follow_up] = [job for job in await app.broker.jobs() if job.task.endswith("second")]
            await with_timeout(app.broker.wait(follow_up.id))
    assert runs == ["first", "second"]


async def test_notifications_are_sent_again_when_the_queue_has_room(
    server: PrivateServer, hog: AsyncConnection[tuple[object, ...]]
) -> None:
    async with Broker(server.url, config=QUIET) as broker:
        await broker.enqueue("q")
        await hog.close()

        async def has_room() -> bool:
            """The session of the hog ends in its own time."""
            assert (await broker.enqueue("q")).created
            return await usage(server) < 0.1

        await until(has_room)


@pytest.mark.usefixtures("hog")
async def test_a_queue_that_fills_up_between_check_and_commit_is_a_transient_error(
    server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(statements._CONSTANTS, "NOTIFICATIONS_FIT", "true")
    statements._sources.cache_clear()
    try:
        async with Broker(server.url, config=QUIET) as broker:
            job = broker._validator.insertion(NewJob("q"))
            with pytest.raises(Transient, match="idle in transaction"):
                await broker._engine.insert([job])
    finally:
        statements._sources.cache_clear()
