"""Helpers for limits: a broker with stored limits, and the jobs that a claim returns."""

from __future__ import annotations

from typing import Any

from dayjob import Broker, BrokerConfig, Job, JobState, Limit
from tests.support.arrange import OpenBroker


async def limited_broker(
    open_broker: OpenBroker, config: BrokerConfig | None = None, **limits: Limit
) -> Broker:
    """Open a broker with these limits, by name."""
    broker = await open_broker() if config is None else await open_broker(config)
    for name, limit in limits.items():
        await broker.set_limit(name, limit)
    return broker


async def add(broker: Broker, *limits: str, queue: str = "q", count: int = 1, **options: Any) -> list[str]:
    """Enqueue jobs with these limits. Return their ids, in order."""
    return [(await broker.enqueue(queue, limits=limits, **options)).id for _ in range(count)]


async def claimed(broker: Broker, queue: str = "q", limit: int = 10) -> list[str]:
    return [job.id for job in await broker.claim(queue, limit=limit, worker="w")]


async def claim_jobs(broker: Broker, queue: str = "q", limit: int = 10) -> list[Job]:
    return await broker.claim(queue, limit=limit, worker="w")


async def states(broker: Broker, ids: list[str]) -> list[JobState | None]:
    found = [await broker.get(id) for id in ids]
    return [None if job is None else job.state for job in found]


async def use(broker: Broker, name: str) -> tuple[int, int]:
    """Return the running units and the limited jobs of a limit."""
    found = {info.name: info for info in await broker.limits()}[name]
    return found.running, found.limited
