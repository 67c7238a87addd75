"""Concurrent claims of one process from the same queues share a statement and a commit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import Broker, Job, NewJob
from dayjob.engines.base import ClaimRequest, Token
from dayjob.engines.postgres.claim import Claimer
from dayjob.runtime import ids

MB = 1_000_000
MINUTE = 60_000_000


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits of the claim statements that were executed."""
    limits: list[int] = []
    take = Claimer._take

    async def counted(self: Claimer, request: ClaimRequest, limit: int, *rest: Any) -> Any:
        limits.append(limit)
        return await take(self, request, limit, *rest)

    monkeypatch.setattr(Claimer, "_take", counted)
    return limits


def ids_of(claims: list[list[Job]]) -> list[list[str]]:
    return [[job.id for job in jobs] for jobs in claims]


async def test_concurrent_claims_get_the_next_jobs_each_in_few_statements(
    broker: Broker, statements: list[int]
) -> None:
    enqueued = [each.id for each in await broker.enqueue_many([NewJob("q")] * 70)]
    claims = await asyncio.gather(*(broker.claim("q", limit=2) for _ in range(40)))
    assert ids_of(claims) == [enqueued[n : n + 2] for n in range(0, 80, 2)]
    assert len(statements) <= 4


async def test_claims_of_large_jobs_all_get_theirs(broker: Broker, statements: list[int]) -> None:
    """One statement returns 8 MiB. The claims that got none share the next."""
    for _ in range(20):
        await broker.enqueue("q", bytes(MB))
    claims = await asyncio.gather(*(broker.claim("q") for _ in range(20)))
    assert sorted(len(jobs) for jobs in claims) == [1] * 20
    assert len(statements) < 10


async def test_claims_for_other_queues_or_workers_are_separate(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q")] * 3 + [NewJob("r")])
    (first,), (second,), (third,) = await asyncio.gather(
        broker.claim("q", worker="a"), broker.claim("r", worker="a"), broker.claim("q", worker="b")
    )
    assert [(job.queue, job.worker) for job in (first, second, third)] == [("q", "a"), ("r", "a"), ("q", "b")]


async def test_a_repeated_batch_of_claims_gets_the_same_jobs(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q")] * 5 + [NewJob("r")] * 2)
    requests = [
        ClaimRequest(((queue, MINUTE),), limit, "w")
        for queue, limit in (("q", 2), ("r", 1), ("q", 1), ("q", 5), ("r", 5), ("q", 1))
    ]
    token = Token(ids.new_key(), ids.new_key(), 0, 1)
    claims = ids_of(await broker._engine.claim(requests, token=token))
    assert [len(jobs) for jobs in claims] == [2, 1, 1, 2, 1, 0]
    await broker.enqueue("q")
    repeated = ids_of(await broker._engine.claim(requests, token=replace(token, repeated=True)))
    assert repeated[:5] == claims[:5]
