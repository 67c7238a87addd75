"""Claim with ``wait``: each event that makes a job claimable wakes it, and it ends at its timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dayjob import Broker, NewJob
from tests.support.arrange import OpenBroker, claim_one, dead, running, state
from tests.support.garbage import garbage_of
from tests.support.waiting import LONG, SAME_TURN, WatchedClock, cancel_at, with_timeout

Wake = Callable[[Broker, WatchedClock], Awaitable[object]]
WakeUp = Callable[[Broker, WatchedClock], Awaitable[Wake]]


async def by_enqueue(broker: Broker, clock: WatchedClock) -> Wake:
    return lambda other, _: other.enqueue("q")


async def by_enqueue_many(broker: Broker, clock: WatchedClock) -> Wake:
    return lambda other, _: other.enqueue_many([NewJob("x"), NewJob("q")])


async def by_follow_up(broker: Broker, clock: WatchedClock) -> Wake:
    claim = await running(broker, "x")
    return lambda other, _: other.ack(claim, enqueue=[NewJob("q")])


async def by_promote(broker: Broker, clock: WatchedClock) -> Wake:
    await broker.enqueue("q", delay=5)
    clock.advance(5)
    return lambda other, _: other.promote()


async def by_nack(broker: Broker, clock: WatchedClock) -> Wake:
    claim = await running(broker)
    return lambda other, _: other.nack(claim, "again", delay=0)


async def by_release(broker: Broker, clock: WatchedClock) -> Wake:
    claim = await running(broker)
    return lambda other, _: other.release(claim)


async def by_reap(broker: Broker, clock: WatchedClock) -> Wake:
    await running(broker)
    clock.advance(30)
    return lambda other, _: other.reap()


async def by_requeue(broker: Broker, clock: WatchedClock) -> Wake:
    id = await dead(broker)
    return lambda other, _: other.requeue(id)


async def by_requeue_dead(broker: Broker, clock: WatchedClock) -> Wake:
    await dead(broker)
    return lambda other, _: other.requeue_dead("q")


async def by_rerun(broker: Broker, clock: WatchedClock) -> Wake:
    id = await dead(broker)
    return lambda other, _: other.rerun(id)


async def by_reschedule(broker: Broker, clock: WatchedClock) -> Wake:
    enqueued = await broker.enqueue("q", delay=60)
    return lambda other, clock: other.reschedule(enqueued.id, run_at=clock.time)


async def by_resume(broker: Broker, clock: WatchedClock) -> Wake:
    await broker.pause("q")
    await broker.enqueue("q")
    return lambda other, _: other.resume("q")


WAKE_UPS: list[WakeUp] = [
    by_enqueue, by_enqueue_many, by_follow_up, by_promote, by_nack, by_release, by_reap, by_requeue,
    by_requeue_dead, by_rerun, by_reschedule, by_resume,
]  # fmt: skip


@pytest.mark.parametrize("through", ["the same broker", "another broker"])
@pytest.mark.parametrize("wake_up", WAKE_UPS, ids=lambda wake_up: wake_up.__name__)
async def test_a_waiting_claim_is_woken_by_every_way_to_become_claimable(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock, wake_up: WakeUp, through: str
) -> None:
    other = broker if through == "the same broker" else await open_broker()
    wake = await wake_up(broker, clock)
    waiting = asyncio.create_task(broker.claim(["first", "q"], wait=LONG))
    await clock.until_waiting()
    assert not waiting.done()
    await wake(other, clock)
    [job] = await with_timeout(waiting)
    assert job.queue == "q"


async def test_a_claim_that_finds_jobs_does_not_wait(broker: Broker) -> None:
    await broker.enqueue("q")
    assert len(await with_timeout(broker.claim("q", limit=10, wait=LONG))) == 1


async def test_a_waiting_claim_returns_nothing_at_its_timeout(broker: Broker, clock: WatchedClock) -> None:
    waiting = asyncio.create_task(broker.claim("q", wait=LONG))
    await clock.until_waiting()
    clock.advance(LONG - 1)
    await broker.queues()
    assert not waiting.done()
    clock.advance(1)
    assert await with_timeout(waiting) == []


async def test_jobs_of_other_queues_do_not_end_the_wait(broker: Broker, clock: WatchedClock) -> None:
    waiting = asyncio.create_task(broker.claim("q", wait=LONG))
    await clock.until_waiting()
    await broker.enqueue("other")
    await broker.enqueue("q", delay=60)
    await broker.pause("q")
    await broker.enqueue("q")
    await clock.until_waiting()
    assert not waiting.done()
    await broker.resume("q")
    assert len(await with_timeout(waiting)) == 1


async def test_several_waiting_claims_each_get_a_job(broker: Broker, clock: WatchedClock) -> None:
    waiting = [asyncio.create_task(broker.claim("q", limit=5, wait=LONG)) for _ in range(4)]
    await clock.until_waiting(4)
    claimed: list[str] = []
    for _ in range(4):
        await broker.enqueue("q")
        done, _rest = await with_timeout(asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))
        assert len(done) == 1
        claimed += [job.id for task in done for job in task.result()]
        waiting = [task for task in waiting if task not in done]
    assert len(set(claimed)) == 4


async def test_a_waiting_claim_leaves_no_reference_cycle(broker: Broker, clock: WatchedClock) -> None:
    """An idle worker makes one such claim per job, and collects seldom: cycles would add up to megabytes."""

    async def claim_a_job() -> None:
        waiting = asyncio.create_task(broker.claim("q", wait=LONG))
        await clock.until_waiting()
        await broker.enqueue("q")
        [job] = await with_timeout(waiting)
        await broker.ack(job)

    await claim_a_job()
    with garbage_of("dayjob") as found:
        for _ in range(3):
            await claim_a_job()
    assert found == []


async def test_a_cancelled_waiting_claim_claims_nothing(broker: Broker, clock: WatchedClock) -> None:
    waiting = asyncio.create_task(broker.claim("q", wait=LONG))
    await clock.until_waiting()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    enqueued = await broker.enqueue("q")
    assert (await claim_one(broker)).id == enqueued.id


@pytest.mark.parametrize("turn", [SAME_TURN, *range(8)])
async def test_a_claim_cancelled_under_way_strands_no_job(
    broker: Broker, clock: WatchedClock, turn: int
) -> None:
    """Whether the job was claimed by then or not, a later claim gets it without waiting for a lease."""
    enqueued = await broker.enqueue("q")
    claiming = asyncio.create_task(broker.claim("q"))
    await cancel_at(turn, [claiming])
    await with_timeout(asyncio.wait({claiming}))
    if claiming.cancelled():
        [job] = await with_timeout(broker.claim("q", wait=LONG))
        assert job.id == enqueued.id
        assert job.attempts == 1, "a run that did not start does not count"
    else:
        assert await state(broker, enqueued.id) == "running"
