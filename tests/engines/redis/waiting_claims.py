"""Helpers for hand-offs: claims that wait, messages that are lost, and waits for the state of the server."""

from __future__ import annotations

import asyncio
from typing import Any

from dayjob import Broker, Job
from dayjob.engines.base import Transient
from dayjob.engines.redis.engine import RedisEngine
from dayjob.engines.redis.handoffs import Acknowledgment, Handoffs, OnReplies
from dayjob.model.durations import to_datetime
from dayjob.testing import ManualClock
from tests.support.bound import BOUND
from tests.support.servers.redis import Server, client
from tests.support.waiting import with_timeout
from tests.support.workers import pause

LATER = 4_000_000
"""Microseconds after which an unacknowledged hand-off is revoked."""


async def waiting_claim(broker: Broker, **options: Any) -> asyncio.Task[list[Job]]:
    """Return a claim that is registered as waiting."""
    options = {"limit": 10, "lease": 30, "wait": 60, "worker": "w", **options}
    task = asyncio.create_task(broker.claim("q", **options))
    while "q" not in broker._session.waiting_claims.by_queue:
        await asyncio.wait({task}, timeout=0.01)
    return task


async def cancel(waiting: asyncio.Task[list[Job]]) -> None:
    waiting.cancel()
    await asyncio.wait({waiting})


def engine_of(broker: Broker) -> RedisEngine:
    engine = broker._engine
    assert isinstance(engine, RedisEngine)
    return engine


def handoffs_of(broker: Broker) -> Handoffs:
    opened = engine_of(broker)._opened
    assert opened is not None
    return opened[1]._handoffs


def lose_handoffs(broker: Broker) -> list[bytes]:
    """Drop the hand-offs to the broker. Return the list to which their messages are added."""
    lost: list[bytes] = []
    handoffs_of(broker).receive = lost.append  # type: ignore[assignment,method-assign]
    return lost


def ignore_changes(broker: Broker) -> None:
    """Drop the notifications of changes, so that the broker does not claim by itself."""
    engine_of(broker).signals.publish = lambda topics: None  # type: ignore[method-assign]


def parts(message: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the member, the id and the record of a hand-off's message."""
    end = 2 + int.from_bytes(message[:2])
    return message[2:end], message[end : end + 16], message[end + 16 :]


def joined(member: bytes, key: bytes, record: bytes = b"") -> bytes:
    """Return a message. Without a record, its job is read with the acknowledgment."""
    return len(member).to_bytes(2) + member + key + record


def receive(broker: Broker, message: bytes, *, lose_replies: bool = False) -> None:
    """Receive the message of a hand-off, and acknowledge it on another connection than usual."""
    acknowledgment = Handoffs.receive(handoffs_of(broker), message)
    if acknowledgment is not None:
        _ = engine_of(broker)._in_background(_finish(broker, acknowledgment, lose_replies))


async def acknowledge(broker: Broker, message: bytes) -> tuple[OnReplies, list[Any]]:
    """Receive the message of a hand-off. Return the replies to its acknowledgment, after their callback."""
    acknowledgment = Handoffs.receive(handoffs_of(broker), message)
    assert acknowledgment is not None
    return await _send(broker, acknowledgment)


async def _send(broker: Broker, acknowledgment: Acknowledgment) -> tuple[OnReplies, list[Any]]:
    requests, expected, on_replies = acknowledgment
    replies = await engine_of(broker)._client.send([requests, *[b""] * (expected - 1)], BOUND)
    return on_replies, replies


async def _finish(broker: Broker, acknowledgment: Acknowledgment, lose_replies: bool) -> None:
    try:
        on_replies, replies = await _send(broker, acknowledgment)
    except Transient:
        acknowledgment[2](None)
    else:
        on_replies(None if lose_replies else replies)


async def learn_the_time(broker: Broker, other: Broker) -> None:
    """Hand a job off to the broker, which gets the server's time with the acknowledgment."""
    waiting = await waiting_claim(broker)
    await other.enqueue("q")
    [job] = await with_timeout(waiting)
    await acknowledged(broker)
    await broker.ack(job)


async def promote(broker: Broker, after: int = LATER) -> int:
    """Run the duty as if that much time had passed."""
    engine = engine_of(broker)
    now, _ = await engine.documents("none")
    engine._clock = ManualClock(to_datetime(now + after))
    promoted, _ = await engine.promote(10)
    engine._clock = None
    return promoted


def sizes(server: Server, *names: str) -> list[int]:
    """Return the number of members of the sorted sets."""
    with client(server.url) as connection:
        return [connection.zcard(f"{{dayjob}}:{name}") for name in names]


async def until_acknowledged(server: Server) -> None:
    async with asyncio.timeout(BOUND):
        while sizes(server, "handoffs") != [0]:
            await pause(0.01)


async def acknowledged(broker: Broker) -> None:
    """Wait until the broker has acted on the messages that it received."""
    while engine_of(broker)._background:
        await asyncio.wait(engine_of(broker)._background)


async def until_received(messages: list[bytes]) -> None:
    async with asyncio.timeout(BOUND):
        while not messages:
            await pause(0.01)


async def until_pending(broker: Broker) -> None:
    async with asyncio.timeout(BOUND):
        while (await broker.stats("q")).pending == 0:
            await pause(0.01)


def script_calls(server: Server) -> int:
    """Return the number of script calls so far."""
    with client(server.url) as connection:
        return int(connection.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])
