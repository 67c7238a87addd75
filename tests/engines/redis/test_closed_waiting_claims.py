"""Waiting claims that were closed, or whose process ended: they leave no members, and get no job for long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dayjob import App, Broker, BrokerConfig, Context, EngineUnavailable, JobState
from dayjob.model.codec import encode
from dayjob.testing import ManualClock
from tests.engines.redis.conftest import QUIET
from tests.engines.redis.waiting_claims import (
    acknowledge,
    acknowledged,
    cancel,
    engine_of,
    lose_handoffs,
    receive,
    script_calls,
    sizes,
    until_acknowledged,
    until_pending,
    until_received,
    waiting_claim,
)
from tests.support.bound import BOUND
from tests.support.servers.proxy import Proxy
from tests.support.servers.redis import Server, client
from tests.support.waiting import with_timeout
from tests.support.workers import KEEP_ALL, pause, working


async def test_waiting_claims_of_an_ended_process_are_skipped_and_removed(
    server: Server, proxy: Proxy, other: Broker
) -> None:
    async with Broker(proxy.url("dayjob", "&timeout=3"), config=QUIET) as broker:
        waits = [await waiting_claim(broker) for _ in range(3)]
        async with asyncio.timeout(BOUND):
            while sizes(server, "waiting_claims") != [3]:
                await pause(0.01)
        await proxy.stop()
        async with asyncio.timeout(BOUND):
            with client(server.url) as connection:
                while connection.client_list("pubsub"):
                    await pause(0.01)
        assert sizes(server, "waiting_claims") == [3]
        await other.enqueue("q")
        assert (await other.stats("q")).pending == 1
        assert sizes(server, "waiting_claims", "handoffs") == [0, 0]
        await asyncio.gather(*(cancel(wait) for wait in waits))


async def test_a_sweep_removes_waiting_claims_of_ended_processes(server: Server, broker: Broker) -> None:
    waiting = await waiting_claim(broker)
    with client(server.url) as connection:
        stale = b"other\0" + bytes(8) + bytes(16) + bytes(16) + bytes(8) + b"w"
        connection.zadd("{dayjob}:waiting_claims", {stale: 0})
        await broker.sweep()
        assert connection.zrange("{dayjob}:waiting_claims", 0, -1) != [stale]
        assert connection.zcard("{dayjob}:waiting_claims") == 1
    await cancel(waiting)


async def test_closing_the_broker_removes_its_waiting_claims(server: Server) -> None:
    broker = await Broker(server.url, config=QUIET).open()
    waiting = await waiting_claim(broker)
    assert sizes(server, "waiting_claims") == [1]
    await broker.close()
    await asyncio.wait({waiting})
    assert sizes(server, "waiting_claims") == [0]


async def test_the_next_claim_removes_closed_waiting_claims(server: Server, broker: Broker) -> None:
    for _ in range(3):
        await cancel(await waiting_claim(broker))
    assert sizes(server, "waiting_claims") == [1]
    await broker.claim("elsewhere")
    assert sizes(server, "waiting_claims") == [0]


async def test_a_waiting_claim_is_registered_once_however_often_it_polls(
    server: Server, broker: Broker
) -> None:
    waiting = await waiting_claim(broker)
    for _ in range(3):
        before = script_calls(server)
        engine_of(broker).signals.publish_all()
        async with asyncio.timeout(BOUND):
            while script_calls(server) == before or "q" not in broker._session.waiting_claims.by_queue:
                await pause(0.01)
        assert sizes(server, "waiting_claims") == [1]
    await cancel(waiting)


async def test_a_handoff_to_a_closed_waiting_claim_is_released_and_the_attempt_does_not_count(
    server: Server, broker: Broker, other: Broker
) -> None:
    await cancel(await waiting_claim(broker))
    enqueued = await other.enqueue("q")
    await until_pending(other)
    [job] = await other.claim("q")
    assert (job.id, job.attempts) == (enqueued.id, 1)
    await until_acknowledged(server)


async def test_a_handoff_that_arrives_as_the_caller_is_cancelled_is_released(
    broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    message = lose_handoffs(broker)
    await other.enqueue("q")
    await until_received(message)
    receive(broker, message[0])
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    await until_pending(other)


async def test_a_claim_gets_the_job_of_a_handoff_that_has_not_arrived_before_later_jobs(
    server: Server, broker: Broker, other: Broker
) -> None:
    """The message is still under way when a later job wakes the waiting claim."""
    waiting = await waiting_claim(broker, limit=1)
    message = lose_handoffs(broker)
    await other.enqueue("q", b"1")
    await until_received(message)
    await other.enqueue("q", b"2")
    [job] = await with_timeout(waiting)
    assert (job.payload, job.attempts) == (b"1", 1)
    assert sizes(server, "handoffs") == [0]
    receive(broker, message[0])
    await acknowledged(broker)
    await broker.ack(job)
    assert [job.payload for job in await broker.claim("q", limit=5)] == [b"2"]


async def test_a_closed_waiting_claim_does_not_keep_its_job_from_the_next_claim(
    broker: Broker, other: Broker
) -> None:
    """The caller gave up, and the message of the hand-off is still under way."""
    waiting = await waiting_claim(broker)
    lost = lose_handoffs(broker)
    await cancel(waiting)
    await other.enqueue("q", b"1")
    await until_received(lost)
    await other.enqueue("q", b"2")
    assert [(job.payload, job.attempts) for job in await broker.claim("q", limit=5)] == [(b"1", 1), (b"2", 1)]


async def test_a_job_that_is_handed_off_during_a_claim_comes_before_later_jobs(
    broker: Broker, other: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the acknowledgment, whose reply is still under way when the claim's reply arrives."""
    waiting = await waiting_claim(broker, limit=1)
    message = lose_handoffs(broker)
    await other.enqueue("q", b"1")
    await until_received(message)
    engine = engine_of(broker)
    run = engine._run

    async def slow_run(token: Any, verb: str, *given: Any, **named: Any) -> Any:
        if verb != "claim" or len(message) > 1:
            return await run(token, verb, *given, **named)
        on_replies, replies = await acknowledge(broker, message[0])
        message.append(b"received")
        reply = await run(token, verb, *given, **named)
        asyncio.get_running_loop().call_later(0.05, on_replies, replies)
        return reply

    monkeypatch.setattr(engine, "_run", slow_run)
    await other.enqueue("q", b"2")
    [job] = await with_timeout(waiting)
    assert job.payload == b"1"
    await until_pending(other)


@pytest.mark.parametrize("slow", [False, True])
async def test_a_claim_whose_time_is_over_is_not_registered(
    server: Server, broker: Broker, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    """Otherwise a job would be handed off to a caller that has gone. The time may end before the reply."""
    engine, wait = engine_of(broker), 0.05
    claim = engine.claim

    async def slow_claim(*arguments: Any, **named: Any) -> Any:
        found = await claim(*arguments, **named)
        await pause(2 * wait if slow else 0)
        return found

    monkeypatch.setattr(engine, "claim", slow_claim)
    assert await broker.claim("q", wait=wait) == []
    assert sizes(server, "waiting_claims") == [0]


async def test_a_handoff_during_a_claim_that_finds_a_job_stays_within_the_limit(
    broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker, limit=1)
    message = lose_handoffs(broker)
    await other.enqueue("q", b"1")
    await until_received(message)
    claim = broker._engine.claim

    async def slow_claim(*arguments: Any, **named: Any) -> Any:
        found = await claim(*arguments, **named)
        receive(broker, message[0])
        await acknowledged(broker)
        return found

    broker._engine.claim = slow_claim  # type: ignore[method-assign]
    await other.enqueue("q", b"2")
    [job] = await with_timeout(waiting)
    assert job.payload == b"1"
    await until_pending(other)
    assert [job.payload for job in await other.jobs("q", JobState.PENDING)] == [b"2"]


async def test_a_local_enqueue_ends_the_wait_and_the_next_job_goes_to_another_claim(
    broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    await broker.enqueue("q", b"here")
    assert [job.payload for job in await with_timeout(waiting)] == [b"here"]
    enqueued = await other.enqueue("q", b"elsewhere")
    [job] = await with_timeout(other.claim("q", wait=20))
    assert (job.id, job.attempts) == (enqueued.id, 1)


async def test_a_full_server_hands_no_job_off(server: Server, broker: Broker, other: Broker) -> None:
    waiting = await waiting_claim(broker)
    with client(server.url) as connection:
        connection.config_set("maxmemory", 1)
        for options in ({}, {"expires": 60}, {"dedup_key": "k"}):
            with pytest.raises(EngineUnavailable, match="memory is full"):
                await with_timeout(other.enqueue("q", **options))
        connection.config_set("maxmemory", 0)
    assert not waiting.done()
    assert sizes(server, "handoffs") == [0]
    await other.enqueue("q")
    assert len(await with_timeout(waiting)) == 1


async def test_a_cancel_reaches_a_job_that_is_being_handed_off(broker: Broker, other: Broker) -> None:
    waiting = await waiting_claim(broker)
    enqueued = await other.enqueue("q")
    await other.cancel(enqueued.id)
    [job] = await with_timeout(waiting)
    await with_timeout(job.cancel_token.wait())


async def test_without_the_right_to_pubsub_no_job_is_handed_off(
    server: Server, broker: Broker, other: Broker
) -> None:
    with client(server.url) as connection:
        connection.execute_command("ACL", "SETUSER", "default", "-pubsub")
    waiting = await waiting_claim(broker)
    before = script_calls(server)
    await other.enqueue("q")
    assert len(await with_timeout(waiting)) == 1
    assert script_calls(server) == before + 2
    await broker.sweep()


async def test_a_job_handed_off_to_a_former_worker_id_runs_under_the_new_one(
    server: Server, other: Broker
) -> None:
    """The worker was declared dead, and registered anew, while its claim waited."""
    app = App(server.url, config=BrokerConfig(retention=KEEP_ALL))
    ran: list[tuple[int, str | None]] = []

    @app.task(name="work", queue="q")
    async def work(ctx: Context) -> None:
        ran.append((ctx.attempt, ctx.job.worker))

    async with working(app, queues=("q",)) as worker:
        async with asyncio.timeout(BOUND):
            while sizes(server, "waiting_claims") != [1]:
                await pause(0.01)
        worker._fetcher.worker = "anew"
        await other.enqueue("q", encode({}), task="work")
        async with asyncio.timeout(BOUND):
            while not ran:
                await pause(0.01)
    assert ran == [(1, "anew")]
    await app.close()


async def test_a_claim_on_an_injected_clock_is_not_registered_as_waiting(server: Server) -> None:
    async with Broker(server.url, config=QUIET, clock=ManualClock()) as broker:
        waiting = await waiting_claim(broker)
        assert sizes(server, "waiting_claims") == [0]
        await cancel(waiting)


async def test_an_enqueue_on_an_injected_clock_hands_no_job_off(server: Server, broker: Broker) -> None:
    """The age of the message would be wrong, and the deadline of the acknowledgment might never come."""
    async with Broker(server.url, config=QUIET, clock=ManualClock()) as other:
        waiting = await waiting_claim(broker)
        before = script_calls(server)
        await other.enqueue("q")
        assert len(await with_timeout(waiting)) == 1
        assert script_calls(server) == before + 2
