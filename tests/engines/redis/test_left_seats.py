"""Seats of those who wait no longer: nothing is left behind, and no job stays with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dayjob import App, Broker, BrokerConfig, Context, EngineUnavailable, JobState
from dayjob.model.codec import encode
from dayjob.testing import ManualClock
from tests.engines.redis.conftest import QUIET
from tests.engines.redis.seating import (
    calls,
    deafen,
    engine_of,
    gone,
    hear,
    keys,
    seated,
    until_confirmed,
    until_heard,
    until_pending,
)
from tests.support.servers.proxy import Proxy
from tests.support.servers.redis import Server, client
from tests.support.waiting import within
from tests.support.workers import KEEP_ALL, pause, working


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

    async def slow_claim(*arguments: Any, **named: Any) -> Any:
        found = await claim(*arguments, **named)
        hear(broker, message[0])
        return found

    broker._engine.claim = slow_claim  # type: ignore[method-assign]
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
