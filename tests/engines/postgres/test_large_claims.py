"""Claims are bounded by the bytes of their payloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dayjob import Broker, BrokerConfig, Job, NewJob
from dayjob.engines.base import BATCH_BYTES
from dayjob.runtime.clock import SYSTEM

MB = 1_000_000


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    async with Broker(url, config=BrokerConfig(duties=False, max_payload=2 * BATCH_BYTES)) as broker:
        yield broker


async def fill(broker: Broker, sizes: list[int], queue: str = "q") -> list[str]:
    return [(await broker.enqueue(queue, bytes(size))).id for size in sizes]


async def claim_all(broker: Broker, limit: int = 100) -> list[list[Job]]:
    """Claim until the queue is empty. Return the jobs of each claim."""
    claims = []
    while jobs := await broker.claim("q", limit=limit):
        claims.append(jobs)
    return claims


def size(jobs: list[Job]) -> int:
    return sum(len(job.payload) for job in jobs)


async def test_jobs_of_1_mb_are_claimed_in_order_8_mib_at_a_time(broker: Broker) -> None:
    ids = await fill(broker, [MB] * 20)
    claims = await claim_all(broker)
    assert [len(jobs) for jobs in claims] == [8, 8, 4]
    assert [job.id for jobs in claims for job in jobs] == ids


async def test_a_job_larger_than_the_bound_is_claimed_alone(broker: Broker) -> None:
    await fill(broker, [1, BATCH_BYTES + 1, 1, BATCH_BYTES, 1])
    assert [[len(job.payload) for job in jobs] for jobs in await claim_all(broker)] == [
        [1], [BATCH_BYTES + 1], [1], [BATCH_BYTES], [1]
    ]  # fmt: skip


async def test_many_small_jobs_after_large_ones_are_claimed_at_once(broker: Broker) -> None:
    """The engine locks fewer rows while payloads are large."""
    await fill(broker, [4 * MB] * 4)
    await broker.enqueue_many([NewJob("q", b"small") for _ in range(2000)])
    claims = await claim_all(broker, limit=3000)
    assert len(claims[0]) == 2
    assert len(claims) <= 4
    assert sum(len(jobs) for jobs in claims) == 2004


async def test_jobs_beyond_the_bound_stay_free_for_other_claims(broker: Broker, url: str) -> None:
    ids = await fill(broker, [MB] * 20)
    async with Broker(url, config=BrokerConfig(duties=False)) as other:
        first = await broker.claim("q", limit=100)
        second = await other.claim("q", limit=100)
        assert [job.id for job in (*first, *second)] == ids[:16]


async def test_every_request_gets_a_job(broker: Broker) -> None:
    await fill(broker, [4 * MB] * 3)
    await fill(broker, [4 * MB] * 3, "r")
    both = await asyncio.gather(broker.claim("q", limit=9), broker.claim("r", limit=9))
    assert [[job.queue for job in jobs] for jobs in both] == [["q", "q"], ["r", "r"]]


async def test_a_worker_drains_large_jobs_without_pauses(broker: Broker) -> None:
    await fill(broker, [MB] * 40)
    started = SYSTEM.elapsed()
    claimed = 0
    while claimed < 40:
        jobs = await broker.claim("q", limit=100, wait=10)
        assert size(jobs) <= BATCH_BYTES
        claimed += len(jobs)
    assert SYSTEM.elapsed() - started < 10
