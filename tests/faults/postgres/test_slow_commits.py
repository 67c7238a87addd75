"""A connection breaks while its commit is under way: the repetition meets the locks of the first try."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from dayjob import Broker, BrokerConfig, JobState, NewJob
from tests.support.arrange import KEEP_ALL, record, running
from tests.support.servers.postgres import schema_of, server_url
from tests.support.servers.postgres_proxy import Proxy
from tests.support.workers import until, with_timeout

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)

Cut = Callable[[], Awaitable[None]]


@pytest.fixture
async def console() -> AsyncIterator[AsyncConnection[tuple[Any, ...]]]:
    async with await AsyncConnection.connect(server_url(), autocommit=True) as console:
        yield console


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    async with Broker(url, config=QUIET) as broker:
        yield broker


@pytest.fixture
async def cut_during_commit(
    broker: Broker, wire: Proxy, console: AsyncConnection[tuple[Any, ...]], tmp_path: Path
) -> Cut:
    """Make each commit of jobs last two seconds. Cut the connections while one is under way."""
    schema = schema_of(tmp_path)
    await console.execute(
        f"CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$"
    )
    await console.execute(
        f"CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {schema}.jobs DEFERRABLE INITIALLY DEFERRED"
        f" FOR EACH ROW EXECUTE FUNCTION {schema}.slow()"
    )

    async def is_under_way() -> bool:
        cursor = await console.execute(
            "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE wait_event = 'PgSleep'"
            " AND relation = %s::regclass",
            [f"{schema}.jobs"],
        )
        return await cursor.fetchone() is not None

    async def cut() -> None:
        await until(is_under_way)
        wire.cut()

    return cut


async def test_an_ack_with_a_follow_up_is_not_reported_as_lost(
    broker: Broker, cut_during_commit: Cut
) -> None:
    job = await running(broker)
    ack = asyncio.create_task(broker.ack(job, result=b"r", enqueue=[NewJob("next", dedup_key="k")]))
    await cut_during_commit()
    await with_timeout(ack)
    found = await record(broker, job.id)
    assert (found.state, found.result) == (JobState.DONE, b"r")
    assert len(await broker.jobs("next")) == 1


async def test_an_enqueue_with_a_dedup_key_is_reported_as_created(
    broker: Broker, cut_during_commit: Cut
) -> None:
    enqueue = asyncio.create_task(broker.enqueue("q", dedup_key="k"))
    await cut_during_commit()
    enqueued = await with_timeout(enqueue)
    assert enqueued.created
    assert [job.id for job in await broker.jobs("q")] == [enqueued.id]
