"""An enqueue elsewhere claims its job for a claim that waits; no rule bends for that, and no job is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dayjob import App, Broker, BrokerConfig, Context, EngineUnavailable, Job, JobState, NewJob
from dayjob.clock import SYSTEM, block
from dayjob.codec import encode
from dayjob.engines.redis.engine import RedisEngine
from dayjob.testing import ManualClock
from tests.conformance.waiting import within
from tests.engines.redis.conftest import QUIET
from tests.servers.proxy import Proxy
from tests.servers.redis import Server, client
from tests.worker.crew import KEEP_ALL, pause, working

LATER = 4_000_000
"""Microseconds after which what did not arrive is taken back."""


@pytest.fixture
async def other(server: Server) -> AsyncIterator[Broker]:
    """A broker elsewhere, which enqueues."""
    async with Broker(server.url, config=QUIET) as broker:
        yield broker


async def seated(broker: Broker, **options: Any) -> asyncio.Task[list[Job]]:
    """A claim that waits, and is known to."""
    options = {"limit": 10, "lease": 30, "wait": 60, "worker": "w", **options}
    task = asyncio.create_task(broker.claim("q", **options))
    while "q" not in broker._offers._by_queue:
        await asyncio.wait({task}, timeout=0.01)
    return task


async def gone(waiting: asyncio.Task[list[Job]]) -> None:
    waiting.cancel()
    await asyncio.wait({waiting})


def engine_of(broker: Broker) -> RedisEngine:
    engine = broker._engine
    assert isinstance(engine, RedisEngine)
    return engine


def deafen(broker: Broker) -> list[bytes]:
    """Lose the messages that come for the broker's seats; those that came."""
    lost: list[bytes] = []
    news = engine_of(broker)._opened[1]  # type: ignore[index]
    news._hear = lost.append
    return lost


def hear(broker: Broker, message: bytes) -> None:
    engine_of(broker)._seats.hear(message)


async def promote(broker: Broker, after: int = LATER) -> int:
    """What the duty does when that much time has passed."""
    now = await broker._engine.notes("none")
    return (await broker._engine.promote(10, broker._policies.keeps, now[0] + after))[0]


def keys(server: Server, *names: str) -> list[int]:
    with client(server.url) as connection:
        return [connection.zcard(f"{{dayjob}}:{name}") for name in names]


async def until_confirmed(server: Server) -> None:
    async with asyncio.timeout(20):
        while keys(server, "handed") != [0]:
            await pause(0.01)


async def until_heard(messages: list[bytes]) -> None:
    async with asyncio.timeout(20):
        while not messages:
            await pause(0.01)


async def until_pending(broker: Broker) -> None:
    async with asyncio.timeout(20):
        while (await broker.stats("q")).pending == 0:
            await pause(0.01)


def calls(server: Server) -> int:
    """How many scripts were called."""
    with client(server.url) as connection:
        return int(connection.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


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


# What does not arrive.


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


# Those who wait no longer.


async def test_a_process_that_is_gone_is_handed_nothing(server: Server, proxy: Proxy, other: Broker) -> None:
    """Its seats are passed over, and removed."""
    async with Broker(proxy.url("dayjob", "&patience=1"), config=QUIET) as broker:
        waits = [await seated(broker) for _ in range(3)]
        async with asyncio.timeout(20):
            while keys(server, "seats") != [3]:
                await pause(0.01)
        await proxy.stop()
        async with asyncio.timeout(20):
            with client(server.url) as connection:
                while connection.client_list("pubsub"):
                    await pause(0.01)
        assert keys(server, "seats") == [3]
        await other.enqueue("q")
        assert (await other.stats("q")).pending == 1
        assert keys(server, "seats", "handed") == [0, 0]
        await asyncio.gather(*(gone(wait) for wait in waits))


async def test_seats_of_processes_that_are_gone_are_swept(server: Server, broker: Broker) -> None:
    waiting = await seated(broker)
    with client(server.url) as connection:
        stale = b"other\0" + bytes(8) + bytes(16) + bytes(16) + bytes(8) + b"w"
        connection.zadd("{dayjob}:seats", {stale: 0})
        await broker.sweep()
        assert connection.zrange("{dayjob}:seats", 0, -1) != [stale]
        assert connection.zcard("{dayjob}:seats") == 1
    await gone(waiting)


async def test_closing_gives_the_seats_up(server: Server) -> None:
    broker = await Broker(server.url, config=QUIET).open()
    waiting = await seated(broker)
    assert keys(server, "seats") == [1]
    await broker.close()
    await asyncio.wait({waiting})
    assert keys(server, "seats") == [0]


async def test_the_next_look_gives_up_what_was_left(server: Server, broker: Broker) -> None:
    for _ in range(3):
        await gone(await seated(broker))
    assert keys(server, "seats") == [1]
    await broker.claim("elsewhere")
    assert keys(server, "seats") == [0]


async def test_a_claim_that_waits_has_one_seat_however_often_it_looks(server: Server, broker: Broker) -> None:
    waiting = await seated(broker)
    for _ in range(3):
        before = calls(server)
        engine_of(broker).signals.publish_all()
        async with asyncio.timeout(20):
            while calls(server) == before or "q" not in broker._offers._by_queue:
                await pause(0.01)
        assert keys(server, "seats") == [1]
    await gone(waiting)


async def test_what_comes_for_who_waits_no_longer_is_released_and_did_not_count(
    server: Server, broker: Broker, other: Broker
) -> None:
    await gone(await seated(broker))
    enqueued = await other.enqueue("q")
    await until_pending(other)
    [job] = await other.claim("q")
    assert (job.id, job.attempts, job.epoch) == (enqueued.id, 1, 2)
    await until_confirmed(server)


async def test_what_arrives_as_the_caller_is_cancelled_is_released(broker: Broker, other: Broker) -> None:
    waiting = await seated(broker)
    message = deafen(broker)
    await other.enqueue("q")
    await until_heard(message)
    hear(broker, message[0])
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    await until_pending(other)


async def test_nobody_gets_more_than_the_limit(broker: Broker, other: Broker) -> None:
    """One job is handed over while the look that finds another is under way."""
    waiting = await seated(broker, limit=1)
    message = deafen(broker)
    await other.enqueue("q", b"1")
    await until_heard(message)
    claim = broker._engine.claim

    async def slow_claim(*arguments: Any) -> Any:
        found = await claim(*arguments)
        hear(broker, message[0])
        return found

    broker._engine.claim = slow_claim  # type: ignore[method-assign, assignment]
    await other.enqueue("q", b"2")
    [job] = await within(waiting)
    assert job.payload == b"1"
    await until_pending(other)
    assert [job.payload for job in await other.jobs("q", JobState.PENDING)] == [b"2"]


async def test_a_job_enqueued_here_ends_the_wait_and_leaves_one_from_elsewhere_to_others(
    broker: Broker, other: Broker
) -> None:
    waiting = await seated(broker)
    await broker.enqueue("q", b"here")
    assert [job.payload for job in await within(waiting)] == [b"here"]
    enqueued = await other.enqueue("q", b"elsewhere")
    [job] = await within(other.claim("q", wait=20))
    assert (job.id, job.attempts) == (enqueued.id, 1)


async def test_a_full_server_hands_nothing_over(server: Server, broker: Broker, other: Broker) -> None:
    waiting = await seated(broker)
    with client(server.url) as connection:
        connection.config_set("maxmemory", 1)
        for options in ({}, {"expires": 60}, {"dedup_key": "k"}):
            with pytest.raises(EngineUnavailable, match="memory is full"):
                await within(other.enqueue("q", **options))
        connection.config_set("maxmemory", 0)
    assert not waiting.done()
    assert keys(server, "handed") == [0]
    await other.enqueue("q")
    assert len(await within(waiting)) == 1


async def test_a_cancel_reaches_a_job_that_is_on_its_way(broker: Broker, other: Broker) -> None:
    waiting = await seated(broker)
    enqueued = await other.enqueue("q")
    await other.cancel(enqueued.id)
    [job] = await within(waiting)
    await within(job.cancel_token.wait())


async def test_without_the_right_to_ask_who_listens_nothing_is_handed_over(
    server: Server, broker: Broker, other: Broker
) -> None:
    with client(server.url) as connection:
        connection.execute_command("ACL", "SETUSER", "default", "-pubsub")
    waiting = await seated(broker)
    before = calls(server)
    await other.enqueue("q")
    assert len(await within(waiting)) == 1
    assert calls(server) == before + 2
    await broker.sweep()


async def test_what_is_handed_over_under_an_old_id_runs_under_the_new_one(
    server: Server, other: Broker
) -> None:
    """The worker was declared dead, and replaced, while it waited."""
    app = App(server.url, config=BrokerConfig(retention=KEEP_ALL))
    ran: list[tuple[int, int, str | None]] = []

    @app.task(name="work", queue="q")
    async def work(ctx: Context) -> None:
        ran.append((ctx.attempt, ctx.epoch, ctx.job.worker))

    async with working(app, queues=("q",)) as worker:
        async with asyncio.timeout(20):
            while keys(server, "seats") != [1]:
                await pause(0.01)
        worker._fetcher.worker = "anew"
        await other.enqueue("q", encode({}), task="work")
        async with asyncio.timeout(20):
            while not ran:
                await pause(0.01)
    assert ran == [(1, 2, "anew")]
    await app.close()


async def test_a_claim_on_an_injected_clock_takes_no_seat(server: Server) -> None:
    async with Broker(server.url, config=QUIET, clock=ManualClock()) as broker:
        waiting = await seated(broker)
        assert keys(server, "seats") == [0]
        await gone(waiting)


async def test_an_enqueue_on_an_injected_clock_hands_nothing_over(server: Server, broker: Broker) -> None:
    """The age of the message would mean nothing, and the time to be confirmed by might not come."""
    async with Broker(server.url, config=QUIET, clock=ManualClock()) as other:
        waiting = await seated(broker)
        before = calls(server)
        await other.enqueue("q")
        assert len(await within(waiting)) == 1
        assert calls(server) == before + 2
