"""The duties of an open broker: promote, reap and sweep run at the times of the injected clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from dayjob import Broker, BrokerConfig, JobState, Retention
from tests.support.arrange import OpenBroker, running, state
from tests.support.observe import everything
from tests.support.waiting import LONG, WatchedClock, turns, until, with_timeout

BUSY = BrokerConfig(
    retention=Retention(done=10), reap_interval=5, promote_interval=1, sweep_interval=60, duties=True
)


@pytest.fixture
async def busy(open_broker: OpenBroker) -> Broker:
    """A broker with duties."""
    return await open_broker(BUSY)


async def advance_until(clock: WatchedClock, step: float, condition: Callable[[], Awaitable[bool]]) -> float:
    """Advance the clock until the condition holds. Return the seconds."""
    passed = 0.0

    async def tick() -> bool:
        nonlocal passed
        if await condition():
            return True
        clock.advance(step)
        passed += step
        await clock.until_duties_wait()
        return await condition()

    await until(tick)
    return passed


async def test_a_due_job_is_claimable_at_its_time_and_not_before(busy: Broker, clock: WatchedClock) -> None:
    enqueued = await busy.enqueue("q", delay=0.25)
    waiting = asyncio.create_task(busy.claim("q", wait=LONG))
    await clock.until_waiting()
    await clock.until_waiting_for(0.25)
    clock.advance(0.2)
    await clock.until_waiting_for(0.05)
    assert not waiting.done()
    clock.advance(0.05)
    [job] = await with_timeout(waiting)
    assert job.id == enqueued.id
    assert job.claimed_at == job.enqueued_at + timedelta(seconds=0.25), "not at the next interval"


async def test_an_earlier_arrival_wakes_the_promote_duty(busy: Broker, clock: WatchedClock) -> None:
    await busy.enqueue("q", delay=0.9)
    await clock.until_waiting_for(0.9)
    sooner = await busy.enqueue("q", delay=0.3)
    await clock.until_waiting_for(0.3)
    waiting = asyncio.create_task(busy.claim("q", wait=LONG))
    await clock.until_waiting()
    await clock.until_waiting_for(0.3)
    clock.advance(0.3)
    assert [job.id for job in await with_timeout(waiting)] == [sooner.id]


async def test_an_arrival_through_another_broker_wakes_the_promote_duty(
    busy: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    other = await open_broker()
    await other.enqueue("q", delay=0.3)
    await clock.until_waiting_for(0.3)


async def test_the_promote_duty_cancels_an_expired_job(busy: Broker, clock: WatchedClock) -> None:
    enqueued = await busy.enqueue("q", expires=3)

    async def gone() -> bool:
        return await busy.get(enqueued.id) is None

    assert await advance_until(clock, 0.5, gone) >= 3


async def test_the_reap_duty_ends_an_expired_lease(busy: Broker, clock: WatchedClock) -> None:
    claim = await running(busy)

    async def back() -> bool:
        return await state(busy, claim.id) is JobState.PENDING

    assert await advance_until(clock, 1, back) >= 30


async def test_the_sweep_duty_removes_finished_jobs(busy: Broker, clock: WatchedClock) -> None:
    claim = await running(busy)
    await busy.ack(claim)

    async def gone() -> bool:
        return await busy.get(claim.id) is None

    assert await advance_until(clock, 5, gone) >= 10


async def test_without_duties_nothing_is_promoted_reaped_or_swept(
    broker: Broker, clock: WatchedClock
) -> None:
    await running(broker)
    await broker.enqueue("q", delay=1)
    await broker.enqueue("q", expires=1)
    before = await everything(broker)
    for _ in range(20):
        clock.advance(60)
        await turns(3)
        await broker.queues()
    assert await everything(broker) == before


async def test_two_brokers_with_duties_do_everything_once(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    first, second = await open_broker(BUSY), await open_broker(BUSY)
    enqueued = [await first.enqueue("q", delay=0.5, max_attempts=2) for _ in range(20)]

    async def due() -> bool:
        return (await first.stats("q")).pending == 20

    await advance_until(clock, 0.25, due)
    claims = await first.claim("q", limit=20)
    assert len(claims) == 20

    async def reaped() -> bool:
        return (await second.stats("q")).pending == 20

    await advance_until(clock, 2.5, reaped)
    jobs = await second.jobs("q")
    assert [job.id for job in jobs] == [one.id for one in enqueued]
    assert {job.attempts for job in jobs} == {1}
    assert {len(job.errors) for job in jobs} == {1}


async def test_close_stops_the_duties(busy: Broker, open_broker: OpenBroker, clock: WatchedClock) -> None:
    other = await open_broker()
    enqueued = await other.enqueue("q", delay=1)
    await with_timeout(busy.close())
    clock.advance(LONG)
    await turns(10)
    assert await state(other, enqueued.id) is JobState.SCHEDULED
