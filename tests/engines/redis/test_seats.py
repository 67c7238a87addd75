"""An enqueue elsewhere claims its job for a claim that waits; no rule bends for that."""

from __future__ import annotations

from dayjob import Broker, JobState, NewJob
from tests.engines.redis.conftest import QUIET
from tests.engines.redis.seating import (
    calls,
    engine_of,
    gone,
    seated,
)
from tests.support.servers.redis import Server, client
from tests.support.waiting import within


async def test_the_enqueue_claims_for_whoever_waits(server: Server, broker: Broker, other: Broker) -> None:
    await other.enqueue("elsewhere")
    waiting = await seated(broker)
    before = calls(server)
    enqueued = await other.enqueue("q", b"data", headers={"h": "v"}, dedup_key="k", dedup_until="settled")
    [job] = await within(waiting)
    assert calls(server) == before + 1
    assert (job.id, job.payload, job.attempts, job.epoch, job.worker) == (enqueued.id, b"data", 1, 1, "w")
    stored = await other.get(job.id)
    assert stored is not None
    assert (stored.state, stored.lease_expires_at) == (JobState.RUNNING, job.lease_expires_at)
    assert not (await other.enqueue("q", dedup_key="k")).created
    await broker.ack(job)
    assert (await other.stats("q")).done == 1


async def test_the_lease_counts_on_the_clock_of_the_server(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker, lease=7)
    await other.enqueue("q")
    [job] = await within(waiting)
    with client(server.url) as connection:
        seconds, micros = connection.time()
    assert job.lease_us is not None
    assert job.claimed_us is not None
    assert job.lease_us - job.claimed_us == 7_000_000
    assert 0 <= seconds * 1_000_000 + micros - job.claimed_us < 20_000_000


async def test_who_has_waited_longest_is_next(server: Server, broker: Broker, other: Broker) -> None:
    async with Broker(server.url, config=QUIET) as third:
        first, second = await seated(broker), await seated(third)
        await other.enqueue("q", b"1")
        assert [job.payload for job in await within(first)] == [b"1"]
        third_wait = await seated(broker)
        await other.enqueue("q", b"2")
        assert [job.payload for job in await within(second)] == [b"2"]
        await gone(third_wait)


async def test_a_paused_queue_hands_nothing_over(broker: Broker, other: Broker) -> None:
    waiting = await seated(broker)
    await other.pause("q")
    await other.enqueue("q", b"later", priority=2000)
    assert (await other.stats("q")).pending == 1
    await other.enqueue("q", b"first", priority=1)
    assert (await other.stats("q")).running == 0
    await other.resume("q")
    assert [job.payload for job in await within(waiting)] == [b"first", b"later"]


async def test_what_others_are_before_is_not_handed_over(broker: Broker, other: Broker) -> None:
    """The look of whoever waits is held up, so jobs lie there though it has a seat."""
    waiting = await seated(broker)
    engine_of(broker).signals.publish = lambda topics: None  # type: ignore[method-assign]
    await other.enqueue_many([NewJob("q", b"%d" % priority, priority=priority) for priority in (10, 20)])
    await other.enqueue("q", b"30", priority=30)
    await other.enqueue("q", b"5", priority=5)
    assert (await other.stats("q")).running == 0
    engine_of(broker).signals.publish_all()
    assert [job.payload for job in await within(waiting)] == [b"5", b"10", b"20", b"30"]


async def test_what_is_not_to_run_now_is_not_handed_over(broker: Broker, other: Broker) -> None:
    waiting = await seated(broker)
    await other.enqueue("q", delay=60)
    await other.enqueue("q", expires=0)
    assert (await other.stats("q")).running == 0
    await other.enqueue("q", b"now")
    assert [job.payload for job in await within(waiting)] == [b"now"]


async def test_a_dedup_key_until_claimed_is_free_when_the_job_runs(broker: Broker, other: Broker) -> None:
    waiting = await seated(broker)
    first = await other.enqueue("q", dedup_key="k")
    [job] = await within(waiting)
    assert job.id == first.id
    second = await other.enqueue("q", dedup_key="k")
    assert second.created
    assert not (await other.enqueue("q", dedup_key="k")).created


async def test_a_batch_is_claimed_as_a_batch(broker: Broker, other: Broker) -> None:
    waiting = await seated(broker)
    await other.enqueue_many([NewJob("q", priority=priority) for priority in (3, 1, 2)])
    assert [job.priority for job in await within(waiting)] == [1, 2, 3]


async def test_a_large_job_is_fetched(server: Server, broker: Broker, other: Broker) -> None:
    waiting = await seated(broker)
    before = calls(server)
    await other.enqueue("q", bytes(100_000))
    assert len((await within(waiting))[0].payload) == 100_000
    assert calls(server) == before + 2
