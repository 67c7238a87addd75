"""``max_pending`` refuses jobs for a full queue, all or none of a call."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Limit, NewJob, QueueConfig, QueueFull
from tests.support.arrange import OpenBroker, claim_one, quiet
from tests.support.flow import limited_broker

CONFIG = quiet(
    queues={"q": QueueConfig(max_pending=3), "one": QueueConfig(max_pending=9, limit=Limit(running=1))}
)


async def test_a_full_queue_refuses_jobs(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    await broker.enqueue_many([NewJob("q")] * 3)
    with pytest.raises(QueueFull, match="max_pending=3"):
        await broker.enqueue("q")
    await claim_one(broker)
    await broker.enqueue("q")
    assert (await broker.stats("q")).pending == 3


async def test_a_batch_is_stored_whole_or_not(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    await broker.enqueue("q")
    with pytest.raises(QueueFull):
        await broker.enqueue_many([NewJob("other"), *[NewJob("q")] * 3])
    assert (await broker.stats("q")).pending == 1
    assert (await broker.stats("other")).pending == 0


async def test_a_refused_call_does_not_fail_others(open_broker: OpenBroker) -> None:
    """Concurrent calls share a commit. Each of them is refused or stored by itself."""
    broker = await limited_broker(open_broker, CONFIG)
    calls = [broker.enqueue("q") for _ in range(5)]
    replies = await asyncio.gather(broker.enqueue("other"), *calls, return_exceptions=True)
    assert [isinstance(reply, QueueFull) for reply in replies].count(True) == 2
    assert (await broker.stats("q")).pending == 3
    assert (await broker.stats("other")).pending == 1


async def test_scheduled_jobs_are_not_pending(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    await broker.enqueue_many([NewJob("q", delay=60)] * 5)
    await broker.enqueue_many([NewJob("q")] * 3)
    await broker.enqueue("q", delay=1)


async def test_limited_jobs_count_as_pending(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    await broker.declare_limits("shop", [])
    await broker.enqueue_many([NewJob("one")] * 9)
    await claim_one(broker, "one")
    await broker.claim("one", limit=9)
    await broker.enqueue("one")
    with pytest.raises(QueueFull):
        await broker.enqueue("one")


async def test_follow_up_jobs_are_never_refused(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    await broker.enqueue("other")
    job = await claim_one(broker, "other")
    await broker.ack(job, enqueue=[NewJob("q")] * 5)
    assert (await broker.stats("q")).pending == 5
