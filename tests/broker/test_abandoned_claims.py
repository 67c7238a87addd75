"""A caller that is cancelled while it claims strands no job: what it would have got is given back at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dayjob import Broker, Job
from tests.support.staging import BOUND, Gate, Stage, turns

Claim = Callable[[Broker], Awaitable[list[Job]]]

CLAIMS: list[Claim] = [lambda broker: broker.claim("q"), lambda broker: broker.claim("q", wait=60)]
each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=["claim", "waiting claim"])


def start(claim: Claim, broker: Broker) -> asyncio.Task[list[Job]]:
    async def run() -> list[Job]:
        return await claim(broker)

    return asyncio.create_task(run())


async def given_back(broker: Broker, id: str) -> None:
    """The job is claimable again without any time having passed, and as if nothing had been."""
    await turns()
    [job] = await broker.claim("q")
    assert (job.id, job.attempts, job.last_error) == (id, 1, None)


async def cancelled(task: asyncio.Task[list[Job]]) -> None:
    async with asyncio.timeout(BOUND):
        with pytest.raises(asyncio.CancelledError):
            await task


@each_claim
async def test_cancelled_before_its_batch_left_it_asks_for_nothing(broker: Broker, claim: Claim) -> None:
    stage = Stage(broker, "claim")
    stage.before = Gate()
    ahead = asyncio.create_task(broker.claim("other"))
    await stage.before.reached()
    claiming = start(claim, broker)
    await turns()
    claiming.cancel()
    await cancelled(claiming)
    stage.before.open()
    assert await ahead == []
    await turns()
    assert stage.sizes == [1]


@each_claim
@pytest.mark.parametrize("when", ["before", "after"])
async def test_cancelled_while_the_engine_is_at_it(broker: Broker, claim: Claim, when: str) -> None:
    """Before or after the commit: the broker can't know which."""
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
async def test_cancelled_when_the_answer_is_on_its_way_to_the_caller(broker: Broker, claim: Claim) -> None:
    enqueued = await broker.enqueue("q")
    stage = Stage(broker, "claim")
    claiming = start(claim, broker)
    stage.last = lambda: asyncio.get_running_loop().call_soon(claiming.cancel)
    await cancelled(claiming)
    stage.last = None
    await given_back(broker, enqueued.id)


async def test_others_of_the_same_batch_keep_what_they_got(broker: Broker) -> None:
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


async def test_a_waiting_claim_is_woken_by_what_another_gives_back(broker: Broker) -> None:
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


async def test_a_timeout_around_a_claim_is_a_cancel(broker: Broker) -> None:
    enqueued = await broker.enqueue("q")
    stage = Stage(broker, "claim")
    stage.after = Gate()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(broker.claim("q", wait=60), 0.01)
    stage.after.open()
    await given_back(broker, enqueued.id)
