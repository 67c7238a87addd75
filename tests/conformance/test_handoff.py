"""Hand-off: an enqueue with a waiting claim stores and claims the job in one call, by the same rules."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from dayjob import Broker, Job, JobState, LeaseLost, NewJob
from tests.support.arrange import OpenBroker, claim_one, quiet, record, state
from tests.support.observe import CLAIM_FIELDS, every_job, fields, ids
from tests.support.waiting import LONG, SAME_TURN, WatchedClock, cancel_at, turns, with_timeout


async def waiting_claim(
    broker: Broker, clock: WatchedClock, *queues: str, limit: int = 1
) -> asyncio.Task[list[Job]]:
    """Start a claim and return once it waits."""
    task = asyncio.create_task(broker.claim(queues or ("q",), limit=limit, wait=LONG, worker="w"))
    await clock.until_waiting()
    return task


async def test_the_returned_claim_equals_the_stored_one(broker: Broker, clock: WatchedClock) -> None:
    waiting = await waiting_claim(broker, clock)
    enqueued = await broker.enqueue("q", b"data", task="t", headers={"h": "v"}, tenant="acme")
    [job] = await with_timeout(waiting)
    assert (job.id, job.attempts, job.payload) == (enqueued.id, 1, b"data")
    stored = await record(broker, enqueued.id)
    assert fields(stored, CLAIM_FIELDS) == fields(job, CLAIM_FIELDS)
    assert stored.claim == job.claim
    assert (stored.state, stored.worker, stored.claimed_at) == (JobState.RUNNING, "w", clock.time)
    await broker.renew(job)
    await broker.ack(job)
    with pytest.raises(LeaseLost):
        await broker.ack(job)


async def test_a_batch_is_handed_off_in_order_up_to_the_limit(broker: Broker, clock: WatchedClock) -> None:
    waiting = await waiting_claim(broker, clock, limit=3)
    priorities = [5, 1, 4, 2, 3]
    await broker.enqueue_many([NewJob("q", priority=priority) for priority in priorities])
    assert [job.priority for job in await with_timeout(waiting)] == [1, 2, 3]
    assert [job.priority for job in await broker.claim("q", limit=9)] == [4, 5]


async def test_queues_are_handed_off_in_the_order_given(broker: Broker, clock: WatchedClock) -> None:
    waiting = await waiting_claim(broker, clock, "a", "b", limit=3)
    await broker.enqueue_many([NewJob("b"), NewJob("b"), NewJob("c"), NewJob("a")])
    assert [job.queue for job in await with_timeout(waiting)] == ["a", "b", "b"]


async def test_a_job_that_may_not_run_yet_is_not_handed_off(broker: Broker, clock: WatchedClock) -> None:
    waiting = await waiting_claim(broker, clock, "q", "paused")
    await broker.pause("paused")
    await broker.enqueue("paused")
    await broker.enqueue("q", delay=5)
    await broker.enqueue("q", expires=0)
    await broker.enqueue("other")
    await clock.until_waiting()
    assert not waiting.done()
    enqueued = await broker.enqueue("q")
    assert ids(await with_timeout(waiting)) == [enqueued.id]


async def test_an_existing_job_is_not_handed_off_again(broker: Broker, clock: WatchedClock) -> None:
    first = await broker.enqueue("q", dedup_key="k", dedup_until="settled")
    await claim_one(broker)
    waiting = await waiting_claim(broker, clock)
    assert not (await broker.enqueue("q", dedup_key="k")).created
    assert not (await broker.enqueue("q", id=first.id)).created
    await clock.until_waiting()
    assert not waiting.done()
    second = await broker.enqueue("q", dedup_key="other")
    assert ids(await with_timeout(waiting)) == [second.id]
    assert (await broker.enqueue("q", dedup_key="other")).created, "the claim released the key"


async def test_a_cancel_fires_the_token_of_a_handed_off_job(broker: Broker, clock: WatchedClock) -> None:
    waiting = await waiting_claim(broker, clock)
    await broker.enqueue("q")
    [job] = await with_timeout(waiting)
    await broker.cancel(job.id)
    await with_timeout(job.cancel_token.wait())


async def test_each_queue_has_its_own_lease(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await open_broker(quiet())
    waiting = asyncio.create_task(broker.claim(["a", "b"], limit=2, wait=LONG, lease=77))
    await clock.until_waiting()
    await broker.enqueue_many([NewJob("a"), NewJob("b")])
    for job in await with_timeout(waiting):
        assert job.lease_expires_at is not None
        assert (job.lease_expires_at - clock.time).total_seconds() == 77


@pytest.mark.parametrize("turn", [SAME_TURN, *range(8)])
async def test_a_claim_cancelled_during_the_handoff_strands_no_job(
    broker: Broker, clock: WatchedClock, turn: int
) -> None:
    waiting = await waiting_claim(broker, clock)
    enqueueing = asyncio.create_task(broker.enqueue("q"))
    await cancel_at(turn, [waiting])
    enqueued = await with_timeout(enqueueing)
    await with_timeout(asyncio.wait({waiting}))
    if waiting.cancelled():
        [job] = await with_timeout(broker.claim("q", wait=LONG))
        assert (job.id, job.attempts) == (enqueued.id, 1)
    else:
        assert ids(waiting.result()) == [enqueued.id]
        assert await state(broker, enqueued.id) is JobState.RUNNING


@pytest.mark.parametrize("turn", [SAME_TURN, *range(8)])
async def test_an_enqueue_cancelled_during_the_handoff_is_all_or_nothing(
    broker: Broker, clock: WatchedClock, turn: int
) -> None:
    waiting = await waiting_claim(broker, clock)
    enqueueing = asyncio.create_task(broker.enqueue("q", b"first", kv={b"k": b"v"}))
    await cancel_at(turn, [enqueueing])
    await with_timeout(asyncio.wait({enqueueing}))
    await broker.enqueue("q", b"second", priority=5000)
    [job] = await with_timeout(waiting)
    assert (job.payload == b"first") == (await broker.kv_get(b"k") == b"v")
    assert (await broker.stats("q")).running == 1


@pytest.mark.parametrize("turn", range(8))
async def test_a_claim_that_times_out_during_the_handoff_strands_no_job(
    broker: Broker, clock: WatchedClock, turn: int
) -> None:
    waiting = await waiting_claim(broker, clock)
    enqueueing = asyncio.create_task(broker.enqueue("q"))
    await turns(turn)
    clock.advance(LONG)
    enqueued = await with_timeout(enqueueing)
    jobs = await with_timeout(waiting) or await broker.claim("q")
    assert [(job.id, job.attempts) for job in jobs] == [(enqueued.id, 1)]


@pytest.mark.parametrize("turn", range(6))
async def test_a_close_during_the_handoff_strands_no_job(
    open_broker: OpenBroker, clock: WatchedClock, turn: int
) -> None:
    broker, other = await open_broker(), await open_broker()
    waiting = await waiting_claim(broker, clock)
    enqueueing = asyncio.create_task(broker.enqueue("q"))
    await turns(turn)
    await with_timeout(broker.close())
    [claimed, enqueued] = await with_timeout(asyncio.gather(waiting, enqueueing, return_exceptions=True))
    if isinstance(enqueued, BaseException):
        assert await every_job(other) == []
        return
    jobs = claimed if isinstance(claimed, list) else await other.claim("q")
    assert [(job.id, job.attempts) for job in jobs] == [(enqueued.id, 1)]


async def test_concurrent_enqueues_and_waiting_claims_pair_one_to_one(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    brokers = [broker, await open_broker()]
    seen: Counter[str] = Counter()
    everything_seen = asyncio.Event()

    async def work(number: int) -> None:
        mine = brokers[number % 2]
        while not everything_seen.is_set():
            for job in await mine.claim(["a", "b"], limit=1 + number % 3, wait=LONG):
                seen[job.id] += 1
                await mine.ack(job)
                if len(seen) == 300:
                    everything_seen.set()

    workers = [asyncio.create_task(work(number)) for number in range(12)]
    await clock.until_waiting(12)
    enqueued = await asyncio.gather(
        *(brokers[number % 2].enqueue("ab"[number % 3 % 2], priority=number % 7) for number in range(300))
    )
    await with_timeout(everything_seen.wait())
    clock.advance(LONG)
    await with_timeout(asyncio.gather(*workers))
    assert seen == dict.fromkeys((one.id for one in enqueued), 1)
    assert sum(stats.done for stats in (await broker.all_stats()).values()) == 300
