"""Claims that wait in a seat, messages that get lost, and waits for what the server then knows."""

from __future__ import annotations

import asyncio
from typing import Any

from dayjob import Broker, Job
from dayjob.engines.redis.engine import RedisEngine
from tests.support.servers.redis import Server, client
from tests.support.workers import pause

LATER = 4_000_000
"""Microseconds after which what did not arrive is taken back."""


async def seated(broker: Broker, **options: Any) -> asyncio.Task[list[Job]]:
    """A claim that waits, and is known to."""
    options = {"limit": 10, "lease": 30, "wait": 60, "worker": "w", **options}
    task = asyncio.create_task(broker.claim("q", **options))
    while "q" not in broker._session.waiting_claims._by_queue:
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
    now = await broker._engine.documents("none")
    return (await broker._engine.promote(10, broker._policies.retention, now[0] + after))[0]


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
