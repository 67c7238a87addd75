"""Any client of the server, on any database, may read and publish messages: they stop and prove nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dayjob import Broker, Job
from dayjob.engines.redis.subscriber import Subscriber
from dayjob.runtime.ids import new_key
from tests.engines.redis.waiting_claims import (
    acknowledged,
    cancel,
    engine_of,
    handoffs_of,
    joined,
    learn_the_time,
    lose_handoffs,
    parts,
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


async def check_subscription(broker: Broker, other: Broker, waiting: asyncio.Task[list[Job]]) -> None:
    """Check that the broker still gets jobs, by the subscription that it has."""
    task = subscriber_of(broker)._task
    enqueued = await other.enqueue("q")
    assert [job.id for job in await with_timeout(waiting)] == [enqueued.id]
    assert task is not None
    assert not task.done()
    assert subscriber_of(broker)._task is task


@pytest.mark.parametrize("message", MALFORMED, ids=lambda message: repr(message[:4]) + str(len(message)))
async def test_a_malformed_message_does_not_end_the_subscription(
    server: Server, broker: Broker, other: Broker, message: bytes
) -> None:
    waiting = await waiting_claim(broker)
    with client(server.url) as connection:
        for channel in (b"{dayjob}:changes", b"{dayjob}:ends", handoffs_of(broker).list):
            assert connection.publish(channel, message) == 1
    await check_subscription(broker, other, waiting)


@pytest.mark.parametrize("message", MALFORMED, ids=lambda message: repr(message[:4]) + str(len(message)))
async def test_a_malformed_handoff_does_not_end_the_subscription(
    server: Server, broker: Broker, other: Broker, message: bytes
) -> None:
    waiting = await waiting_claim(broker)
    with client(server.url) as connection:
        connection.rpush(handoffs_of(broker).list, message)
    await check_subscription(broker, other, waiting)


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
    assert not any(b"S3CRET" in message["data"] for message in messages)


async def genuine(
    broker: Broker, other: Broker, *, certain: bool = False, **options: Any
) -> tuple[asyncio.Task[list[Job]], bytes]:
    """Return a waiting claim and the message of a hand-off to it, which it has not received.

    A certain one is delivered before the reply to its acknowledgment.
    """
    if certain:
        await learn_the_time(broker, other)
    waiting = await waiting_claim(broker)
    messages = lose_handoffs(broker)
    await other.enqueue("q", **options)
    await until_received(messages)
    return waiting, messages[0]


async def test_a_published_handoff_is_not_received(server: Server, broker: Broker, other: Broker) -> None:
    """Every client of the server may publish; only a user with the right to the keys may push to the list."""
    waiting = await waiting_claim(broker)
    messages = lose_handoffs(broker)
    await other.enqueue("q")
    await until_received(messages)
    with client(server.url) as connection:
        assert connection.publish(handoffs_of(broker).list, messages[0]) == 1
    [job] = await with_timeout(waiting)  # by a claim, as after any malformed message
    assert (job.attempts, len(messages)) == (1, 1)


async def test_a_handoff_of_no_current_claim_is_not_delivered(broker: Broker, other: Broker) -> None:
    await other.enqueue("q")
    [held] = await other.claim("q")
    waiting, message = await genuine(broker, other)
    member, key, record = parts(message)
    name = engine_of(broker)._waiting_claims.handoff(message).claim  # type: ignore[union-attr]
    receive(broker, joined(member, new_key()))  # no such job
    receive(broker, joined(member, held.key))  # the job of another claim
    receive(broker, joined(member.replace(name, new_key()), key, record))  # another waiting claim
    await acknowledged(broker)
    assert not waiting.done()
    receive(broker, message)
    [job] = await with_timeout(waiting)
    assert job.key == key


@pytest.mark.parametrize("certain", [False, True])
async def test_a_repeated_hand_off_neither_runs_nor_releases_the_job_again(
    broker: Broker, other: Broker, certain: bool
) -> None:
    waiting, message = await genuine(broker, other, certain=certain)
    receive(broker, message)
    receive(broker, message)
    [job] = await with_timeout(waiting)
    receive(broker, message)
    await acknowledged(broker)
    assert (await other.stats("q")).running == 1
    await broker.ack(job)


@pytest.mark.parametrize("certain", [False, True])
async def test_a_hand_off_is_delivered_once_though_the_replies_were_lost(
    broker: Broker, other: Broker, certain: bool
) -> None:
    waiting, message = await genuine(broker, other, certain=certain)
    receive(broker, message, lose_replies=True)
    [job] = await with_timeout(waiting)
    assert job.attempts == 1
    receive(broker, message)
    await acknowledged(broker)
    assert (await other.stats("q")).running == 1
    await broker.ack(job)


@pytest.mark.parametrize("certain", [False, True])
async def test_a_corrupt_hand_off_is_quarantined(
    server: Server, broker: Broker, other: Broker, certain: bool
) -> None:
    waiting, message = await genuine(broker, other, certain=certain, task="t")
    member, key, record = parts(message)
    corrupt = record.replace(b"\xa1t", b"\xa1\xff")
    assert corrupt != record
    with client(server.url) as connection:
        connection.hset("{dayjob}:jobs", key, corrupt)
    receive(broker, joined(member, key, corrupt))
    await acknowledged(broker)
    assert (await other.stats("q")).dead == 1
    assert not waiting.done()
    await cancel(waiting)
