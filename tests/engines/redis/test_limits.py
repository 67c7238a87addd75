"""Limits and turns in the scripts: bounded work, no leftovers, and the same commands for other jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dayjob import Broker, BrokerConfig, EngineUnavailable, JobState, Limit, NewJob, QueueConfig
from dayjob.engines.redis import scripts
from dayjob.engines.redis.keys import Keys
from dayjob.runtime.ids import new_key
from dayjob.testing import ManualClock
from tests.engines.redis.conftest import QUIET
from tests.engines.redis.waiting_claims import waiting_claim
from tests.support.arrange import claim_one
from tests.support.flow import add, claim_jobs, claimed, states
from tests.support.servers.redis import Server, client
from tests.support.waiting import until, with_timeout

KEYS = Keys("dayjob")
FAIR = BrokerConfig(duties=False, default=QueueConfig(fair="tenant"))
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


def calls(connection: Any) -> dict[str, int]:
    """Return the number of calls by command since the last call."""
    found = {name: stats["calls"] for name, stats in connection.info("commandstats").items()}
    connection.config_resetstat()
    return {
        name: number
        for name, number in found.items()
        if name not in ("cmdstat_info", "cmdstat_config|resetstat")
    }


async def test_set_aside_jobs_add_no_command_to_claims_of_others(server: Server, broker: Broker) -> None:
    await broker.set_limit("api", Limit(running=1))
    await broker.enqueue_many([NewJob(queue) for queue in ("free", "free", "q", "q")])
    await add(broker, "api", count=30, priority=1)
    with client(server.url) as connection:
        (running,) = await claim_jobs(broker, limit=1)
        assert (await broker.stats("q")).limited == 0
        assert len(await claimed(broker, limit=1)) == 1
        assert (await broker.stats("q")).limited == 29
        await claimed(broker, "free", limit=1)
        calls(connection)
        await claimed(broker, "free", limit=1)
        alone = calls(connection)
        assert len(await claimed(broker, limit=1)) == 1
        assert calls(connection) == alone
    await broker.ack(running)


async def test_a_hand_off_leaves_a_limited_job_to_the_claims(
    server: Server, broker: Broker, other: Broker
) -> None:
    await other.set_limit("api", Limit(running=1))
    await add(other, "api")
    (running,) = await claim_jobs(other)
    waiting = await waiting_claim(broker)
    (id,) = await add(other, "api")

    async def is_limited() -> bool:
        return await states(other, [id]) == [JobState.LIMITED]

    await until(is_limited)
    assert not waiting.done()
    await other.ack(running)
    assert [job.id for job in await with_timeout(waiting)] == [id]


async def test_buckets_of_idle_keys_vanish(server: Server) -> None:
    clock = ManualClock()
    buckets = (KEYS.buckets, KEYS.idle_buckets, KEYS.bucket_dues, KEYS.lines)
    async with Broker(server.url, config=QUIET, clock=clock) as broker:
        await broker.set_limit("one", Limit(running=1))
        await broker.set_limit("rate", Limit(rate=1, per=1))
        await broker.enqueue_many([NewJob("q", limits=[f"one:{key}", f"rate:{key}"]) for key in range(20)])
        with client(server.url) as connection:
            for job in await claim_jobs(broker, limit=20):
                await broker.ack(job)
            assert {name[:4] for name in connection.hkeys(KEYS.buckets)} == {b"rate"}
            clock.advance(1)
            await broker.sweep()
            assert not connection.exists(*buckets)


async def test_tenants_whose_turn_has_passed_are_removed(server: Server) -> None:
    async with Broker(server.url, config=FAIR) as broker:
        await broker.enqueue_many([NewJob("q", tenant=f"t{number}") for number in range(50)])
        await claimed(broker, limit=50)
        await broker.enqueue_many([NewJob("q", tenant="last")] * 2)
        await claimed(broker, limit=2)
    with client(server.url) as connection:
        assert set(connection.hkeys(KEYS.turns)) == {b"q", b"q\0last"}
        assert connection.zcard(KEYS.tenants) == 1


async def test_the_last_id_precedes_every_turn(server: Server, broker: Broker) -> None:
    async with Broker(server.url, config=FAIR) as fair:
        turn = (await fair.enqueue("q")).id
        await broker.enqueue("q", id=LAST_ID)
        assert await claimed(fair) == [LAST_ID, turn]


async def test_a_changed_limit_wakes_the_lines_of_many_keys(server: Server, broker: Broker) -> None:
    """One step of the script examines 250 buckets."""
    await broker.set_limit("one", Limit(running=1))
    await broker.enqueue_many([NewJob("q", limits=[f"one:{key}"]) for key in range(260) for _ in range(2)])
    assert len(await claimed(broker, limit=600)) == 260
    assert (await broker.stats("q")).limited == 260
    await broker.set_limit("one", Limit(running=2))
    assert (await broker.stats("q")).limited == 0


@pytest.fixture
def small_commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A script wakes three jobs at most."""
    cached = (scripts.script, scripts._shared, scripts._constants)
    monkeypatch.setattr(scripts, "BATCH", 3)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("small_commits")
async def test_a_line_with_more_jobs_to_wake_than_a_commit_has_is_due_at_once(
    server: Server, broker: Broker
) -> None:
    await broker.set_limit("api", Limit(running=8))
    await add(broker, "api", units={"api": 8})
    (large,) = await claim_jobs(broker)
    await add(broker, "api", count=8)
    assert await claimed(broker) == []
    await broker.ack(large)
    assert (await broker.stats("q")).pending == 3
    assert await broker.next_due() == 0
    assert (await broker._engine.promote(100))[0] == 3
    assert await broker.promote() == 2
    assert await broker.next_due() is None
    assert len(await claimed(broker)) == 8


async def test_a_damaged_line_holds_up_no_job(server: Server, broker: Broker) -> None:
    await broker.set_limit("api", Limit(running=1))
    junk = b"api\0junk"
    with client(server.url) as connection:
        for member in (b"api\0q\0\0\0\0\1" + new_key(), junk):
            connection.zadd(KEYS.lines, {member: 0})
        ids = await add(broker, "api", count=2)
        assert await states(broker, ids) == [JobState.PENDING] * 2
        job = await claim_one(broker)
        assert await claimed(broker) == []
        await broker.ack(job)
        assert await claimed(broker) == ids[1:]
        await broker.set_limit("api", Limit(running=2))
        connection.zrem(KEYS.lines, junk)


async def test_a_full_server_refuses_limited_jobs_and_runs_those_it_has(
    server: Server, broker: Broker
) -> None:
    await broker.set_limit("api", Limit(running=1))
    ids = await add(broker, "api", count=3)
    (job,) = await claim_jobs(broker)
    async with Broker(server.url, config=FAIR) as fair:
        await fair.enqueue("fair", tenant="a")
        with client(server.url) as connection:
            connection.config_set("maxmemory", 1)
            for refused in (broker.enqueue("q", limits=["api"]), fair.enqueue("fair", tenant="a")):
                with pytest.raises(EngineUnavailable, match="memory is full"):
                    await refused
            for id in ids[1:]:
                await broker.ack(job)
                job = await claim_one(broker)
                assert job.id == id
            await broker.set_limit("api", Limit(running=2))
            assert len(await claimed(fair, "fair")) == 1
