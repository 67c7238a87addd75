"""Pause: the queue accepts jobs, and no broker can claim them."""

from __future__ import annotations

import pytest

from dayjob import Broker, JobState, NewJob, QueueStats
from tests.support.arrange import OpenBroker, claim_one, running, state
from tests.support.observe import ids
from tests.support.waiting import WatchedClock


async def test_a_paused_queue_accepts_jobs_and_no_claim_returns_them(broker: Broker) -> None:
    first = await broker.enqueue("q")
    await broker.pause("q")
    second = await broker.enqueue("q")
    assert await broker.claim("q", limit=5) == []
    assert (await broker.stats("q")).pending == 2
    await broker.resume("q")
    assert ids(await broker.claim("q", limit=5)) == [first.id, second.id]


async def test_a_pause_leaves_other_queues_running(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("a"), NewJob("b"), NewJob("c")])
    await broker.pause("b")
    assert [job.queue for job in await broker.claim(["a", "b", "c"], limit=5)] == ["a", "c"]


async def test_paused_returns_the_paused_queues(broker: Broker) -> None:
    assert await broker.paused() == set()
    await broker.pause("a")
    await broker.pause("a")
    await broker.pause("b")
    assert await broker.paused() == {"a", "b"}
    await broker.resume("a")
    await broker.resume("a")
    await broker.resume("never paused")
    assert await broker.paused() == {"b"}


async def test_a_pause_holds_for_every_broker(broker: Broker, open_broker: OpenBroker) -> None:
    other = await open_broker()
    await broker.enqueue("q")
    await broker.pause("q")
    assert await other.paused() == {"q"}
    assert await other.claim("q") == []
    assert await (await open_broker()).claim("q") == []
    await other.resume("q")
    assert len(await broker.claim("q")) == 1


async def test_pausing_creates_the_queue(broker: Broker) -> None:
    await broker.pause("new")
    assert await broker.queues() == ["new"]
    assert await broker.stats("new") == QueueStats()


async def test_running_jobs_of_a_paused_queue_settle(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(4)])
    first, second, third, fourth = await broker.claim("q", limit=4)
    await broker.pause("q")
    await broker.renew(first, 10)
    await broker.ack(first)
    assert await broker.nack(second, "again", delay=0) is JobState.PENDING
    await broker.release(third)
    clock.advance(30)
    assert await broker.reap() == 1
    assert await state(broker, fourth.id) is JobState.PENDING
    assert await broker.claim("q", limit=9) == []
    await broker.resume("q")
    assert len(await broker.claim("q", limit=9)) == 3


async def test_a_paused_queue_promotes_and_cancels(broker: Broker, clock: WatchedClock) -> None:
    await broker.pause("q")
    later = await broker.enqueue("q", delay=5)
    doomed = await broker.enqueue("q")
    clock.advance(5)
    assert await broker.promote() == 1
    assert (await broker.cancel(doomed.id)).acted
    assert await broker.claim("q") == []
    await broker.resume("q")
    assert (await claim_one(broker)).id == later.id


@pytest.mark.parametrize("name", ["a:b", "%", "_", "A", "é"])
async def test_a_pause_applies_to_the_exact_name_only(broker: Broker, name: str) -> None:
    await broker.pause(name)
    for other in ("a", "b", "x", "e", "e\u0301", "aa"):
        await running(broker, other)
    assert await broker.paused() == {name}
