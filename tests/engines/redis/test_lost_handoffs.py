"""A hand-off that is lost or late is revoked, the attempt does not count, and the job runs once."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, EngineUnavailable, JobState
from tests.engines.redis.conftest import QUIET, SHORT
from tests.engines.redis.waiting_claims import (
    acknowledged,
    cancel,
    engine_of,
    ignore_changes,
    lose_handoffs,
    promote,
    receive,
    sizes,
    until_acknowledged,
    until_received,
    waiting_claim,
)
from tests.support.bound import BOUND
from tests.support.servers.proxy import Proxy
from tests.support.servers.redis import Server, client
from tests.support.waiting import with_timeout
from tests.support.workers import pause


async def test_a_lost_handoff_is_revoked_and_the_attempt_does_not_count(
    broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    lost = lose_handoffs(broker)
    enqueued = await other.enqueue("q")
    assert (await other.stats("q")).running == 1
    await until_received(lost)
    assert await promote(other, after=1_000_000) == 0
    due = await other.next_due()
    assert due is not None
    assert due <= 3_000_000
    assert await promote(other) == 1
    [job] = await with_timeout(waiting)
    assert (job.id, job.attempts) == (enqueued.id, 1)


async def test_a_lost_handoff_is_revoked_though_the_clock_was_set_back(broker: Broker, other: Broker) -> None:
    """Its deadline would be as late as the clock was ahead, and no worker is declared dead for it."""
    waiting = await waiting_claim(broker)
    lost = lose_handoffs(broker)
    enqueued = await other.enqueue("q")
    await until_received(lost)
    assert await promote(other, after=-1_000_000) == 1
    [job] = await with_timeout(waiting)
    assert (job.id, job.attempts) == (enqueued.id, 1)


async def test_an_acknowledged_handoff_is_not_revoked(server: Server, broker: Broker, other: Broker) -> None:
    waiting = await waiting_claim(broker)
    await other.enqueue("q")
    [job] = await with_timeout(waiting)
    await until_acknowledged(server)
    assert await promote(other) == 0
    await broker.ack(job)


async def test_a_newer_claim_is_not_revoked_for_an_older_handoff(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    message = lose_handoffs(broker)
    await other.enqueue("q")
    await until_received(message)
    ignore_changes(broker)
    [running] = await other.jobs("q", JobState.RUNNING)
    await other.release(running)
    [job] = await other.claim("q")
    assert job.claim != running.claim
    assert sizes(server, "handoffs") == [1]
    assert await promote(other) == 0
    assert sizes(server, "handoffs") == [0]
    await other.ack(job)
    await cancel(waiting)


async def test_the_job_is_acknowledged_before_it_is_delivered(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    await other.enqueue("q")
    await with_timeout(waiting)
    assert sizes(server, "handoffs") == [0]


async def test_the_acknowledgment_is_written_when_the_message_arrives(broker: Broker, other: Broker) -> None:
    """It does not wait for a turn of the event loop."""
    waiting = await waiting_claim(broker)
    message = lose_handoffs(broker)
    await other.enqueue("q")
    await until_received(message)
    connections = engine_of(broker)._client
    assert (len(connections._idle._stack), len(connections._busy)) == (1, 0)
    receive(broker, message[0])
    assert (len(connections._idle._stack), len(connections._busy)) == (0, 1)
    assert len(await with_timeout(waiting)) == 1


async def test_without_an_idle_connection_the_acknowledgment_opens_one(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    engine_of(broker)._client._drop_idle()
    await other.enqueue("q")
    assert len(await with_timeout(waiting)) == 1
    await until_acknowledged(server)


async def test_an_acknowledgment_on_a_dead_connection_is_repeated(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    connections = engine_of(broker)._client
    message = lose_handoffs(broker)
    await other.enqueue("q")
    await until_received(message)
    with client(server.url) as connection:
        connection.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert connections._idle  # The client has not noticed yet.
    receive(broker, message[0])
    assert len(await with_timeout(waiting)) == 1
    await until_acknowledged(server)


async def test_a_late_handoff_is_delivered_if_the_claim_is_current(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    late = lose_handoffs(broker)
    enqueued = await other.enqueue("q")
    await until_received(late)
    receive(broker, late[0])
    [job] = await with_timeout(waiting)
    assert (job.id, job.attempts) == (enqueued.id, 1)
    assert sizes(server, "handoffs") == [0]


async def test_a_handoff_that_arrives_after_it_was_revoked_is_not_delivered(
    server: Server, broker: Broker, other: Broker
) -> None:
    """The process was blocked, and another one has claimed the job since."""
    waiting = await waiting_claim(broker)
    late = lose_handoffs(broker)
    ignore_changes(broker)
    await other.enqueue("q")
    await until_received(late)
    await promote(other)
    [job] = await other.claim("q")
    receive(broker, late[0])
    await acknowledged(broker)
    assert not waiting.done()
    await other.ack(job)
    await cancel(waiting)


async def test_reclaiming_an_unacknowledged_handoff_does_not_count_the_attempt(
    broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    lost = lose_handoffs(broker)
    enqueued = await other.enqueue("q", max_attempts=1)
    await until_received(lost)
    ignore_changes(broker)
    assert await other.reclaim_from(["w"]) == 1
    [job] = await other.claim("q")
    assert (job.id, job.attempts) == (enqueued.id, 1)
    await cancel(waiting)


async def test_reclaiming_an_acknowledged_handoff_counts_the_attempt(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    enqueued = await other.enqueue("q", max_attempts=1)
    await with_timeout(waiting)
    await until_acknowledged(server)
    assert await other.reclaim_from(["w"]) == 1
    [job] = await other.dead_jobs("q")
    assert (job.id, job.attempts, job.last_error) == (enqueued.id, 1, "worker gone")


async def test_a_lease_that_expires_before_the_acknowledgment_does_not_count(
    broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker, lease=0.001)
    lost = lose_handoffs(broker)
    await other.enqueue("q", max_attempts=1)
    await until_received(lost)
    await pause(0.01)
    assert await other.reap() == 1
    [job] = await with_timeout(waiting)
    assert job.attempts == 1


async def test_a_client_without_a_subscription_gets_no_handoff(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    with client(server.url) as connection:
        connection.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    enqueued = await other.enqueue("q")
    [job] = await with_timeout(waiting)
    assert (job.id, job.attempts) == (enqueued.id, 1)


async def test_an_enqueue_whose_reply_was_lost_hands_its_job_off_once(
    server: Server, broker: Broker, through: Broker, proxy: Proxy
) -> None:
    await through.enqueue("elsewhere")
    waiting = await waiting_claim(broker)
    proxy.losing = 1
    enqueued = await with_timeout(through.enqueue("q"))
    assert (enqueued.created, proxy.lost) == (True, 1)
    [job] = await with_timeout(waiting)
    assert (job.id, job.attempts) == (enqueued.id, 1)
    assert (await broker.stats("q")).running == 1


async def test_jobs_are_handed_off_after_a_restart_and_a_script_flush(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    await asyncio.to_thread(server.restart)
    await with_timeout(other.stats("q"))
    async with asyncio.timeout(BOUND):
        with client(server.url) as connection:
            while not connection.client_list("pubsub"):
                await pause(0.01)
            connection.script_flush()
    await other.enqueue("q", b"1")
    [job] = await with_timeout(waiting)
    assert job.attempts == 1
    again = await waiting_claim(broker)
    await other.enqueue("q", b"2")
    assert [job.payload for job in await with_timeout(again)] == [b"2"]


async def test_a_client_that_does_not_acknowledge_gets_one_handoff(
    server: Server, broker: Broker, other: Broker
) -> None:
    """A frozen process would otherwise delay one job for each of its waiting claims."""
    waits = [await waiting_claim(broker) for _ in range(12)]
    lost = lose_handoffs(broker)
    ignore_changes(broker)
    async with Broker(server.url, config=QUIET) as healthy:
        other_wait = await waiting_claim(healthy)
        await other.enqueue("q", b"1")
        await until_received(lost)
        await pause(0.2)
        await other.enqueue("q", b"2")
        assert [job.payload for job in await with_timeout(other_wait)] == [b"2"]
        assert len(lost) == 1
        await promote(other)
        assert [job.payload for job in await healthy.claim("q")] == [b"1"]
        await asyncio.gather(*(cancel(wait) for wait in waits))


@pytest.mark.parametrize("sign", ["acknowledgment", "claim"])
async def test_a_client_gets_handoffs_again_after_a_sign_of_life(
    server: Server, broker: Broker, other: Broker, sign: str
) -> None:
    waits = [await waiting_claim(broker, limit=1) for _ in range(2)]
    late = lose_handoffs(broker)
    await other.enqueue("q", b"1")
    await until_received(late)
    await pause(0.2)
    assert sizes(server, "handoff_clients") == [1]
    if sign == "acknowledgment":
        receive(broker, late[0])
        await until_acknowledged(server)
    else:
        waits.append(await waiting_claim(broker, limit=1))
        async with asyncio.timeout(BOUND):
            while sizes(server, "handoff_clients") != [0]:
                await pause(0.01)
    assert sizes(server, "handoff_clients") == [0]
    await other.enqueue("q", b"2")
    async with asyncio.timeout(BOUND):
        while len(late) < 2:
            await pause(0.01)
    await asyncio.gather(*(cancel(wait) for wait in waits))


async def test_handoffs_are_checked_every_second_while_claims_wait(broker: Broker, other: Broker) -> None:
    """A hand-off publishes no due time, so the interval of the promote duty must not decide."""
    assert await other.next_due() is None
    waiting = await waiting_claim(broker)
    due = await other.next_due()
    assert due is not None
    assert due <= 1_000_000
    await cancel(waiting)


async def test_a_sweep_removes_clients_that_have_long_been_silent(server: Server, broker: Broker) -> None:
    with client(server.url) as connection:
        connection.zadd("{dayjob}:handoff_clients", {b"x" * 16: 1})
        await broker.sweep()
        assert not connection.exists("{dayjob}:handoff_clients")


async def test_a_broker_claims_again_after_the_reply_to_a_waiting_claim_stayed_lost(
    server: Server, proxy: Proxy
) -> None:
    """The stored reply registers a waiting claim whose caller has given up. The next claim removes it."""
    async with Broker(proxy.url("dayjob", SHORT), config=QUIET) as broker:
        assert await broker.claim("q") == []  # It is subscribed.
        proxy.losing = 10**6
        with pytest.raises(EngineUnavailable):
            await broker.claim("q", wait=BOUND)
        proxy.losing = 0
        assert await with_timeout(broker.claim("q")) == []
        assert await with_timeout(broker.claim("q")) == []
        assert sizes(server, "waiting_claims") == [0]
        enqueued = await broker.enqueue("q")
        assert [job.id for job in await broker.claim("q")] == [enqueued.id]
