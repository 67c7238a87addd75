"""A job that is enqueued in the process of a waiting claim is stored and claimed in one call."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, EngineUnavailable, Job, JobState
from dayjob.engines.base import WaitingClaim
from dayjob.testing import ManualClock
from tests.support.bound import BOUND
from tests.support.staging import Gate, Stage, turns


async def waiting(broker: Broker, *queues: str, limit: int = 1) -> asyncio.Task[list[Job]]:
    """Return a claim that found no job and waits."""
    claim = asyncio.create_task(broker.claim(queues or ("q",), limit=limit, wait=60))
    await turns()
    assert not claim.done()
    return claim


async def reply(claim: asyncio.Task[list[Job]]) -> list[Job]:
    async with asyncio.timeout(BOUND):
        return await claim


async def test_the_waiting_claim_gets_the_job_without_a_claim_of_its_own(broker: Broker) -> None:
    claim = await waiting(broker)
    claims, both = Stage(broker, "claim"), Stage(broker, "insert_and_claim")
    enqueued = await broker.enqueue("q")
    [job] = await reply(claim)
    assert (job.id, job.state, job.attempts) == (enqueued.id, JobState.RUNNING, 1)
    assert (len(both.calls), len(claims.calls)) == (1, 0)
    await broker.ack(job)


async def test_a_handed_off_job_gets_its_cancel_request(broker: Broker) -> None:
    claim = await waiting(broker)
    enqueued = await broker.enqueue("q")
    [job] = await reply(claim)
    await broker.cancel(enqueued.id)
    async with asyncio.timeout(BOUND):
        await job.cancel_token.wait()


async def test_one_batch_serves_several_waiting_claims(broker: Broker) -> None:
    claims = [await waiting(broker, limit=2) for _ in range(2)]
    await asyncio.gather(*(broker.enqueue("q") for _ in range(3)))
    served = [await reply(claim) for claim in claims]
    assert sorted(len(jobs) for jobs in served) == [1, 2]
    assert len({job.id for jobs in served for job in jobs}) == 3


async def test_a_scheduled_job_or_one_of_another_queue_is_not_handed_off(
    broker: Broker, clock: ManualClock
) -> None:
    claim = await waiting(broker, "q", "r")
    await broker.enqueue("q", delay=10)
    await broker.enqueue("elsewhere")
    await turns()
    assert not claim.done()
    clock.advance(10)
    await broker.promote()
    assert len(await reply(claim)) == 1


async def test_an_older_job_with_a_higher_priority_is_handed_off_first(broker: Broker) -> None:
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
    assert [job.id for job in await reply(claim)] == [first.id]


async def test_a_claim_cancelled_during_its_handoff_releases_the_job(broker: Broker) -> None:
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
    assert (job.state, job.attempts) == (JobState.PENDING, 0)


async def test_a_claim_whose_time_ends_during_its_handoff_still_gets_the_job(
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
    assert len(await reply(claim)) == 1


async def test_an_enqueue_that_fails_leaves_the_claim_waiting(broker: Broker) -> None:
    claim = await waiting(broker)
    Stage(broker, "insert_and_claim").failures.append(EngineUnavailable("no reply"))
    with pytest.raises(EngineUnavailable):
        await broker.enqueue("q")
    await turns()
    assert not claim.done()
    await broker.enqueue("q")
    assert len(await reply(claim)) == 1


async def test_a_closed_claim_gives_back_every_later_delivery(broker: Broker) -> None:
    released: list[Job] = []
    waiting_claim = WaitingClaim(asyncio.Event(), lambda job: None, released.extend)
    for _ in range(3):
        await broker.enqueue("q")
    jobs = await broker.claim("q", limit=3)
    waiting_claim.deliver(jobs[0])
    waiting_claim.close()
    waiting_claim.deliver(jobs[1])
    assert released == jobs[:2]


async def test_a_claim_takes_its_deliveries_up_to_the_limit_and_gives_the_rest_back(broker: Broker) -> None:
    released: list[Job] = []
    held: list[Job] = []
    waiting_claim = WaitingClaim(asyncio.Event(), held.append, released.extend)
    for _ in range(3):
        await broker.enqueue("q")
    jobs = await broker.claim("q", limit=3)
    waiting_claim.deliver(jobs[0])
    waiting_claim.deliver(jobs[1])
    assert waiting_claim.event.is_set()
    assert waiting_claim.take([jobs[2]], 2) == jobs[:2]
    assert (held, released) == (jobs[:2], jobs[2:])
    assert waiting_claim.take([], 2) == []
