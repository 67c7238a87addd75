"""An enqueue claims its job for a waiting claim of another process, by the same rules as any claim."""

from __future__ import annotations

from dayjob import Broker, JobState, NewJob
from tests.engines.redis.conftest import QUIET
from tests.engines.redis.waiting_claims import (
    cancel,
    engine_of,
    ignore_changes,
    script_calls,
    waiting_claim,
)
from tests.support.servers.redis import Server, client
from tests.support.waiting import with_timeout


async def test_an_enqueue_hands_its_job_off_to_a_waiting_claim(
    server: Server, broker: Broker, other: Broker
) -> None:
    await other.enqueue("elsewhere")
    waiting = await waiting_claim(broker)
    before = script_calls(server)
    enqueued = await other.enqueue("q", b"data", headers={"h": "v"}, dedup_key="k", dedup_until="settled")
    [job] = await with_timeout(waiting)
    assert script_calls(server) == before + 1
    assert (job.id, job.payload, job.attempts, job.worker) == (enqueued.id, b"data", 1, "w")
    stored = await other.get(job.id)
    assert stored is not None
    assert (stored.state, stored.lease_expires_at) == (JobState.RUNNING, job.lease_expires_at)
    assert not (await other.enqueue("q", dedup_key="k")).created
    await broker.ack(job)
    assert (await other.stats("q")).done == 1


async def test_the_lease_of_a_handed_off_job_follows_the_server_clock(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker, lease=7)
    await other.enqueue("q")
    [job] = await with_timeout(waiting)
    with client(server.url) as connection:
        seconds, micros = connection.time()
    assert job.lease_us is not None
    assert job.claimed_us is not None
    assert job.lease_us - job.claimed_us == 7_000_000
    assert 0 <= seconds * 1_000_000 + micros - job.claimed_us < 20_000_000


async def test_the_claim_that_has_waited_longest_is_next(
    server: Server, broker: Broker, other: Broker
) -> None:
    async with Broker(server.url, config=QUIET) as third:
        first, second = await waiting_claim(broker), await waiting_claim(third)
        await other.enqueue("q", b"1")
        assert [job.payload for job in await with_timeout(first)] == [b"1"]
        third_wait = await waiting_claim(broker)
        await other.enqueue("q", b"2")
        assert [job.payload for job in await with_timeout(second)] == [b"2"]
        await cancel(third_wait)


async def test_a_paused_queue_hands_no_job_off(broker: Broker, other: Broker) -> None:
    waiting = await waiting_claim(broker)
    await other.pause("q")
    await other.enqueue("q", b"later", priority=2000)
    assert (await other.stats("q")).pending == 1
    await other.enqueue("q", b"first", priority=1)
    assert (await other.stats("q")).running == 0
    await other.resume("q")
    assert [job.payload for job in await with_timeout(waiting)] == [b"first", b"later"]


async def test_a_job_behind_pending_ones_is_not_handed_off(broker: Broker, other: Broker) -> None:
    """The waiting claim gets no notifications, so jobs are pending although it waits."""
    waiting = await waiting_claim(broker)
    ignore_changes(broker)
    await other.enqueue_many([NewJob("q", b"%d" % priority, priority=priority) for priority in (10, 20)])
    await other.enqueue("q", b"30", priority=30)
    await other.enqueue("q", b"5", priority=5)
    assert (await other.stats("q")).running == 0
    engine_of(broker).signals.publish_all()
    assert [job.payload for job in await with_timeout(waiting)] == [b"5", b"10", b"20", b"30"]


async def test_scheduled_and_expired_jobs_are_not_handed_off(broker: Broker, other: Broker) -> None:
    waiting = await waiting_claim(broker)
    await other.enqueue("q", delay=60)
    await other.enqueue("q", expires=0)
    assert (await other.stats("q")).running == 0
    await other.enqueue("q", b"now")
    assert [job.payload for job in await with_timeout(waiting)] == [b"now"]


async def test_a_dedup_key_until_claimed_is_released_when_the_job_runs(broker: Broker, other: Broker) -> None:
    waiting = await waiting_claim(broker)
    first = await other.enqueue("q", dedup_key="k")
    [job] = await with_timeout(waiting)
    assert job.id == first.id
    second = await other.enqueue("q", dedup_key="k")
    assert second.created
    assert not (await other.enqueue("q", dedup_key="k")).created


async def test_a_batch_is_not_handed_off_but_claimed_as_a_batch(broker: Broker, other: Broker) -> None:
    waiting = await waiting_claim(broker)
    await other.enqueue_many([NewJob("q", priority=priority) for priority in (3, 1, 2)])
    assert [job.priority for job in await with_timeout(waiting)] == [1, 2, 3]


async def test_a_large_job_is_not_handed_off_but_claimed(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    before = script_calls(server)
    await other.enqueue("q", bytes(100_000))
    assert len((await with_timeout(waiting))[0].payload) == 100_000
    assert script_calls(server) == before + 2
