"""How calls form batches: whoever arrives while one is under way is in the next, and shares its fate only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from dayjob import Broker, EngineUnavailable, NewJob
from dayjob.engines.base import BATCH
from tests.support.staging import BOUND, Gate, Stage, turns


def gather(calls: list[Coroutine[Any, Any, Any]]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(call) for call in calls]


async def enqueues(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    return [broker.enqueue("q") for _ in range(100)]


async def claims(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    await broker.enqueue_many([NewJob("q")] * 100)
    return [broker.claim("q") for _ in range(100)]


async def acks(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    await broker.enqueue_many([NewJob("q")] * 100)
    return [broker.ack(job) for job in await broker.claim("q", limit=100)]


async def renewals(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    await broker.enqueue_many([NewJob("q")] * 100)
    return [broker.renew(job) for job in await broker.claim("q", limit=100)]


async def cancels(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    return [broker.cancel(one.id) for one in await broker.enqueue_many([NewJob("q")] * 100)]


async def gets(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    return [broker.get(one.id) for one in await broker.enqueue_many([NewJob("q")] * 100)]


@pytest.mark.parametrize(
    ("verb", "make"),
    [
        ("insert", enqueues),
        ("claim", claims),
        ("settle", acks),
        ("renew", renewals),
        ("cancel", cancels),
        ("get", gets),
    ],
)
async def test_calls_that_arrive_during_a_commit_share_the_next(
    broker: Broker, verb: str, make: Callable[[Broker], Awaitable[list[Coroutine[Any, Any, Any]]]]
) -> None:
    first, *rest = await make(broker)
    stage = Stage(broker, verb)
    stage.before = Gate()
    tasks = gather([first])
    await stage.before.reached()
    assert stage.sizes == [1], "a lone call waits for nobody"
    for call in rest:
        tasks += gather([call])
        await turns(1)
    assert stage.sizes == [1]
    stage.before.open()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*tasks)
    assert stage.sizes == [1, 99]


async def test_a_batch_holds_no_more_jobs_than_a_commit_may(broker: Broker) -> None:
    insert = Stage(broker, "insert")
    insert.before = Gate()
    tasks = gather([broker.enqueue("q")])
    await insert.before.reached()
    tasks += gather([broker.enqueue_many([NewJob("q")] * 4000) for _ in range(5)])
    await turns()
    insert.before.open()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*tasks)
    assert insert.sizes == [1, 8000, 8000, 4000]
    assert max(insert.sizes) <= BATCH


async def test_an_outage_reaches_all_callers_of_its_batch_and_nobody_else(broker: Broker) -> None:
    insert = Stage(broker, "insert")
    insert.before = Gate()
    insert.failures.append(EngineUnavailable("no answer"))
    doomed = gather([broker.enqueue("q") for _ in range(10)])
    await insert.before.reached()
    lucky = gather([broker.enqueue("q") for _ in range(10)])
    await turns()
    insert.before.open()
    async with asyncio.timeout(BOUND):
        answers = await asyncio.gather(*doomed, return_exceptions=True)
        assert all(isinstance(answer, EngineUnavailable) for answer in answers)
        assert all(answer.created for answer in await asyncio.gather(*lucky))
    assert insert.sizes == [10, 10], "it was not tried again behind the callers' backs"
    assert (await broker.stats("q")).pending == 10
    assert (await broker.enqueue("q")).created


@pytest.mark.parametrize("verb", ["claim", "settle", "renew", "cancel", "get"])
async def test_later_calls_work_after_an_outage(broker: Broker, verb: str) -> None:
    make = {"claim": claims, "settle": acks, "renew": renewals, "cancel": cancels, "get": gets}[verb]
    first, second, *rest = await make(broker)
    for call in rest:
        call.close()
    Stage(broker, verb).failures.append(EngineUnavailable("no answer"))
    with pytest.raises(EngineUnavailable):
        await first
    await second


async def test_an_outage_of_a_settlement_leaves_the_claim_to_be_settled_again(broker: Broker) -> None:
    await broker.enqueue("q")
    [job] = await broker.claim("q")
    token = job.cancel_token
    Stage(broker, "settle").failures.append(EngineUnavailable("no answer"))
    with pytest.raises(EngineUnavailable):
        await broker.ack(job)
    await broker.cancel(job.id)
    await turns()
    assert token.cancelled, "it is still watched over"
    await broker.ack(job)
    assert (await broker.stats("q")).done == 1


async def test_an_item_that_can_not_be_stored_fails_alone(broker: Broker) -> None:
    """Whatever was overlooked when it was checked."""
    insert = Stage(broker, "insert")
    poison = ValueError("this one is bad")

    def check() -> None:
        if any(job.payload == b"poison" for job in insert.calls[-1][0]):
            raise poison

    insert.last = check
    payloads = [b"good", b"poison", b"good"]
    answers = await asyncio.gather(*(broker.enqueue("q", p) for p in payloads), return_exceptions=True)
    assert answers[1] is poison
    assert len([answer for answer in answers if answer is not poison]) == 2
    assert not any(isinstance(answers[index], BaseException) for index in (0, 2))


async def test_a_caller_that_gives_up_takes_nobody_with_it(broker: Broker) -> None:
    insert = Stage(broker, "insert")
    insert.before = Gate()
    tasks = gather([broker.enqueue("q") for _ in range(3)])
    await insert.before.reached()
    tasks[1].cancel()
    await turns()
    insert.before.open()
    async with asyncio.timeout(BOUND):
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert not isinstance(answers[0], BaseException)
    assert not isinstance(answers[2], BaseException)
    assert (await broker.stats("q")).pending == 3, "the batch went as it was sent"
