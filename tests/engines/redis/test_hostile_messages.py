"""Any client of the server, on any database, may read and send messages: they stop and prove nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dayjob import Broker, Job
from dayjob.engines.base import Transient
from dayjob.engines.redis.subscriber import Subscriber
from dayjob.runtime.ids import new_key
from tests.engines.redis.waiting_claims import (
    acknowledged,
    cancel,
    engine_of,
    lose_handoffs,
    receive,
    until_received,
    waiting_claim,
)
from tests.support.bound import BOUND
from tests.support.servers.redis import Server, client
from tests.support.waiting import with_timeout

MALFORMED = [b"\0\xff", b"\xff", b"", b"\1\xff", b"x" * 47, b"\0" * 48, b"\0" * 10_000]


def subscriber_of(broker: Broker) -> Subscriber:
    opened = engine_of(broker)._opened
    assert opened is not None
    return opened[1]


def channel_of(broker: Broker) -> bytes:
    return engine_of(broker)._keys.handoff_channel(engine_of(broker)._waiting_claims.client)


@pytest.mark.parametrize("message", MALFORMED, ids=lambda message: repr(message[:4]) + str(len(message)))
async def test_a_malformed_message_does_not_end_the_subscription(
    server: Server, broker: Broker, other: Broker, message: bytes
) -> None:
    waiting = await waiting_claim(broker)
    with client(server.url) as connection:
        for channel in (b"{dayjob}:changes", b"{dayjob}:ends", channel_of(broker)):
            assert connection.publish(channel, message) == 1
    task = subscriber_of(broker)._task
    enqueued = await other.enqueue("q")
    assert [job.id for job in await with_timeout(waiting)] == [enqueued.id]
    assert task is not None
    assert not task.done()
    assert subscriber_of(broker)._task is task


async def test_malformed_messages_are_logged_once_in_a_while(
    server: Server, broker: Broker, other: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = await waiting_claim(broker)
    with client(server.url) as connection:
        for _ in range(50):
            connection.publish(b"{dayjob}:changes", b"\0\xff")
    await other.enqueue("q")
    await with_timeout(waiting)
    assert caplog.text.count("malformed message on channel b'{dayjob}:changes'") == 1


async def test_a_subscription_that_has_ended_is_restarted(broker: Broker, other: Broker) -> None:
    await broker.claim("q")
    task = subscriber_of(broker)._task
    assert task is not None
    task.cancel()
    await asyncio.wait({task})
    waiting = await waiting_claim(broker)
    enqueued = await other.enqueue("q")
    assert [job.id for job in await with_timeout(waiting)] == [enqueued.id]


async def test_no_message_has_a_part_of_a_job(server: Server, broker: Broker, other: Broker) -> None:
    with client(server.url) as connection:
        sniffing = connection.pubsub()
        sniffing.psubscribe("*")
        assert sniffing.get_message(timeout=BOUND)["type"] == "psubscribe"
        waiting = await waiting_claim(broker)
        await other.enqueue("q", b"S3CRET", task="S3CRET", headers={"S3CRET": "S3CRET"}, tenant="S3CRET")
        [job] = await with_timeout(waiting)
        await broker.ack(job, result=b"S3CRET")
        messages: list[dict[str, Any]] = []
        while not messages or messages[-1]["channel"] != b"{dayjob}:ends":  # the last one, of the end
            messages.append(sniffing.get_message(timeout=BOUND))
        sniffing.close()
    assert channel_of(broker) in [message["channel"] for message in messages]
    assert not any(b"S3CRET" in message["data"] for message in messages)


async def genuine(broker: Broker, other: Broker, **options: Any) -> tuple[asyncio.Task[list[Job]], bytes]:
    """Return a waiting claim and the message of a hand-off to it, which it has not received."""
    waiting = await waiting_claim(broker)
    messages = lose_handoffs(broker)
    await other.enqueue("q", **options)
    await until_received(messages)
    return waiting, messages[0]


async def test_a_forged_hand_off_is_not_delivered(broker: Broker, other: Broker) -> None:
    await other.enqueue("q")
    [held] = await other.claim("q")
    waiting, message = await genuine(broker, other)
    receive(broker, message[:16] + new_key() + new_key())  # no such job
    receive(broker, message[:32] + new_key())  # another claim
    receive(broker, new_key() + message[16:])  # another waiting claim
    receive(broker, message[:16] + held.key + held.claim)  # a claim that was not handed off
    await acknowledged(broker)
    assert not waiting.done()
    receive(broker, message)
    assert len(await with_timeout(waiting)) == 1


async def test_a_repeated_hand_off_neither_runs_nor_releases_the_job_again(
    broker: Broker, other: Broker
) -> None:
    waiting, message = await genuine(broker, other)
    receive(broker, message)
    receive(broker, message)
    [job] = await with_timeout(waiting)
    receive(broker, message)
    await acknowledged(broker)
    assert (await other.stats("q")).running == 1
    await broker.ack(job)


async def test_a_hand_off_of_another_queue_is_given_back(broker: Broker, other: Broker) -> None:
    """A neighbour that reads the channel sends a genuine claim to the wrong waiting claim."""
    waiting, message = await genuine(broker, other)
    elsewhere = asyncio.create_task(broker.claim("elsewhere", wait=60))
    registered = engine_of(broker)._waiting_claims._registered
    while len(registered) < 2 or any(each.member is None for each in registered.values()):
        await asyncio.wait({elsewhere}, timeout=0.01)
    [name] = registered.keys() - {message[:16]}
    receive(broker, name + message[16:])
    [job] = await with_timeout(waiting)  # released, and claimed again
    assert job.attempts == 1
    assert not elsewhere.done()
    await cancel(elsewhere)


async def test_a_hand_off_is_delivered_once_though_the_reply_was_lost(
    broker: Broker, other: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, message = await genuine(broker, other)
    connections = engine_of(broker)._client
    finish = connections.finish
    lost = 0

    async def losing(call: Any) -> Any:
        nonlocal lost
        monkeypatch.setattr(connections, "finish", finish)
        await finish(call)
        lost += 1
        raise Transient("the reply is lost")

    monkeypatch.setattr(connections, "finish", losing)
    receive(broker, message)
    [job] = await with_timeout(waiting)
    assert (job.attempts, lost) == (1, 1)
    receive(broker, message)
    await acknowledged(broker)
    assert (await other.stats("q")).running == 1
    await broker.ack(job)


async def test_a_corrupt_hand_off_is_quarantined(server: Server, broker: Broker, other: Broker) -> None:
    waiting, message = await genuine(broker, other, task="t")
    with client(server.url) as connection:
        blob = connection.hget("{dayjob}:jobs", message[16:32])
        assert isinstance(blob, bytes)
        connection.hset("{dayjob}:jobs", message[16:32], blob.replace(b"\xa1t", b"\xa1\xff"))
    receive(broker, message)
    await acknowledged(broker)
    assert (await other.stats("q")).dead == 1
    assert not waiting.done()
    await cancel(waiting)
