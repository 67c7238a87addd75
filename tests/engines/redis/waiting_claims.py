"""Helpers for hand-offs: claims that wait, messages that are lost, and waits for the state of the server."""

from __future__ import annotations

import asyncio
from typing import Any

from dayjob import Broker, Job
from dayjob.engines.redis.engine import RedisEngine
from dayjob.model.durations import to_datetime
from dayjob.testing import ManualClock
from tests.support.bound import BOUND
from tests.support.servers.redis import Server, client
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


def lose_handoffs(broker: Broker) -> list[bytes]:
    """Drop the hand-offs to the broker. Return the list to which their messages are added."""
    lost: list[bytes] = []
    subscriber = engine_of(broker)._opened[1]  # type: ignore[index]
    subscriber.on_handoff = lost.append
    return lost


def ignore_changes(broker: Broker) -> None:
    """Drop the notifications of changes, so that the broker does not claim by itself."""
    engine_of(broker).signals.publish = lambda topics: None  # type: ignore[method-assign]


def receive(broker: Broker, message: bytes) -> None:
    engine_of(broker)._waiting_claims.on_handoff(message)


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
    while engine_of(broker)._acknowledging:
        await asyncio.wait(engine_of(broker)._acknowledging)


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
