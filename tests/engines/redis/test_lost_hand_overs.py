"""A job that is handed over and does not arrive, or late, comes back, uncounted, and runs once."""

from __future__ import annotations

import asyncio

from dayjob import Broker, JobState
from dayjob.runtime.clock import SYSTEM, block
from tests.engines.redis.seating import (
    deafen,
    engine_of,
    gone,
    hear,
    keys,
    promote,
    seated,
    until_confirmed,
    until_heard,
)
from tests.support.servers.proxy import Proxy
from tests.support.servers.redis import Server, client
from tests.support.waiting import within
from tests.support.workers import pause


async def test_a_job_that_did_not_arrive_is_taken_back_and_did_not_count(
    broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker)
    lost = deafen(broker)
    enqueued = await other.enqueue("q")
    assert (await other.stats("q")).running == 1
    await until_heard(lost)
    assert await promote(other, after=1_000_000) == 0
    due = await other.next_due()
    assert due is not None
    assert due <= 3_000_000
    assert await promote(other) == 1
    [job] = await within(waiting)
    assert (job.id, job.attempts, job.epoch) == (enqueued.id, 1, 2)


async def test_a_job_that_arrived_is_not_taken_back(server: Server, broker: Broker, other: Broker) -> None:
    waiting = await seated(broker)
    await other.enqueue("q")
    [job] = await within(waiting)
    await until_confirmed(server)
    assert await promote(other) == 0
    await broker.ack(job)


async def test_a_newer_claim_is_not_taken_back_for_an_older_one(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker)
    message = deafen(broker)
    await other.enqueue("q")
    await until_heard(message)
    engine_of(broker).signals.publish = lambda topics: None  # type: ignore[method-assign]
    [running] = await other.jobs("q", JobState.RUNNING)
    await other.release(running)
    [job] = await other.claim("q")
    assert (job.epoch, keys(server, "handed")) == (2, [1])
    assert await promote(other) == 0
    assert keys(server, "handed") == [0]
    await other.ack(job)
    await gone(waiting)


async def test_the_server_knows_that_a_job_arrived_before_its_run_can_hold_up_the_loop(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker)
    await other.enqueue("q")
    await within(waiting)
    deadline = SYSTEM.elapsed() + 20
    while keys(server, "handed") != [0]:  # No other coroutine gets a turn meanwhile.
        assert SYSTEM.elapsed() < deadline
        block(0.01)


async def test_without_an_idle_connection_the_confirmation_opens_one(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker)
    engine_of(broker)._link._let_go()
    await other.enqueue("q")
    assert len(await within(waiting)) == 1
    await until_confirmed(server)


async def test_a_confirmation_on_a_connection_that_died_is_repeated(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker)
    link = engine_of(broker)._link
    message = deafen(broker)
    await other.enqueue("q")
    await until_heard(message)
    with client(server.url) as connection:
        connection.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert link._idle  # Nobody has noticed yet: this is the first turn since.
    hear(broker, message[0])
    assert len(await within(waiting)) == 1
    await until_confirmed(server)


async def test_a_message_that_comes_late_is_taken_if_the_claim_holds(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker)
    seats = engine_of(broker)._seats
    assert seats._offset is not None
    seats._offset += 2
    enqueued = await other.enqueue("q")
    [job] = await within(waiting)
    assert (job.id, job.epoch) == (enqueued.id, 1)
    assert keys(server, "handed") == [0]


async def test_a_message_that_comes_after_the_job_was_taken_back_is_not_taken(
    server: Server, broker: Broker, other: Broker
) -> None:
    """The process was held up, and another one has the job by now."""
    waiting = await seated(broker)
    late = deafen(broker)
    engine_of(broker).signals.publish = lambda topics: None  # type: ignore[method-assign]
    await other.enqueue("q")
    await until_heard(late)
    await promote(other)
    [job] = await other.claim("q")
    seats = engine_of(broker)._seats
    assert seats._offset is not None
    seats._offset += 3
    hear(broker, late[0])
    while engine_of(broker)._confirming:
        await asyncio.wait(engine_of(broker)._confirming)
    assert not waiting.done()
    await other.ack(job)
    await gone(waiting)


async def test_the_reclaim_of_a_dead_worker_does_not_count_what_never_arrived(
    broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker)
    lost = deafen(broker)
    enqueued = await other.enqueue("q", max_attempts=1)
    await until_heard(lost)
    engine_of(broker).signals.publish = lambda topics: None  # type: ignore[method-assign]
    assert await other.reclaim_from(["w"]) == 1
    [job] = await other.claim("q")
    assert (job.id, job.attempts, job.epoch) == (enqueued.id, 1, 2)
    await gone(waiting)


async def test_the_reclaim_of_a_dead_worker_counts_what_arrived(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker)
    enqueued = await other.enqueue("q", max_attempts=1)
    await within(waiting)
    await until_confirmed(server)
    assert await other.reclaim_from(["w"]) == 1
    [job] = await other.dead_jobs("q")
    assert (job.id, job.attempts, job.last_error) == (enqueued.id, 1, "worker gone")


async def test_a_lease_that_ends_before_the_job_arrived_does_not_count(broker: Broker, other: Broker) -> None:
    waiting = await seated(broker, lease=0.001)
    lost = deafen(broker)
    await other.enqueue("q", max_attempts=1)
    await until_heard(lost)
    await pause(0.01)
    assert await other.reap() == 1
    [job] = await within(waiting)
    assert (job.attempts, job.epoch) == (1, 2)


async def test_a_subscription_that_was_cut_gets_nothing_handed_over(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker)
    with client(server.url) as connection:
        connection.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    enqueued = await other.enqueue("q")
    [job] = await within(waiting)
    assert (job.id, job.attempts, job.epoch) == (enqueued.id, 1, 1)


async def test_an_enqueue_whose_answer_was_lost_hands_over_once(
    server: Server, broker: Broker, through: Broker, proxy: Proxy
) -> None:
    await through.enqueue("elsewhere")
    waiting = await seated(broker)
    proxy.losing = 1
    enqueued = await within(through.enqueue("q"))
    assert (enqueued.created, proxy.lost) == (True, 1)
    [job] = await within(waiting)
    assert (job.id, job.epoch) == (enqueued.id, 1)
    assert (await broker.stats("q")).running == 1


async def test_after_a_restart_and_with_scripts_flushed_jobs_are_handed_over(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker)
    await asyncio.to_thread(server.restart)
    await within(other.stats("q"))
    async with asyncio.timeout(20):
        with client(server.url) as connection:
            while not connection.client_list("pubsub"):
                await pause(0.01)
            connection.script_flush()
    await other.enqueue("q", b"1")
    [job] = await within(waiting)
    assert job.attempts == 1
    again = await seated(broker)
    await other.enqueue("q", b"2")
    assert [job.payload for job in await within(again)] == [b"2"]
