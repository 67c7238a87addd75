"""Claims from queues with limits or turns over dead index entries: they skip these and keep the order."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251  A seed makes a failure repeatable.
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from dayjob import Broker, BrokerConfig, Job, Limit, NewJob, QueueConfig
from dayjob.engines.postgres import scan_hints
from dayjob.model.job import id_text
from dayjob.model.settlement import Settlement
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.ids import new_key
from tests.support.arrange import KEEP_ALL, claim_one
from tests.support.servers.postgres import with_options
from tests.support.servers.private_postgres import PrivateServer
from tests.support.workers import until

HOUR = 3600.0
BATCH = 100
JOBS = 6000
WASTEFUL = 6

FLAT = 20
"""Blocks that a claim may read: some for each range, and for its jobs."""

QUEUES = {
    "limited": QueueConfig(limit=Limit(running=10**6)),
    "fair": QueueConfig(fair="tenant"),
}

CLAIM = """
SELECT id::text FROM dayjob.claim_limited(
    NULL, '{{q}}', '{{30000000}}', {limit}, 'w', gen_random_uuid(), 1000000, 1000,
    {wasted}, 0, 3600000000, 1000
) WHERE id IS NOT NULL ORDER BY priority, turn, id
"""

READ = """
SELECT pg_stat_get_xact_blocks_fetched('dayjob.jobs_pending'::regclass)
    + pg_stat_get_xact_blocks_fetched('dayjob.jobs_late'::regclass)
"""

HIDDEN = "SELECT count(*) FROM dayjob.scan_hints WHERE queue = 'q' AND priorities <> '{}'"

PENDING = """
SELECT id::text FROM dayjob.jobs
WHERE queue = 'q' AND state = 'pending' ORDER BY priority, turn, id LIMIT %s
"""

HIDE = "UPDATE dayjob.jobs SET state = 'pending', lease_expires_at = NULL WHERE id = %s"

RETURN = """
UPDATE dayjob.jobs SET state = 'pending', lease_expires_at = NULL, late = pg_current_xact_id() WHERE id = %s
"""

INSERT = """
INSERT INTO dayjob.jobs (
    id, state, priority, enqueued_at, run_at, max_attempts, queue, task, dedup_until, payload
)
VALUES (%s, 'pending', %s, 0, 0, 3, 'q', 'q', 'claimed', '')
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints are given early and cover the present. The hidden parts are not searched."""
    monkeypatch.setattr(scan_hints, "WASTED_BLOCKS", WASTEFUL)
    monkeypatch.setattr(scan_hints, "GRACE", 0)
    monkeypatch.setattr(scan_hints, "FULL_SCAN_INTERVAL", 3_600_000_000)


@pytest.fixture(params=QUEUES)
def config(request: pytest.FixtureRequest) -> BrokerConfig:
    return BrokerConfig(duties=False, retention=KEEP_ALL, queues={"q": QUEUES[request.param]})


@pytest.fixture
async def broker(server: PrivateServer, config: BrokerConfig) -> AsyncIterator[Broker]:
    async with Broker(with_options(server.url, poll="1000"), config=config) as broker:
        yield broker


@pytest.fixture
async def other(server: PrivateServer, broker: Broker, config: BrokerConfig) -> AsyncIterator[Broker]:
    """Another process."""
    async with Broker(server.url, config=config) as other:
        yield other


async def fill(broker: Broker, count: int = JOBS) -> list[str]:
    jobs = [NewJob("q", tenant="a")] * 1000
    return [each.id for _ in range(0, count, 1000) for each in await broker.enqueue_many(jobs[:count])]


async def drain(broker: Broker, count: int) -> list[Job]:
    """Claim that many, batch by batch, without settling."""
    jobs: list[Job] = []
    while len(jobs) < count:
        jobs += await broker.claim("q", limit=min(BATCH, count - len(jobs)))
        await SYSTEM.wait(asyncio.Event(), 0.002)  # Hints are raised every 20 ms.
    return jobs


async def is_engaged(server: PrivateServer) -> bool:
    """Whether claims of the queue leave out a part of it."""
    return bool((await server.fetch(HIDDEN))[0][0])


async def engage(broker: Broker, server: PrivateServer) -> list[Job]:
    """Claim half of many jobs, so that there are hints."""
    await fill(broker)
    jobs = await drain(broker, JOBS // 2)
    assert await is_engaged(server)
    return jobs


async def next_ids(broker: Broker, count: int) -> list[str]:
    return [job.id for job in await broker.claim("q", limit=count)]


async def measured_claim(
    connection: Any, wasted: int = WASTEFUL, limit: int = BATCH
) -> tuple[list[str], int]:
    """Claim in one transaction. Return the ids, and the number of index blocks that were read."""
    async with connection.transaction():
        [before] = await (await connection.execute(READ)).fetchone()
        found = await (await connection.execute(CLAIM.format(limit=limit, wasted=wasted))).fetchall()
        [after] = await (await connection.execute(READ)).fetchone()
    return [id for (id,) in found], after - before


# The cost of a claim.


async def test_dead_entries_are_skipped(broker: Broker, server: PrivateServer, snapshot: None) -> None:
    enqueued = await fill(broker)
    claimed, reads = [], []
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        for _ in range(JOBS // BATCH):
            ids, blocks = await measured_claim(connection)
            claimed += ids
            reads.append(blocks)
            await SYSTEM.wait(asyncio.Event(), 0.01)
    assert claimed == enqueued
    assert max(reads[-JOBS // BATCH // 2 :]) <= FLAT, reads


async def test_without_hints_every_claim_reads_the_dead_entries(
    broker: Broker, server: PrivateServer, snapshot: None
) -> None:
    """The baseline of the other tests."""
    await fill(broker)
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        reads = [(await measured_claim(connection, wasted=JOBS))[1] for _ in range(JOBS // BATCH)]
    assert max(reads) > 2 * FLAT
    assert not await is_engaged(server)


async def test_the_cost_stays_flat_with_retries_and_urgent_jobs(
    broker: Broker, server: PrivateServer, snapshot: None
) -> None:
    await engage(broker, server)
    reads = await retry_and_prefer(broker, server)
    assert max(reads) <= FLAT, reads


async def test_the_cost_stays_flat_while_another_client_keeps_a_write_open(
    broker: Broker, server: PrivateServer, snapshot: None
) -> None:
    """An open transaction with changes is looked for by its number, so later ones are not read again.

    The hints that were raised before stay. They grow again when it has ended, or after 30 s.
    """
    await engage(broker, server)
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        await connection.execute("CREATE TABLE mine ()")
        reads = await retry_and_prefer(broker, server)
    assert max(reads) <= reads[0] + FLAT, reads


async def retry_and_prefer(broker: Broker, server: PrivateServer) -> list[int]:
    """Claim from a backlog with urgent jobs and retries in between. Return the blocks read by each claim."""
    reads = []
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        for _ in range(15):
            urgent = await broker.enqueue("q", priority=1, tenant="a")
            jobs = await broker.claim("q", limit=BATCH)
            assert jobs[0].id == urgent.id
            retried = jobs[7]
            await broker.settle_many([Settlement.nack(retried, "no good", delay=0)])
            await SYSTEM.wait(asyncio.Event(), 0.02)
            ids, blocks = await measured_claim(connection, limit=1)
            assert ids == [retried.id]
            reads.append(blocks)
    return reads


async def test_a_vacuum_ends_the_hints(broker: Broker, server: PrivateServer) -> None:
    await engage(broker, server)
    await server.fetch("VACUUM dayjob.jobs")
    await server.fetch("UPDATE dayjob.scan_hints SET search_at = 0")
    await claim_one(broker)
    assert not await is_engaged(server)


# The order of claims.


async def test_jobs_that_return_are_claimed_in_their_order(
    broker: Broker, server: PrivateServer, other: Broker, snapshot: None
) -> None:
    jobs = await engage(broker, server)
    await broker.nack(jobs[7], "no good", delay=0)
    await other.release(jobs[3])
    await broker.dead_letter(jobs[5], "no good")
    await other.requeue(jobs[5].id)
    await broker.snooze(jobs[6], 0.05)
    await until(other.promote)
    await broker.renew(jobs[4], 0.001)
    await until(other.reap)
    assert await next_ids(broker, 5) == [job.id for job in jobs[3:8]]
    assert (await next_ids(broker, 1))[0] > jobs[-1].id


async def test_a_rescheduled_job_is_claimed_in_its_order(
    broker: Broker, server: PrivateServer, other: Broker, snapshot: None
) -> None:
    jobs = await engage(broker, server)
    await broker.snooze(jobs[5], HOUR)
    await other.reschedule(jobs[5].id, run_at=jobs[5].enqueued_at)
    assert await next_ids(broker, 1) == [jobs[5].id]
    last = (await other.jobs("q", "pending", newest_first=True, limit=1))[0].id
    await other.reschedule(last, priority=1)
    assert await next_ids(broker, 1) == [last]


async def test_a_job_of_a_transaction_that_commits_late_is_claimed_in_its_order(
    broker: Broker, server: PrivateServer, snapshot: None
) -> None:
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        await engage(broker, server)
        enqueued = await broker.enqueue("q", connection=connection, priority=3, tenant="b")
        await drain(broker, JOBS // 4)
        assert enqueued.id not in await next_ids(broker, 1)
        await connection.commit()
    assert await next_ids(broker, 1) == [enqueued.id]


async def test_a_job_whose_insert_is_under_way_is_not_hidden(
    broker: Broker, server: PrivateServer, snapshot: None
) -> None:
    """Its id is of the present when it is inserted, so it has no mark. Its commit takes long."""
    await fill(broker)
    first = await claim_one(broker)
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        id = id_text(new_key())
        await connection.execute(INSERT, (id, first.priority))
        await drain(broker, JOBS - 1)
        await fill(broker, 1000)
        await drain(broker, 500)
        await connection.commit()
    assert await next_ids(broker, 1) == [id]


async def test_a_job_whose_return_is_under_way_is_claimed_in_its_order(
    broker: Broker, server: PrivateServer, snapshot: None
) -> None:
    """The hints are raised meanwhile. Their snapshot does not see the transaction, so it is looked for."""
    jobs = await engage(broker, server)
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        await connection.execute(RETURN, (jobs[5].id,))
        await drain(broker, JOBS // 4)
        await connection.commit()
    assert await next_ids(broker, 1) == [jobs[5].id]


async def test_more_late_jobs_than_are_tracked_are_claimed_in_their_order(
    broker: Broker, server: PrivateServer, other: Broker, snapshot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await engage(broker, server)
    monkeypatch.setattr(scan_hints, "MAX_LATE", 20)
    await other.settle_many([Settlement.release(job) for job in jobs])
    assert [job.id for job in await drain(broker, JOBS // 2)] == [job.id for job in jobs]


@pytest.mark.parametrize(
    "changed",
    ["search_at = 0", "raised_at = raised_at + 3600000000"],
    ids=["a full scan is due", "the clock of the server went back"],
)
async def test_a_hidden_job_is_found_without_the_hints(
    broker: Broker, server: PrivateServer, snapshot: None, changed: str
) -> None:
    """After the clock went back, new jobs may have ids in the hidden parts."""
    jobs = await engage(broker, server)
    await server.fetch(HIDE, jobs[5].id)
    assert (await next_ids(broker, 1))[0] > jobs[-1].id, "it is hidden"
    await server.fetch(f"UPDATE dayjob.scan_hints SET {changed}")
    assert await next_ids(broker, 1) == [jobs[5].id]


async def test_a_locked_job_is_not_hidden(broker: Broker, server: PrivateServer, snapshot: None) -> None:
    await fill(broker)
    first = (await server.fetch(PENDING, 1))[0][0]
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        await connection.execute("SELECT FROM dayjob.jobs WHERE id = %s FOR UPDATE", (first,))
        before = await next_ids(broker, BATCH)
        await connection.rollback()
    assert first not in before
    assert first in [job.id for job in await drain(broker, BATCH)]


@pytest.mark.parametrize("seed", range(2))
async def test_random_changes_by_two_processes_keep_the_order(
    broker: Broker, server: PrivateServer, other: Broker, snapshot: None, seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """After each change, the next claim gets the first pending jobs."""
    chance = random.Random(seed)
    monkeypatch.setattr(scan_hints, "MAX_LATE", chance.choice([3, 1000]))
    held = [job for job in await engage(broker, server) if chance.random() < 0.02]
    await drain(broker, JOBS // 2 - chance.randrange(500))
    dead: list[Job] = []
    engaged = 0
    for _ in range(200):
        by = chance.choice([broker, other])
        match chance.randrange(7):
            case 0 | 1:
                for _ in range(chance.randrange(4)):
                    priority, tenant = chance.randrange(4) * 500, chance.choice("abc")
                    await by.enqueue("q", priority=priority, tenant=tenant)
            case 2 if held:
                job = held.pop(chance.randrange(len(held)))
                await by.settle_many(
                    [chance.choice([Settlement.release(job), Settlement.nack(job, "", delay=0)])]
                )
            case 3 if held:
                dead.append(held.pop())
                await by.dead_letter(dead[-1], "no good")
            case 4 if dead:
                await by.requeue(dead.pop(chance.randrange(len(dead))).id)
            case 5:
                for (id,) in (await server.fetch(PENDING, 5))[-1:]:
                    await by.reschedule(id, priority=chance.randrange(4) * 500)
            case _:
                count = chance.randrange(1, 5)
                engaged += await is_engaged(server)
                expected = [id for (id,) in await server.fetch(PENDING, count)]
                claimed = await by.claim("q", limit=count)
                assert [job.id for job in claimed] == expected
                held += claimed
    assert engaged > 5
