"""The functions that the child processes of these tests run."""

from __future__ import annotations

from dayjob import Broker, BrokerConfig
from tests.support.processes import send_to_test


async def end_all(url: str) -> None:
    """Take the database over, and ack all jobs."""
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        jobs = await broker.claim("q", limit=10)
        for job in jobs:
            await broker.ack(job)
        send_to_test([job.payload.decode() for job in jobs])
