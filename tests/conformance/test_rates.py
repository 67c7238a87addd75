"""Rates: starts never exceed the rate by more than the burst, by the engine's clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from dayjob import JobState, Limit, Settlement
from dayjob.model.lifecycle import Transition
from tests.support.arrange import OpenBroker
from tests.support.flow import add, claim_jobs, claimed, limited_broker, states, use
from tests.support.waiting import LONG, WatchedClock, with_timeout

LIMITED = JobState.LIMITED


async def test_starts_are_spaced_by_the_rate(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await limited_broker(open_broker, api=Limit(rate=10, per=1))
    ids = await add(broker, "api", count=3)
    assert await claimed(broker) == ids[:1]
    assert await broker.next_due() == 100_000
    clock.advance(0.099)
    assert await broker.promote() == 0
    clock.advance(0.001)
    assert await broker.promote() == 1
    assert await claimed(broker) == ids[1:2]


async def test_a_burst_starts_together(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await limited_broker(open_broker, api=Limit(rate=60, per=60, burst=3))
    ids = await add(broker, "api", count=6)
    assert await claimed(broker) == ids[:3]
    clock.advance(2)
    assert await broker.promote() == 2
    assert await claimed(broker) == ids[3:5]
    clock.advance(3600)
    await broker.promote()
    assert await claimed(broker) == ids[5:]


async def test_the_end_of_a_run_does_not_postpone_the_next_wake_up(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    """On a slow storage runs end all the time: a line that is late must catch up nevertheless."""
    broker = await limited_broker(open_broker, api=Limit(rate=60, per=60, burst=3))
    await add(broker, "api", count=8)
    first, *_ = await claim_jobs(broker, limit=8)
    clock.advance(2.5)
    assert await broker.promote() == 2
    assert await broker.next_due() == 1_000_000
    clock.advance(0.5)
    await broker.ack(first)
    assert await broker.next_due() == 500_000
    clock.advance(0.6)
    assert await broker.promote() == 2


async def test_no_window_has_more_starts_than_rate_and_burst(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await limited_broker(open_broker, api=Limit(rate=50, per=1, burst=5))
    await add(broker, "api", count=120)
    starts: list[int] = []
    while len(starts) < 120:
        for job in await claim_jobs(broker, limit=20):
            assert job.claimed_us is not None
            starts.append(job.claimed_us)
            await broker.ack(job)
        due = await broker.next_due()
        clock.advance(0.001 if due is None else due / 1_000_000)
        await broker.promote()
    assert starts == sorted(starts)
    for at, start in enumerate(starts):
        within = [other for other in starts[at:] if other < start + 1_000_000]
        assert len(within) <= 55
    assert starts[-1] - starts[0] <= 115 / 50 * 1_000_000 * 1.02


async def test_the_end_of_a_run_gives_no_token_back(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(rate=1, per=60))
    ids = await add(broker, "api", count=2)
    (job,) = await claim_jobs(broker)
    await broker.ack(job)
    assert await claimed(broker) == []
    assert await states(broker, ids[1:]) == [LIMITED]


async def test_units_take_more_of_a_rate(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await limited_broker(open_broker, tokens=Limit(rate=1000, per=1, burst=1000))
    ids = await add(broker, "tokens", count=3, units={"tokens": 600})
    assert await claimed(broker) == ids[:1]
    assert await broker.next_due() == 200_000
    clock.advance(0.2)
    await broker.promote()
    assert await claimed(broker) == ids[1:2]


async def test_a_charge_corrects_the_units(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await limited_broker(open_broker, tokens=Limit(rate=1000, per=1, burst=1000))
    await add(broker, "tokens", count=2, units={"tokens": 1000})
    (job,) = await claim_jobs(broker)
    assert await broker.next_due() == 1_000_000
    await broker.settle_many([Settlement(job, Transition.ACK, charges={"tokens": 400})])
    assert await broker.next_due() == 400_000
    clock.advance(0.4)
    await broker.promote()
    (job,) = await claim_jobs(broker)
    await add(broker, "tokens")
    await broker.settle_many([Settlement(job, Transition.ACK, charges={"tokens": 3000})])
    assert await claimed(broker) == []
    clock.advance(2)
    await broker.promote()
    assert await claimed(broker) == []
    clock.advance(0.001)
    await broker.promote()
    assert len(await claimed(broker)) == 1


async def test_running_and_rate_apply_together(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1, rate=10, per=1))
    ids = await add(broker, "api", count=2)
    (job,) = await claim_jobs(broker)
    assert await claimed(broker) == []
    assert await broker.next_due() is None, "a job that waits for the end of a run has no due time"
    clock.advance(0.05)
    await broker.ack(job)
    assert await broker.next_due() == 50_000
    clock.advance(0.05)
    await broker.promote()
    assert await claimed(broker) == ids[1:]


async def test_a_claim_removes_an_idle_bucket_that_it_looks_at_and_does_not_change(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    """Otherwise a clock that is set back finds the rate used on one engine, and free on another."""
    broker = await limited_broker(open_broker, api=Limit(rate=1, per=60), one=Limit(running=1))
    await add(broker, "api")
    (job,) = await claim_jobs(broker)
    await broker.ack(job)
    await add(broker, "one")
    assert len(await claimed(broker)) == 1
    clock.advance(61)
    await add(broker, "api", "one")
    assert await claimed(broker) == [], "the rate has room, but another job runs"
    clock.set(clock.time - timedelta(seconds=30))
    assert await claimed(broker, "q") == []
    ids = await add(broker, "api")
    assert await claimed(broker) == ids


async def test_a_due_token_wakes_a_waiting_claim(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await limited_broker(open_broker, api=Limit(rate=1, per=1))
    _, second = await add(broker, "api", count=2)
    await claimed(broker)
    waiting = asyncio.ensure_future(broker.claim("q", wait=LONG, worker="w"))
    clock.advance(1)
    await broker.promote()
    (job,) = await with_timeout(waiting)
    assert job.id == second


async def test_a_higher_rate_takes_effect_at_once(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(rate=1, per=60))
    ids = await add(broker, "api", count=3)
    await claimed(broker)
    await broker.set_limit("api", Limit(rate=60, per=60, burst=62))
    assert await claimed(broker) == ids[1:]


async def test_idle_buckets_are_removed(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await limited_broker(open_broker, customer=Limit(rate=1, per=1))
    for number in range(20):
        await add(broker, f"customer:{number}")
    for job in await claim_jobs(broker, limit=20):
        await broker.ack(job)
    assert await use(broker, "customer") == (0, 0)
    clock.advance(1)
    await broker.sweep()
    assert await broker.next_due() is None
    await add(broker, "customer:1")
    assert len(await claimed(broker)) == 1
