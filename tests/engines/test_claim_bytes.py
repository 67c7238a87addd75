"""Claims bounded by bytes, in the engines that share ``engines.verbs``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, NewJob, QueueStats
from dayjob.engines.base import BATCH_BYTES, ClaimRequest

SIZE = BATCH_BYTES // 4 + 1
"""Four payloads of this size reach the bound."""

LEASE = 60_000_000


@pytest.fixture(params=["memory://", "sqlite:///{}/jobs.db", "file://{}/jobs"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    config = BrokerConfig(duties=False, max_payload=2 * BATCH_BYTES)
    async with Broker(request.param.format(tmp_path), config=config) as broker:
        yield broker


async def sizes(broker: Broker, *requests: ClaimRequest) -> list[list[int]]:
    return [[len(job.payload) for job in jobs] for jobs in await broker._engine.claim(requests)]


async def test_a_claim_stops_when_the_payloads_reach_the_bound(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q", bytes(SIZE)) for _ in range(6)])
    request = ClaimRequest((("q", LEASE),), 100, None)
    assert await sizes(broker, request) == [[SIZE] * 4]
    assert await broker.stats("q") == QueueStats(pending=2, running=4)
    assert await sizes(broker, request) == [[SIZE] * 2]
    assert await sizes(broker, request) == [[]]


async def test_one_job_is_claimed_even_if_it_exceeds_the_bound(broker: Broker) -> None:
    await broker.enqueue("q", bytes(BATCH_BYTES + 1))
    await broker.enqueue("q", b"small")
    request = ClaimRequest((("q", LEASE),), 100, None)
    assert await sizes(broker, request) == [[BATCH_BYTES + 1]]
    assert await sizes(broker, request) == [[5]]


async def test_the_bound_holds_over_all_queues_of_a_request(broker: Broker) -> None:
    for queue in "ab":
        await broker.enqueue_many([NewJob(queue, bytes(SIZE)) for _ in range(3)])
    request = ClaimRequest((("a", LEASE), ("b", LEASE)), 100, None)
    assert await sizes(broker, request) == [[SIZE] * 4]
    assert (await broker.stats("b")).pending == 2


async def test_each_request_of_a_batch_gets_a_job(broker: Broker) -> None:
    """A request without a job would wait for a signal, although jobs are pending."""
    await broker.enqueue_many([NewJob("q", bytes(SIZE)) for _ in range(5)])
    request = ClaimRequest((("q", LEASE),), 100, None)
    assert await sizes(broker, request, request) == [[SIZE] * 4, [SIZE]]
