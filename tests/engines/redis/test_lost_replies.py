"""A write whose reply is lost is repeated, is applied once, and gets the first reply."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import (
    Broker,
    BrokerConfig,
    CancelOutcome,
    EngineUnavailable,
    JobState,
    LeaseLost,
    NewJob,
    Retention,
    Settlement,
)
from dayjob.engines.base import Token
from dayjob.engines.redis.engine import RedisEngine
from dayjob.model.job import id_text
from dayjob.runtime.ids import new_key
from tests.engines.redis.conftest import QUIET, SHORT
from tests.support.arrange import claim_one
from tests.support.servers.proxy import Proxy
from tests.support.waiting import with_timeout


@pytest.fixture(autouse=True)
def every_fault_happened(proxy: Proxy) -> object:
    yield
    assert proxy.lost > 0
    assert proxy.losing == 0, "fewer replies were dropped than the test set"


@pytest.mark.parametrize("times", [1, 3])
async def test_a_job_is_stored_once_and_reported_as_created(
    through: Broker, proxy: Proxy, times: int
) -> None:
    proxy.losing = times
    enqueued = await with_timeout(
        through.enqueue_many([NewJob("q", kv={b"k": b"v"}), NewJob("q", dedup_key="k")])
    )
    assert [each.created for each in enqueued] == [True, True]
    assert (await through.stats("q")).pending == 2
    assert await through.kv_get(b"k") == b"v"


async def test_a_job_that_ran_before_the_enqueue_was_repeated_is_not_stored_again(
    through: Broker, broker: Broker, proxy: Proxy
) -> None:
    """The reply is lost, the job runs and is removed, and only then is the enqueue repeated."""
    proxy.losing = 1
    await broker.pause("unrelated")
    waiting = asyncio.create_task(broker.claim("q", wait=20))
    enqueuing = asyncio.create_task(through.enqueue("q"))
    [job] = await with_timeout(waiting)
    await broker.ack(job)
    assert (await with_timeout(enqueuing)).created
    assert await broker.jobs() == []
    assert (await broker.stats("q")).done == 1
    await broker.resume("unrelated")


async def test_a_claim_is_made_once(through: Broker, proxy: Proxy) -> None:
    await through.enqueue_many([NewJob("q", b"%d" % number) for number in range(5)])
    proxy.losing = 1
    claims = await with_timeout(through.claim("q", limit=3))
    assert [(job.payload, job.attempts) for job in claims] == [(b"0", 1), (b"1", 1), (b"2", 1)]
    stats = await through.stats("q")
    assert (stats.pending, stats.running) == (2, 3)
    for claim in claims:
        await through.ack(claim)


async def test_a_job_stored_for_a_waiting_claim_is_claimed_once(through: Broker, proxy: Proxy) -> None:
    waiting = asyncio.create_task(through.claim("q", wait=20))
    while not through._session.waiting_claims.by_queue:
        await asyncio.wait({waiting}, timeout=0.01)
    proxy.losing = 1
    assert (await with_timeout(through.enqueue("q"))).created
    [claim] = await with_timeout(waiting)
    assert claim.attempts == 1
    assert (await through.stats("q")).running == 1


async def test_settlements_are_applied_once_and_none_is_reported_lost(through: Broker, proxy: Proxy) -> None:
    await through.enqueue_many([NewJob("q") for _ in range(4)])
    acked, nacked, dead, snoozed = await through.claim("q", limit=4)
    proxy.losing = 2
    results = await with_timeout(
        through.settle_many(
            [
                Settlement.ack(acked, enqueue=[NewJob("after")], kv={b"k": b"v"}),
                Settlement.nack(nacked, "boom", delay=0),
                Settlement.dead_letter(dead, "hopeless"),
                Settlement.snooze(snoozed, 60),
            ]
        )
    )
    assert [result.state for result in results] == ["done", "pending", "dead", "scheduled"]
    assert (await through.stats("after")).pending == 1
    job = await through.get(nacked.id)
    assert job is not None
    assert len(job.errors) == 1
    assert (await through.stats("q")).done == 1


async def test_renewals_cancels_and_requeues_are_applied_once(through: Broker, proxy: Proxy) -> None:
    await through.enqueue("q")
    claim = await claim_one(through)
    proxy.losing = 1
    await with_timeout(through.renew(claim))
    waiting = await through.enqueue("q")
    proxy.losing = 1
    assert await with_timeout(through.cancel(waiting.id)) is CancelOutcome.REMOVED
    await through.dead_letter(claim, "x")
    proxy.losing = 1
    assert await with_timeout(through.requeue(claim.id))
    assert (await through.stats("q")).pending == 1
    proxy.losing = 1
    await with_timeout(through.kv_put(b"k", b"v"))
    proxy.losing = 1
    assert await with_timeout(through.reschedule(claim.id, priority=5))


async def test_the_duties_count_each_job_once(through: Broker, proxy: Proxy) -> None:
    config = BrokerConfig(duties=False, retention=Retention(dead=1e-6))
    await through.enqueue_many([NewJob("q", delay=1e-6), NewJob("q", delay=1e-6)])
    proxy.losing = 1
    assert await with_timeout(through.promote()) == 2
    claims = await through.claim("q", limit=2, lease=1e-6)
    proxy.losing = 1
    assert await with_timeout(through.reap()) == 2
    assert {(await through.get(claim.id)).state for claim in claims} == {JobState.PENDING}  # type: ignore[union-attr]
    async with Broker(proxy.url("dayjob"), config=config) as purging:
        await purging.dead_letter(await claim_one(purging), "x")
        proxy.losing = 1
        assert await with_timeout(purging.sweep()) == 1
        await purging.dead_letter(await claim_one(purging), "x")
        proxy.losing = 1
        assert await with_timeout(purging.purge_dead()) == 1


async def test_a_settlement_of_unknown_outcome_is_found_applied_when_it_is_repeated(proxy: Proxy) -> None:
    """All replies are lost until the timeout; the worker settles again later."""
    async with Broker(proxy.url("dayjob", SHORT), config=QUIET) as broker:
        await broker.enqueue_many([NewJob("q"), NewJob("q"), NewJob("q")])
        acked, nacked, other = await broker.claim("q", limit=3)
        settlements = [
            Settlement.ack(acked, enqueue=[NewJob("after")]),
            Settlement.nack(nacked, "boom", delay=9),
        ]
        proxy.losing = 1_000_000
        with pytest.raises(EngineUnavailable, match="no reply"):
            await with_timeout(broker.settle_many(settlements))
        proxy.losing = 0
        results = await with_timeout(broker.settle_many([*settlements, Settlement.ack(other)]))
        assert [result.state for result in results] == ["done", "scheduled", "done"]
        assert (await broker.stats("after")).pending == 1
        with pytest.raises(LeaseLost):
            await broker.ack(acked)


async def test_a_settlement_that_never_arrived_is_applied_when_it_is_repeated(proxy: Proxy) -> None:
    async with Broker(proxy.url("dayjob", SHORT), config=QUIET) as broker:
        await broker.enqueue("q")
        claim = await claim_one(broker)
        proxy.lost = 1
        await proxy.stop()
        with pytest.raises(EngineUnavailable):
            await with_timeout(broker.ack(claim, enqueue=[NewJob("after")]))
        await proxy.start()
        await with_timeout(broker.ack(claim, enqueue=[NewJob("after")]))
        assert (await broker.stats("after")).pending == 1
        assert (await broker.stats("q")).done == 1


@pytest.mark.parametrize("next_claim", ["claim", "claim_any"])
async def test_jobs_of_a_claim_whose_reply_stays_lost_are_released_by_the_next_claim(
    proxy: Proxy, next_claim: str
) -> None:
    """Their attempts do not count. No queue has a pending job before that."""
    async with Broker(proxy.url("dayjob", SHORT), config=QUIET) as broker:
        await broker.enqueue("q")
        proxy.losing = 1_000_000
        with pytest.raises(EngineUnavailable, match="no reply"):
            await with_timeout(broker.claim("q"))
        proxy.losing = 0
        waiting = broker.claim("q", wait=20) if next_claim == "claim" else broker.claim_any(wait=20)
        assert [job.attempts for job in await with_timeout(waiting)] == [1]


async def test_a_write_that_arrives_after_its_successor_changes_nothing(
    through: Broker, proxy: Proxy
) -> None:
    """The network may deliver a packet of an abandoned connection late."""
    proxy.lost = 1
    engine = through._engine
    assert isinstance(engine, RedisEngine)
    job = through._validator.insertion(NewJob("q", id=id_text(new_key())))
    client = new_key()
    late, successor = (Token(new_key(), client, slot=0, number=number) for number in (1, 2))
    await engine.insert([through._validator.insertion(NewJob("q"))], token=successor)
    with pytest.raises(EngineUnavailable, match="STALE"):
        await engine.insert([job], token=late)
    assert (await through.stats("q")).pending == 1


async def test_an_enqueue_that_its_caller_repeats_after_the_job_has_run(broker: Broker, proxy: Proxy) -> None:
    """All replies are lost until the timeout, so the caller gets an error and repeats the call itself."""
    id = id_text(new_key())
    async with Broker(proxy.url("dayjob", SHORT), config=QUIET) as caller:
        proxy.losing = 1_000_000
        with pytest.raises(EngineUnavailable, match="no reply"):
            await with_timeout(caller.enqueue("q", id=id))
        proxy.losing = 0
        await broker.ack(await claim_one(broker))
        assert not (await with_timeout(caller.enqueue("q", id=id))).created
        assert await broker.claim("q") == []
