"""A hand-off that is lost or late is revoked, the attempt does not count, and the job runs once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dayjob import Broker, EngineUnavailable, Job, JobState, LeaseLost
from dayjob.engines.base import ClaimRequest, WaitingClaim
from dayjob.engines.redis import subscriber
from dayjob.engines.redis.connection import Connection
from dayjob.engines.redis.handoffs import Acknowledgment, Handoffs
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.ids import new_key
from tests.engines.redis.conftest import QUIET, SHORT
from tests.engines.redis.waiting_claims import (
    acknowledge,
    acknowledged,
    cancel,
    engine_of,
    handoffs_of,
    ignore_changes,
    learn_the_time,
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
from tests.support.waiting import turns, with_timeout
from tests.support.workers import pause


async def certain_handoff(broker: Broker, other: Broker) -> tuple[asyncio.Task[list[Job]], bytes]:
    """Return a waiting claim, and a message that it has not received and whose claim is certain."""
    await learn_the_time(broker, other)
    waiting = await waiting_claim(broker)
    messages = lose_handoffs(broker)
    await other.enqueue("q")
    await until_received(messages)
    del handoffs_of(broker).receive
    return waiting, messages[0]


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


async def test_a_job_is_delivered_before_the_reply_to_its_acknowledgment(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting, message = await certain_handoff(broker, other)
    assert Handoffs.receive(handoffs_of(broker), message) is not None
    assert len(await with_timeout(waiting)) == 1
    assert sizes(server, "handoffs") == [1]


async def test_before_the_time_of_the_server_is_known_the_acknowledgment_comes_first(
    server: Server, broker: Broker, other: Broker
) -> None:
    waiting = await waiting_claim(broker)
    await other.enqueue("q")
    await with_timeout(waiting)
    assert sizes(server, "handoffs") == [0]


@pytest.mark.parametrize("seconds", [-2, 2])
async def test_a_message_that_may_be_late_waits_for_the_reply(
    broker: Broker, other: Broker, seconds: int
) -> None:
    """The process was frozen, or a clock was set: another worker may run the job."""
    waiting, message = await certain_handoff(broker, other)
    handoffs = handoffs_of(broker)
    assert handoffs._server_ahead is not None
    handoffs._server_ahead += seconds * 1_000_000
    on_replies, replies = await acknowledge(broker, message)
    await turns(5)
    assert not waiting.done()
    on_replies(replies)
    assert len(await with_timeout(waiting)) == 1
    job = await certain_handoff(broker, other)  # The reply had the time.
    receive(broker, job[1])
    assert len(await with_timeout(job[0])) == 1


async def test_a_message_of_an_earlier_registration_waits_for_the_reply(
    broker: Broker, other: Broker
) -> None:
    """A claim withdrew the hand-off and registered again, and its reply overtook the message."""
    await learn_the_time(broker, other)
    waiting = WaitingClaim(asyncio.Event(), lambda job: None, lambda jobs: None)
    request = ClaimRequest((("q", 30_000_000),), 5, "w", waiting)
    engine, messages = engine_of(broker), lose_handoffs(broker)
    assert await engine.claim([request]) == [[]]
    await other.enqueue("q")
    await until_received(messages)
    [[job]] = await engine.claim([request])
    await other.ack(job)
    assert await engine.claim([request]) == [[]]
    receive(broker, messages[0])
    await acknowledged(broker)
    assert waiting.take([], 5) == []
    waiting.close()


async def test_a_message_that_arrives_during_a_claim_waits_for_the_reply(
    broker: Broker, other: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script of the claim may have withdrawn the hand-off."""
    await learn_the_time(broker, other)
    waiting = WaitingClaim(asyncio.Event(), lambda job: None, lambda jobs: None)
    request = ClaimRequest((("q", 30_000_000),), 5, "w", waiting)
    engine, messages = engine_of(broker), lose_handoffs(broker)
    assert await engine.claim([request]) == [[]]
    await other.enqueue("q")
    await until_received(messages)
    run = engine._run

    async def slow_run(*given: Any, **named: Any) -> Any:
        reply = await run(*given, **named)
        receive(broker, messages[0])
        return reply

    monkeypatch.setattr(engine, "_run", slow_run)
    [[job]] = await engine.claim([request])
    await acknowledged(broker)
    assert waiting.take([], 5) == []
    await other.ack(job)


async def test_a_job_that_was_acknowledged_too_late_runs_again_and_its_first_run_is_void(
    broker: Broker, other: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The message arrived in time, and the acknowledgment did not."""
    waiting, message = await certain_handoff(broker, other)
    acknowledgment = Handoffs.receive(handoffs_of(broker), message)
    [first] = await with_timeout(waiting)
    assert await promote(other) == 1
    [second] = await other.claim("q")
    assert (second.id, second.attempts) == (first.id, 1)
    assert acknowledgment is not None
    acknowledgment[2]([0, 0, [b"0", b"0"]])
    assert "was acknowledged too late" in caplog.text
    with pytest.raises(LeaseLost):
        await broker.ack(first)
    await other.ack(second)


async def test_the_acknowledgment_is_sent_when_the_message_arrives_and_before_the_next_wait(
    broker: Broker, other: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for a turn of the event loop. Behind the wait, the server would not read it."""
    writes: list[bytes] = []
    write = Connection.write

    def recording(self: Connection, request: bytes) -> None:
        writes.append(request)
        write(self, request)

    monkeypatch.setattr(Connection, "write", recording)
    waiting = await waiting_claim(broker)
    await other.enqueue("q")
    assert len(await with_timeout(waiting)) == 1
    [request] = [request for request in writes if b"ZREM" in request]
    assert request.index(b"ZREM") < request.index(b"BLPOP")


@pytest.mark.parametrize("certain", [False, True])
async def test_an_acknowledgment_whose_connection_is_lost_is_repeated(
    server: Server, broker: Broker, other: Broker, certain: bool
) -> None:
    if certain:
        await learn_the_time(broker, other)
    waiting = await waiting_claim(broker)
    handoffs = handoffs_of(broker)

    def receive_and_lose_the_connection(message: bytes) -> Acknowledgment | None:
        del handoffs.receive
        acknowledgment = handoffs.receive(message)
        assert acknowledgment is not None
        with client(server.url) as connection:
            connection.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        return acknowledgment

    handoffs.receive = receive_and_lose_the_connection  # type: ignore[method-assign]
    await other.enqueue("q")
    [job] = await with_timeout(waiting)
    assert job.attempts == 1
    await until_acknowledged(server)
    await broker.ack(job)


async def test_an_acknowledgment_without_a_reply_is_repeated_within_the_time_limit_of_a_try(
    broker: Broker, other: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the waiting claim would wait until the silence of the subscription is noticed."""
    write, dropped = Connection.write, 0

    def dropping(self: Connection, request: bytes) -> None:
        nonlocal dropped
        if b"ZREM" in request:
            dropped += 1
        else:
            write(self, request)

    monkeypatch.setattr(Connection, "write", dropping)
    engine_of(broker)._client.silence = 0.5
    waiting = await waiting_claim(broker)
    begun = SYSTEM.elapsed()
    await other.enqueue("q")
    [job] = await with_timeout(waiting)
    assert SYSTEM.elapsed() - begun < subscriber.SILENCE
    assert (job.attempts, dropped) == (1, 1)
    await broker.ack(job)


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


async def test_a_handoff_that_is_not_received_expires(server: Server, other: Broker) -> None:
    """The client is subscribed, and does not read its list."""
    key = new_key()
    keys = engine_of(other)._keys
    member = b"q\0" + bytes(8) + key + new_key() + (30_000_000).to_bytes(8) + b"w"
    with client(server.url) as connection:
        subscription = connection.pubsub()
        subscription.subscribe(keys.handoffs_to(key))
        assert subscription.get_message(timeout=BOUND)["type"] == "subscribe"
        connection.zadd(keys.waiting_claims, {member: 0})
        await other.enqueue("q")
        assert (await other.stats("q")).running == 1
        assert connection.llen(keys.handoffs_to(key)) == 1
        assert 0 < connection.pttl(keys.handoffs_to(key)) <= 2000
        subscription.close()
