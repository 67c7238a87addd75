"""Large payloads: a claim is bounded by bytes as well as by number.

A claim stops when its payloads reach ``BATCH_BYTES``. The job that crosses the limit may belong to this
claim or to the next one.
"""

from __future__ import annotations

import pytest

from dayjob import Broker, Job, NewJob
from dayjob.engines.base import BATCH_BYTES
from tests.support.arrange import OpenBroker, quiet

MEGABYTE = 1_000_000


@pytest.fixture
async def broker(open_broker: OpenBroker) -> Broker:
    return await open_broker(quiet(max_payload=2 * BATCH_BYTES))


async def enqueue(broker: Broker, *sizes: int) -> list[str]:
    return [(await broker.enqueue("q", bytes(size))).id for size in sizes]


async def claim_all(broker: Broker) -> list[list[Job]]:
    """Claim until the queue is empty. Return the jobs of each claim."""
    claims = []
    while jobs := await broker.claim("q", limit=5000):
        claims.append(jobs)
    return claims


def check_bounds(claims: list[list[Job]]) -> None:
    """Check that each claim stopped at the limit, and that no claim but the last stopped early."""
    sizes = [[len(job.payload) for job in jobs] for jobs in claims]
    for claim, following in zip(sizes, [*sizes[1:], [BATCH_BYTES]], strict=True):
        assert sum(claim[:-1]) < BATCH_BYTES
        assert sum(claim) + following[0] > BATCH_BYTES


async def test_a_claim_stops_at_the_byte_limit_and_the_next_ones_return_the_rest(broker: Broker) -> None:
    ids = await enqueue(broker, *[MEGABYTE] * 20)
    claims = await claim_all(broker)
    assert len(claims) == 3
    check_bounds(claims)
    assert [job.id for jobs in claims for job in jobs] == ids


async def test_a_job_larger_than_the_limit_is_claimed(broker: Broker) -> None:
    ids = await enqueue(broker, BATCH_BYTES + 1, 1)
    claims = await claim_all(broker)
    assert [[job.id for job in jobs] for jobs in claims] == [[ids[0]], [ids[1]]]


async def test_small_jobs_behind_large_ones_are_claimed_in_order(broker: Broker) -> None:
    ids = await enqueue(broker, *[MEGABYTE] * 9)
    ids += [job.id for job in await broker.enqueue_many([NewJob("q", b"small") for _ in range(100)])]
    claims = await claim_all(broker)
    assert len(claims) == 2
    check_bounds(claims)
    assert [job.id for jobs in claims for job in jobs] == ids


async def test_the_byte_limit_holds_across_the_queues_of_a_claim(broker: Broker) -> None:
    await enqueue(broker, *[MEGABYTE] * 5)
    for _ in range(5):
        await broker.enqueue("r", bytes(MEGABYTE))
    claims = [await broker.claim(["q", "r"], limit=100) for _ in range(2)]
    check_bounds(claims)
    assert [job.queue for jobs in claims for job in jobs] == ["q"] * 5 + ["r"] * 5
