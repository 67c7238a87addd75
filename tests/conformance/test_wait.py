"""Wait: for the end of a job, of every kind and through any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from dayjob import Broker, Job, JobState, Waited
from tests.support.arrange import KEEP_ALL, OpenBroker, cancelled, claim_one, dead, done, quiet, running
from tests.support.staging import Gate, Stage
from tests.support.waiting import LONG, WatchedClock, with_timeout

Ending = Callable[[Broker, WatchedClock, Job], Awaitable[object]]


async def lease_expired(broker: Broker, clock: WatchedClock, claim: Job) -> None:
    clock.advance(30)
    assert await broker.reap() == 1


ENDINGS: dict[str, tuple[Ending, JobState]] = {
    "ack": (lambda broker, clock, claim: broker.ack(claim, result=b"r"), JobState.DONE),
    "dead_letter": (lambda broker, clock, claim: broker.dead_letter(claim, "x"), JobState.DEAD),
    "last nack": (lambda broker, clock, claim: broker.nack(claim, "x"), JobState.DEAD),
    "mark_cancelled": (lambda broker, clock, claim: broker.mark_cancelled(claim), JobState.CANCELLED),
    "lease expired": (lease_expired, JobState.DEAD),
}


@pytest.mark.parametrize("through", ["the same broker", "another broker"])
@pytest.mark.parametrize(("ending", "final"), ENDINGS.values(), ids=ENDINGS)
async def test_all_waiters_get_the_kept_record(
    open_broker: OpenBroker, clock: WatchedClock, ending: Ending, final: JobState, through: str
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    other = broker if through == "the same broker" else await open_broker(quiet(retention=KEEP_ALL))
    claim = await running(broker, max_attempts=1)
    waiting = [asyncio.create_task(broker.wait(claim.id, LONG)) for _ in range(3)]
    await clock.until_waiting(3)
    assert not any(task.done() for task in waiting)
    await ending(other, clock, claim)
    for waited in await with_timeout(asyncio.gather(*waiting)):
        assert waited.status == "completed"
        assert waited.job is not None
        assert (waited.job.id, waited.job.state) == (claim.id, final)


@pytest.mark.parametrize("through", ["the same broker", "another broker"])
async def test_a_job_that_is_not_kept_completes_without_a_record(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock, through: str
) -> None:
    other = broker if through == "the same broker" else await open_broker()
    claim = await running(broker)
    waiting = asyncio.create_task(broker.wait(claim.id, LONG))
    await clock.until_waiting()
    await other.ack(claim)
    assert await with_timeout(waiting) == Waited("completed", None)


@pytest.mark.parametrize("delay", [0, 60], ids=["pending", "scheduled"])
async def test_a_cancelled_job_ends_the_wait(broker: Broker, clock: WatchedClock, delay: int) -> None:
    enqueued = await broker.enqueue("q", delay=delay)
    waiting = asyncio.create_task(broker.wait(enqueued.id, LONG))
    await clock.until_waiting()
    await broker.cancel(enqueued.id)
    assert await with_timeout(waiting) == Waited("completed", None)


async def test_an_expired_job_ends_the_wait(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q", expires=10)
    waiting = asyncio.create_task(broker.wait(enqueued.id, LONG))
    await clock.until_waiting()
    clock.advance(10)
    await broker.promote()
    assert await with_timeout(waiting) == Waited("completed", None)


async def test_a_wait_lasts_through_retries(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    claim = await running(broker)
    waiting = asyncio.create_task(broker.wait(claim.id, LONG))
    await clock.until_waiting()
    await broker.nack(claim, "again", delay=0)
    await broker.release(await claim_one(broker))
    await broker.snooze(await claim_one(broker), 0)
    await broker.promote()
    await clock.until_waiting()
    assert not waiting.done()
    await broker.ack(await claim_one(broker), result=b"at last")
    waited = await with_timeout(waiting)
    assert waited.job is not None
    assert waited.job.result == b"at last"


async def test_a_wait_for_a_finished_job_completes_at_once(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    for id, final in (
        (await done(broker), JobState.DONE),
        (await dead(broker), JobState.DEAD),
        (await cancelled(broker), JobState.CANCELLED),
    ):
        for timeout in (0, LONG):
            waited = await with_timeout(broker.wait(id, timeout))
            assert waited.status == "completed"
            assert waited.job is not None
            assert waited.job.state is final


async def test_a_wait_for_an_unfinished_job_times_out(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    waiting = asyncio.create_task(broker.wait(claim.id, LONG))
    await clock.until_waiting()
    clock.advance(LONG - 1)
    await broker.queues()
    assert not waiting.done()
    clock.advance(1)
    waited = await with_timeout(waiting)
    assert waited.status == "timed_out"
    assert waited.job is None or waited.job.state is JobState.RUNNING


@pytest.mark.parametrize("timeout", [0, 0.0, timedelta(0)])
async def test_a_timeout_of_zero_checks_once(broker: Broker, timeout: float | timedelta) -> None:
    enqueued = await broker.enqueue("q")
    assert (await with_timeout(broker.wait(enqueued.id, timeout))).status == "timed_out"


@pytest.mark.parametrize("id", ["00000000-0000-0000-0000-000000000001", "", "nonsense", "a\0b", "\ud800"])
async def test_an_unknown_or_malformed_id_is_not_found(broker: Broker, id: str) -> None:
    assert await with_timeout(broker.wait(id, LONG)) == Waited("not_found", None)


async def test_a_removed_job_is_not_found(broker: Broker) -> None:
    assert (await with_timeout(broker.wait(await done(broker), LONG))).status == "not_found"


async def test_the_end_of_one_job_ends_only_its_waits(broker: Broker, clock: WatchedClock) -> None:
    first, second = await running(broker), await running(broker)
    waits = [asyncio.create_task(broker.wait(job.id, LONG)) for job in (first, second)]
    await clock.until_waiting(2)
    await broker.ack(first)
    assert (await with_timeout(waits[0])).status == "completed"
    await broker.queues()
    assert not waits[1].done()
    await broker.ack(second)
    assert (await with_timeout(waits[1])).status == "completed"


async def test_a_cancelled_waiter_does_not_end_other_waits(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    cancelled, waiting = (asyncio.create_task(broker.wait(claim.id, LONG)) for _ in range(2))
    await clock.until_waiting(2)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await broker.ack(claim)
    assert (await with_timeout(waiting)).status == "completed"


async def test_the_wait_ends_with_its_job_though_a_new_job_has_the_id(
    broker: Broker, clock: WatchedClock
) -> None:
    """The id is enqueued again before the waiting call reads the job."""
    claim = await running(broker)
    waiting = asyncio.create_task(broker.wait(claim.id, LONG))
    await clock.until_waiting()
    reads = Stage(broker, "get")
    reads.before = Gate()
    await broker.ack(claim)
    await reads.before.reached()
    clock.advance(1)
    assert (await broker.enqueue("q", id=claim.id)).created
    reads.before.open()
    assert await with_timeout(waiting) == Waited("completed", None)
