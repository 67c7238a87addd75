"""Time is injected: every instant comes from the given clock, and nothing happens early."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dayjob import Broker, JobState
from tests.support.arrange import (
    KEEP_ALL,
    OpenBroker,
    claim_one,
    dead,
    done,
    quiet,
    record,
    running,
    state,
)
from tests.support.observe import everything
from tests.support.waiting import WatchedClock

MOMENT = timedelta(microseconds=1)
HOUR = timedelta(hours=1)

TIMES = [
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2000, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
    datetime(2500, 12, 31, tzinfo=UTC),
]


@pytest.mark.parametrize("start", TIMES, ids=lambda start: str(start.date()))
async def test_every_instant_comes_from_the_clock(open_broker: OpenBroker, start: datetime) -> None:
    clock = WatchedClock(start)
    broker = await open_broker(quiet(retention=KEEP_ALL), clock=clock)
    claim = await running(broker, expires=9)
    clock.advance(1)
    await broker.renew(claim, 5)
    clock.advance(1)
    await broker.nack(claim, "x", delay=3)
    job = await record(broker, claim.id)
    assert (job.enqueued_at, job.expires_at) == (start, start + timedelta(seconds=9))
    assert job.run_at == start + timedelta(seconds=5)
    assert job.errors[0].time == start + timedelta(seconds=2)
    clock.advance(3)
    assert await broker.promote() == 1
    claim = await claim_one(broker)
    clock.advance(1)
    await broker.ack(claim)
    job = await record(broker, claim.id)
    assert job.claimed_at == start + timedelta(seconds=5)
    assert job.finished_at == start + timedelta(seconds=6)


@pytest.mark.parametrize(
    "delay", [MOMENT, timedelta(milliseconds=1), timedelta(seconds=7), timedelta(days=400)]
)
async def test_a_job_is_due_at_its_time_and_not_a_moment_before(
    broker: Broker, clock: WatchedClock, delay: timedelta
) -> None:
    enqueued = await broker.enqueue("q", delay=delay)
    clock.advance(delay - MOMENT)
    assert await broker.promote() == 0
    assert await state(broker, enqueued.id) is JobState.SCHEDULED
    assert await broker.claim("q") == []
    clock.advance(MOMENT)
    assert await broker.promote() == 1
    assert (await claim_one(broker)).id == enqueued.id


async def test_next_due_returns_the_time_until_the_next_due_job(broker: Broker, clock: WatchedClock) -> None:
    assert await broker.next_due() is None
    await broker.enqueue("q", delay=20)
    assert await broker.next_due() == 20_000_000
    await broker.enqueue("q", expires=15)
    assert await broker.next_due() == 15_000_000
    sooner = await broker.enqueue("q", delay=10)
    assert await broker.next_due() == 10_000_000
    clock.advance(4)
    assert await broker.next_due() == 6_000_000
    await broker.cancel(sooner.id)
    assert await broker.next_due() == 11_000_000
    clock.advance(60)
    assert await broker.next_due() == 0
    assert await broker.promote() == 1
    assert await broker.next_due() is None


async def test_promote_takes_all_due_jobs(broker: Broker, clock: WatchedClock) -> None:
    for delay in (1, 2, 3, 4):
        await broker.enqueue("q", delay=delay)
    clock.advance(3)
    assert await broker.promote() == 3
    assert await broker.promote() == 0
    assert (await broker.stats("q")).scheduled == 1


async def test_nothing_happens_while_the_clock_stands_still(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    await done(broker)
    await dead(broker)
    await running(broker)
    await broker.enqueue("q", delay=1)
    await broker.enqueue("q", expires=1)
    before = await everything(broker)
    assert (await broker.promote(), await broker.reap(), await broker.sweep()) == (0, 0, 0)
    assert await everything(broker) == before


async def test_a_clock_set_back_makes_nothing_due_earlier(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q", delay=10)
    claim = await running(broker, "r")
    clock.set(clock.time - HOUR)
    assert (await broker.promote(), await broker.reap()) == (0, 0)
    clock.advance(HOUR)
    assert await broker.promote() == 0
    clock.advance(10)
    assert await broker.promote() == 1
    assert await state(broker, enqueued.id) is JobState.PENDING
    await broker.ack(claim)


async def test_after_the_clock_was_set_back_a_lease_starts_at_the_new_time(
    broker: Broker, clock: WatchedClock
) -> None:
    await broker.enqueue("q")
    clock.set(clock.time - HOUR)
    claim = await claim_one(broker)
    assert claim.lease_expires_at == clock.time + timedelta(seconds=30)
    await broker.ack(claim)


async def test_a_forward_jump_expires_leases_and_makes_jobs_due(broker: Broker, clock: WatchedClock) -> None:
    await running(broker, "r")
    await broker.enqueue("q", delay=10)
    clock.set(clock.time + timedelta(days=365))
    assert (await broker.promote(), await broker.reap()) == (1, 1)


async def test_brokers_on_one_storage_may_have_different_clocks(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    """Each call acts at the time of its own broker."""
    ahead = WatchedClock(clock.time + HOUR)
    other = await open_broker(clock=ahead)
    enqueued = await broker.enqueue("q", delay=60)
    assert await broker.promote() == 0
    assert await other.promote() == 1
    claim = await claim_one(broker)
    assert claim.id == enqueued.id
    assert await broker.reap() == 0
    assert await other.reap() == 1


async def test_without_a_clock_the_engine_clock_decides(url: str) -> None:
    async with Broker(url, config=quiet()) as broker:
        enqueued = await broker.enqueue("q", delay=60)
        job = await record(broker, enqueued.id)
        assert job.run_at - job.enqueued_at == timedelta(seconds=60)
        assert job.enqueued_at > datetime(2025, 1, 1, tzinfo=UTC)
        assert await broker.promote() == 0
        await broker.enqueue("r")
        claim = await claim_one(broker, "r")
        assert await broker.reap() == 0
        await broker.ack(claim)
