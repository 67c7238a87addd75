"""Expiry: a job that did not start in time ends cancelled, with that reason."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dayjob import Broker, JobState
from tests.support.arrange import (
    KEEP_ALL,
    OpenBroker,
    claim_one,
    quiet,
    record,
    running,
    state,
)
from tests.support.observe import everything
from tests.support.waiting import WatchedClock

MOMENT = timedelta(microseconds=1)


@pytest.fixture
async def keeper(open_broker: OpenBroker) -> Broker:
    return await open_broker(quiet(retention=KEEP_ALL))


async def test_a_claim_skips_an_expired_job_and_leaves_it_unchanged(
    broker: Broker, clock: WatchedClock
) -> None:
    expired = await broker.enqueue("q", expires=10, priority=1)
    fresh = await broker.enqueue("q", expires=20)
    clock.advance(10)
    before = await record(broker, expired.id)
    assert (await claim_one(broker)).id == fresh.id
    assert await broker.claim("q", limit=5) == []
    assert await record(broker, expired.id) == before
    assert before.state is JobState.PENDING


async def test_a_job_is_claimable_until_it_expires(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q", expires=10)
    clock.advance(timedelta(seconds=10) - MOMENT)
    assert await broker.promote() == 0
    assert (await claim_one(broker)).id == enqueued.id


async def test_promote_cancels_an_expired_job_with_the_reason(keeper: Broker, clock: WatchedClock) -> None:
    for delay in (None, 60, 10):
        enqueued = await keeper.enqueue("q", expires=10, delay=delay)
        clock.advance(10)
        assert await keeper.promote() == 0, "an expired job is not counted"
        job = await record(keeper, enqueued.id)
        assert (job.state, job.finished_at, job.attempts) == (JobState.CANCELLED, clock.time, 0)
        assert job.last_error is not None
        assert job.last_error.startswith("expired")
    clock.advance(60)
    assert await keeper.promote() == 0
    assert await keeper.claim("q", limit=5) == []


async def test_an_expired_job_is_not_kept_by_default(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q", expires=clock.time + timedelta(seconds=5))
    clock.advance(5)
    await broker.promote()
    assert await broker.get(enqueued.id) is None
    assert (await broker.stats("q")).cancelled == 0


async def test_an_expiry_in_the_past_expires_at_once(keeper: Broker, clock: WatchedClock) -> None:
    for expires in (0, clock.time, clock.time - timedelta(days=1)):
        enqueued = await keeper.enqueue("q", expires=expires)
        assert await keeper.claim("q") == []
        await keeper.promote()
        assert await state(keeper, enqueued.id) is JobState.CANCELLED


async def test_a_running_job_does_not_expire(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker, expires=10)
    clock.advance(20)
    before = await everything(broker)
    assert await broker.promote() == 0
    assert await everything(broker) == before
    await broker.ack(claim)


async def test_a_job_with_a_counted_run_does_not_expire(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker, expires=10)
    await broker.nack(claim, "again", delay=15)
    clock.advance(20)
    assert await broker.promote() == 1
    again = await claim_one(broker)
    assert (again.id, again.attempts) == (claim.id, 2)


async def test_a_job_whose_lease_expired_does_not_expire(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker, expires=10)
    clock.advance(30)
    assert await broker.reap() == 1
    assert await broker.promote() == 0
    assert (await claim_one(broker)).id == claim.id


@pytest.mark.parametrize("verb", ["release", "snooze"])
async def test_a_released_run_does_not_prevent_expiry(keeper: Broker, clock: WatchedClock, verb: str) -> None:
    claim = await running(keeper, expires=10)
    clock.advance(20)
    if verb == "release":
        await keeper.release(claim)
    else:
        await keeper.snooze(claim, 0)
    assert await keeper.claim("q") == []
    assert await keeper.promote() == 0
    assert await state(keeper, claim.id) is JobState.CANCELLED


async def test_a_requeued_job_does_not_expire(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker, expires=10)
    await broker.dead_letter(claim, "x")
    clock.advance(20)
    assert await broker.requeue(claim.id)
    assert await broker.promote() == 0
    assert (await claim_one(broker)).id == claim.id


async def test_a_claim_reaches_the_jobs_behind_expired_ones(broker: Broker, clock: WatchedClock) -> None:
    for _ in range(30):
        await broker.enqueue("q", expires=5, priority=1)
    fresh = await broker.enqueue("q", priority=2)
    clock.advance(5)
    assert (await claim_one(broker)).id == fresh.id


async def test_promote_returns_the_due_jobs_and_cancels_expired_ones_in_one_call(
    keeper: Broker, clock: WatchedClock
) -> None:
    due = [await keeper.enqueue("q", delay=5) for _ in range(3)]
    expired = [await keeper.enqueue("q", expires=5) for _ in range(2)]
    clock.advance(5)
    assert await keeper.promote() == 3
    assert {await state(keeper, one.id) for one in due} == {JobState.PENDING}
    assert {await state(keeper, one.id) for one in expired} == {JobState.CANCELLED}
