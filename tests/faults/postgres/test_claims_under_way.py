"""A claim that was under way when its connection broke loses no job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from psycopg import AsyncConnection

from dayjob import Broker, BrokerConfig, Job
from tests.support.servers.postgres import schema_of, server_url
from tests.support.servers.postgres_proxy import Proxy
from tests.support.workers import until, with_timeout

QUIET = BrokerConfig(duties=False)

HOLD = """
CREATE FUNCTION {schema}.hold() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(hashtext('{schema}')); RETURN NULL; END $$;
CREATE TRIGGER hold AFTER INSERT ON {schema}.counters FOR EACH ROW EXECUTE FUNCTION {schema}.hold();
"""
"""A commit that changes the counters waits for a lock near the end of its statement."""


@pytest.fixture
async def console() -> AsyncIterator[AsyncConnection[tuple[object, ...]]]:
    async with await AsyncConnection.connect(server_url()) as console:
        yield console


async def test_its_jobs_are_claimed_again_before_their_lease_expires(
    wire: Proxy, url: str, direct_url: str, tmp_path: Path, console: AsyncConnection[tuple[object, ...]]
) -> None:
    schema = schema_of(tmp_path)
    async with Broker(direct_url, config=QUIET) as other, Broker(url, config=QUIET) as broker:
        enqueued = await other.enqueue("q", max_attempts=1)
        await console.execute(HOLD.format(schema=schema))
        await console.commit()
        await console.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [schema])
        async with await AsyncConnection.connect(server_url(), autocommit=True) as look:

            async def it_waits() -> bool:
                found = await look.execute(
                    "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s",
                    [f"%{schema}%"],
                )
                return bool(await found.fetchall())

            claim = asyncio.create_task(broker.claim("q"))
            await until(it_waits)
            wire.cut()
            with suppress(TimeoutError):  # The second try may wait for the first.
                await with_timeout(asyncio.shield(claim), 1)
        await console.rollback()
        jobs: list[Job] = await claim

        async def claimed() -> bool:
            if not jobs:
                jobs.extend(await broker.claim("q"))
            return bool(jobs)

        await until(claimed)
        assert [job.id for job in jobs] == [enqueued.id]
        await broker.ack(jobs[0])
