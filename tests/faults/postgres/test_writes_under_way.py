"""A write is still under way when its connection breaks: the retry waits for it and gets its reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from psycopg import AsyncConnection

from dayjob import Broker, BrokerConfig, JobState, NewJob
from dayjob.engines.base import DocumentWrite
from dayjob.engines.postgres import database
from tests.support.arrange import KEEP_ALL, running
from tests.support.observe import check_counters, every_job
from tests.support.servers.postgres import schema_of, server_url
from tests.support.servers.postgres_proxy import Proxy
from tests.support.workers import until

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)

SLOW = """
CREATE OR REPLACE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_sleep(0.7); RETURN NULL; END $$;
CREATE TRIGGER slow AFTER INSERT OR UPDATE ON {schema}.{table}
    FOR EACH ROW EXECUTE FUNCTION {schema}.slow();
"""
"""A write to the table takes a while near the end of its statement."""

Reply = TypeVar("Reply")


class Interrupted:
    """A broker whose connection breaks while the server runs a write."""

    def __init__(
        self, broker: Broker, wire: Proxy, console: AsyncConnection[tuple[object, ...]], schema: str
    ) -> None:
        self.broker = broker
        self._wire = wire
        self._console = console
        self._schema = schema

    async def slow_down(self, table: str) -> None:
        await self._console.execute(SLOW.format(schema=self._schema, table=table).encode())

    async def call(self, write: Callable[[], Awaitable[Reply]]) -> Reply:
        """Start the write, and cut the connection before it has committed. Return its result."""
        writing = asyncio.ensure_future(write())
        await until(self._sleeps)
        self._wire.cut()
        return await writing

    async def _sleeps(self) -> bool:
        found = await self._console.execute(
            "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE %s",
            [f"%{self._schema}%"],
        )
        return bool(await found.fetchall())


@pytest.fixture
async def interrupted(
    wire: Proxy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Interrupted]:
    """The second try waits for the first inside its statement, as its lock timeout is long."""
    monkeypatch.setitem(database.SESSION_SETTINGS, "lock_timeout", "30s")
    async with (
        Broker(url, config=QUIET) as broker,
        await AsyncConnection.connect(server_url(), autocommit=True) as console,
    ):
        yield Interrupted(broker, wire, console, schema_of(tmp_path))
        await check_counters(broker)


async def test_a_document_that_the_first_try_has_changed(interrupted: Interrupted) -> None:
    await interrupted.slow_down("documents")
    storage = interrupted.broker._session.storage
    for expected, value in ((None, b"1"), (b"1", b"2")):
        write = DocumentWrite("k", "a", expected, value)
        assert await interrupted.call(lambda write=write: storage.compare_and_set([write]))  # type: ignore[misc]
        assert [document.value for document in (await storage.documents("k"))[1]] == [value]


@pytest.mark.parametrize("dedup_key", [None, "d"])
async def test_a_job_that_the_first_try_has_stored(interrupted: Interrupted, dedup_key: str | None) -> None:
    await interrupted.slow_down("jobs")
    broker = interrupted.broker
    enqueued = await interrupted.call(lambda: broker.enqueue("q", dedup_key=dedup_key))
    assert enqueued.created
    assert [job.id for job in await every_job(broker)] == [enqueued.id]


async def test_jobs_with_kv_writes_that_the_first_try_has_stored(interrupted: Interrupted) -> None:
    await interrupted.slow_down("kv")
    broker = interrupted.broker
    jobs = [NewJob("q", dedup_key="a", kv={b"k": b"v"}), NewJob("q", dedup_key="b")]
    enqueued = await interrupted.call(lambda: broker.enqueue_many(jobs))
    assert [each.created for each in enqueued] == [True, True]
    assert len(await every_job(broker)) == 2


async def test_a_claim_that_the_first_try_has_settled(interrupted: Interrupted) -> None:
    job = await running(interrupted.broker)
    await interrupted.slow_down("jobs")
    state = await interrupted.call(lambda: interrupted.broker.nack(job, "no good", delay=60))
    assert state is JobState.SCHEDULED
