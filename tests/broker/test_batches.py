"""How calls form batches: calls that arrive while one batch is under way are in the next."""

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
    assert stage.sizes == [1], "a lone call is sent at once"
    for call in rest:
        tasks += gather([call])
        await turns(1)
    assert stage.sizes == [1]
    stage.before.open()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*tasks)
    assert stage.sizes == [1, 99]


async def test_a_batch_has_no_more_jobs_than_the_limit(broker: Broker) -> None:
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


async def test_an_outage_fails_all_callers_of_its_batch_and_no_other(broker: Broker) -> None:
    insert = Stage(broker, "insert")
    insert.before = Gate()
    insert.failures.append(EngineUnavailable("no reply"))
    doomed = gather([broker.enqueue("q") for _ in range(10)])
    await insert.before.reached()
    lucky = gather([broker.enqueue("q") for _ in range(10)])
    await turns()
    insert.before.open()
    async with asyncio.timeout(BOUND):
        replies = await asyncio.gather(*doomed, return_exceptions=True)
        assert all(isinstance(reply, EngineUnavailable) for reply in replies)
        assert all(reply.created for reply in await asyncio.gather(*lucky))
    assert insert.sizes == [10, 10], "the callers decide about a retry"
    assert (await broker.stats("q")).pending == 10
    assert (await broker.enqueue("q")).created


@pytest.mark.parametrize("verb", ["claim", "settle", "renew", "cancel", "get"])
async def test_later_calls_work_after_an_outage(broker: Broker, verb: str) -> None:
    make = {"claim": claims, "settle": acks, "renew": renewals, "cancel": cancels, "get": gets}[verb]
    first, second, *rest = await make(broker)
    for call in rest:
        call.close()
    Stage(broker, verb).failures.append(EngineUnavailable("no reply"))
    with pytest.raises(EngineUnavailable):
        await first
    await second


async def test_an_outage_of_a_settlement_leaves_the_claim_to_be_settled_again(broker: Broker) -> None:
    await broker.enqueue("q")
    [job] = await broker.claim("q")
    token = job.cancel_token
    Stage(broker, "settle").failures.append(EngineUnavailable("no reply"))
    with pytest.raises(EngineUnavailable):
        await broker.ack(job)
    await broker.cancel(job.id)
    await turns()
    assert token.cancelled, "the claim is still held"
    await broker.ack(job)
    assert (await broker.stats("q")).done == 1


async def test_an_item_that_can_not_be_stored_fails_alone(broker: Broker) -> None:
    """An error that validation did not find."""
    insert = Stage(broker, "insert")
    poison = ValueError("this one is bad")

    def check() -> None:
        if any(job.payload == b"poison" for job in insert.calls[-1][0]):
            raise poison

    insert.last = check
    payloads = [b"good", b"poison", b"good"]
    replies = await asyncio.gather(*(broker.enqueue("q", p) for p in payloads), return_exceptions=True)
    assert replies[1] is poison
    assert len([reply for reply in replies if reply is not poison]) == 2
    assert not any(isinstance(replies[index], BaseException) for index in (0, 2))


async def test_a_cancelled_caller_cancels_no_other_call_of_the_batch(broker: Broker) -> None:
    insert = Stage(broker, "insert")
    insert.before = Gate()
    tasks = gather([broker.enqueue("q") for _ in range(3)])
    await insert.before.reached()
    tasks[1].cancel()
    await turns()
    insert.before.open()
    async with asyncio.timeout(BOUND):
        replies = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(replies[1], asyncio.CancelledError)
    assert not isinstance(replies[0], BaseException)
    assert not isinstance(replies[2], BaseException)
    assert (await broker.stats("q")).pending == 3, "the batch was already sent"
