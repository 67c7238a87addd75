"""A job enqueued where a claim waits for it is stored and claimed in one commit."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, EngineUnavailable, Job, JobState
from dayjob.testing import ManualClock
from tests.support.staging import BOUND, Gate, Stage, turns


async def waiting(broker: Broker, *queues: str, limit: int = 1) -> asyncio.Task[list[Job]]:
    """A claim that has found nothing and waits."""
    claim = asyncio.create_task(broker.claim(queues or ("q",), limit=limit, wait=60))
    await turns()
    assert not claim.done()
    return claim


async def answer(claim: asyncio.Task[list[Job]]) -> list[Job]:
    async with asyncio.timeout(BOUND):
        return await claim


async def test_the_waiting_claim_gets_the_job_without_a_claim_of_its_own(broker: Broker) -> None:
    claim = await waiting(broker)
    claims, both = Stage(broker, "claim"), Stage(broker, "insert_and_claim")
    enqueued = await broker.enqueue("q")
    [job] = await answer(claim)
    assert (job.id, job.state, job.attempts, job.epoch) == (enqueued.id, JobState.RUNNING, 1, 1)
    assert (len(both.calls), len(claims.calls)) == (1, 0)
    await broker.ack(job)


async def test_it_hears_of_a_cancel(broker: Broker) -> None:
    claim = await waiting(broker)
    enqueued = await broker.enqueue("q")
    [job] = await answer(claim)
    await broker.cancel(enqueued.id)
    async with asyncio.timeout(BOUND):
        await job.cancel_token.wait()


async def test_a_batch_serves_several_claims(broker: Broker) -> None:
    claims = [await waiting(broker, limit=2) for _ in range(2)]
    await asyncio.gather(*(broker.enqueue("q") for _ in range(3)))
    served = [await answer(claim) for claim in claims]
    assert sorted(len(jobs) for jobs in served) == [1, 2]
    assert len({job.id for jobs in served for job in jobs}) == 3


async def test_a_job_for_later_or_for_another_queue_serves_nobody(broker: Broker, clock: ManualClock) -> None:
    claim = await waiting(broker, "q", "r")
    await broker.enqueue("q", delay=10)
    await broker.enqueue("elsewhere")
    await turns()
    assert not claim.done()
    clock.advance(10)
    await broker.promote()
    assert len(await answer(claim)) == 1


async def test_a_higher_priority_job_that_was_there_goes_first(broker: Broker) -> None:
    await broker.pause("q")
    first = await broker.enqueue("q", priority=1)
    claim = await waiting(broker)
    both = Stage(broker, "insert_and_claim")
    both.before = Gate()
    adding = asyncio.create_task(broker.enqueue("q", priority=2))
    await both.before.reached()
    await broker._engine.pause("q", False)
    both.before.open()
    await adding
    assert [job.id for job in await answer(claim)] == [first.id]


async def test_a_claim_cancelled_while_it_is_served_gives_the_job_back(broker: Broker) -> None:
    claim = await waiting(broker)
    both = Stage(broker, "insert_and_claim")
    both.after = Gate()
    adding = asyncio.create_task(broker.enqueue("q"))
    await both.after.reached()
    claim.cancel()
    await asyncio.wait({claim})
    both.after.open()
    enqueued = await adding
    await turns()
    job = await broker.get(enqueued.id)
    assert job is not None
    assert (job.state, job.attempts, job.epoch) == (JobState.PENDING, 0, 1)


async def test_a_claim_whose_time_is_over_while_it_is_served_still_gets_the_job(
    broker: Broker, clock: ManualClock
) -> None:
    claim = await waiting(broker)
    both = Stage(broker, "insert_and_claim")
    both.after = Gate()
    adding = asyncio.create_task(broker.enqueue("q"))
    await both.after.reached()
    clock.advance(60)
    await turns()
    both.after.open()
    await adding
    assert len(await answer(claim)) == 1


async def test_an_enqueue_that_fails_leaves_the_claim_waiting(broker: Broker) -> None:
    claim = await waiting(broker)
    Stage(broker, "insert_and_claim").failures.append(EngineUnavailable("no answer"))
    with pytest.raises(EngineUnavailable):
        await broker.enqueue("q")
    await turns()
    assert not claim.done()
    await broker.enqueue("q")
    assert len(await answer(claim)) == 1
