"""A caller that is cancelled while it claims strands no job: its jobs are released at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dayjob import Broker, Job
from tests.support.bound import BOUND
from tests.support.staging import Gate, Stage, turns

Claim = Callable[[Broker], Awaitable[list[Job]]]

CLAIMS: list[Claim] = [lambda broker: broker.claim("q"), lambda broker: broker.claim("q", wait=60)]
each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=["claim", "waiting claim"])


def start(claim: Claim, broker: Broker) -> asyncio.Task[list[Job]]:
    async def run() -> list[Job]:
        return await claim(broker)

    return asyncio.create_task(run())


async def given_back(broker: Broker, id: str) -> None:
    """The job is claimable again at once, and the lost run does not count."""
    await turns()
    [job] = await broker.claim("q")
    assert (job.id, job.attempts, job.last_error) == (id, 1, None)


async def cancelled(task: asyncio.Task[list[Job]]) -> None:
    async with asyncio.timeout(BOUND):
        with pytest.raises(asyncio.CancelledError):
            await task


@each_claim
async def test_a_claim_cancelled_before_its_batch_leaves_is_not_sent(broker: Broker, claim: Claim) -> None:
    stage = Stage(broker, "claim")
    stage.before = Gate()
    first = asyncio.create_task(broker.claim("other"))
    await stage.before.reached()
    claiming = start(claim, broker)
    await turns()
    claiming.cancel()
    await cancelled(claiming)
    stage.before.open()
    assert await first == []
    await turns()
    assert stage.sizes == [1]


@each_claim
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_claim_cancelled_during_the_commit_is_released(
    broker: Broker, claim: Claim, when: str
) -> None:
    """Before or after the commit: the broker can't distinguish the two."""
    enqueued = await broker.enqueue("q")
    stage = Stage(broker, "claim")
    gate = Gate()
    setattr(stage, when, gate)
    claiming = start(claim, broker)
    await gate.reached()
    claiming.cancel()
    await cancelled(claiming)
    gate.open()
    await given_back(broker, enqueued.id)


@each_claim
async def test_a_claim_cancelled_just_before_its_caller_resumes_is_released(
    broker: Broker, claim: Claim
) -> None:
    enqueued = await broker.enqueue("q")
    stage = Stage(broker, "claim")
    claiming = start(claim, broker)
    stage.last = lambda: asyncio.get_running_loop().call_soon(claiming.cancel)
    await cancelled(claiming)
    stage.last = None
    await given_back(broker, enqueued.id)


async def test_the_other_claims_of_the_batch_keep_their_jobs(broker: Broker) -> None:
    ids = [(await broker.enqueue("q")).id for _ in range(3)]
    stage = Stage(broker, "claim")
    stage.after = Gate()
    claiming = [asyncio.create_task(broker.claim("q")) for _ in range(3)]
    await stage.after.reached()
    assert stage.sizes == [3]
    claiming[1].cancel()
    await cancelled(claiming[1])
    stage.after.open()
    [first] = await claiming[0]
    [third] = await claiming[2]
    assert [first.id, third.id] == [ids[0], ids[2]]
    await given_back(broker, ids[1])
    await broker.ack(first)
    await broker.ack(third)


async def test_a_released_job_wakes_a_waiting_claim(broker: Broker) -> None:
    enqueued = await broker.enqueue("q")
    stage = Stage(broker, "claim")
    stage.after = Gate()
    claiming = asyncio.create_task(broker.claim("q"))
    await stage.after.reached()
    waiting = asyncio.create_task(broker.claim("q", wait=60))
    await turns()
    claiming.cancel()
    stage.after.open()
    async with asyncio.timeout(BOUND):
        [job] = await waiting
    assert (job.id, job.attempts) == (enqueued.id, 1)


async def test_a_timeout_around_a_claim_releases_its_job(broker: Broker) -> None:
    enqueued = await broker.enqueue("q")
    stage = Stage(broker, "claim")
    stage.after = Gate()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(broker.claim("q", wait=60), 0.01)
    stage.after.open()
    await given_back(broker, enqueued.id)
