"""Group commit: concurrent single calls share engine calls, and each caller gets its own reply."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from dayjob import Broker, Enqueued, JobState, NewJob
from dayjob.engines.base import Engine, Insertion
from tests.support.arrange import KEEP_ALL, OpenBroker, claim_one, quiet, state

CALLS = 1000


@pytest.fixture
def engine_calls(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls of each verb that reach the engine."""
    counts: Counter[str] = Counter()
    engine: Engine = broker._engine

    def counted(name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return await verb(*arguments, **named)

        return call

    for name in ("insert", "claim", "settle", "renew", "cancel", "get"):
        monkeypatch.setattr(engine, name, counted(name, getattr(engine, name)))
    return counts


async def test_a_thousand_concurrent_enqueues_cost_a_few_commits(
    broker: Broker, engine_calls: Counter[str]
) -> None:
    wanted = [str(UUID(int=(number * 7919) % CALLS)) for number in range(CALLS)]
    answers = await asyncio.gather(*(broker.enqueue("q", id=id) for id in wanted))
    assert [answer.id for answer in answers] == wanted
    assert all(answer.created for answer in answers)
    assert engine_calls["insert"] <= 10
    assert (await broker.stats("q")).pending == CALLS


async def test_concurrent_claims_and_settlements_cost_a_few_commits(
    broker: Broker, engine_calls: Counter[str]
) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(CALLS)])
    answers = await asyncio.gather(*(broker.claim("q") for _ in range(CALLS)))
    claims = [job for jobs in answers for job in jobs]
    assert len({claim.id for claim in claims}) == CALLS
    await asyncio.gather(*(broker.renew(claim, 60) for claim in claims))
    found = await asyncio.gather(*(broker.get(claim.id) for claim in claims))
    assert [None if job is None else job.id for job in found] == [claim.id for claim in claims]
    await asyncio.gather(*(broker.ack(claim) for claim in claims))
    assert (await broker.stats("q")).done == CALLS
    for verb in ("claim", "settle", "renew", "get"):
        assert engine_calls[verb] <= 10, verb


async def test_concurrent_cancels_cost_a_few_commits(broker: Broker, engine_calls: Counter[str]) -> None:
    enqueued = await broker.enqueue_many([NewJob("q") for _ in range(CALLS)])
    outcomes = await asyncio.gather(*(broker.cancel(one.id) for one in enqueued))
    assert all(outcome.acted for outcome in outcomes)
    assert engine_calls["cancel"] <= 10


async def test_an_item_on_which_the_engine_raises_fails_alone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Engine = broker._engine
    insert = engine.insert

    async def failing(jobs: Sequence[Insertion], *rest: Any, **named: Any) -> list[Enqueued]:
        if any(job.queue == "stumble" for job in jobs):
            raise RuntimeError("an unexpected error")
        return await insert(jobs, *rest, **named)

    monkeypatch.setattr(engine, "insert", failing)
    answers = await asyncio.gather(
        *(broker.enqueue("stumble" if number == 5 else "q") for number in range(10)), return_exceptions=True
    )
    assert [number for number, answer in enumerate(answers) if isinstance(answer, RuntimeError)] == [5]
    assert (await broker.stats("q")).pending == 9


async def test_concurrent_calls_of_all_kinds_do_not_affect_each_other(open_broker: OpenBroker) -> None:
    """Each task takes its own job through its whole life, and sees only that job."""
    broker = await open_broker(quiet(retention=KEEP_ALL))

    async def live(number: int) -> None:
        queue = f"q{number}"
        enqueued = await broker.enqueue(queue, str(number).encode(), dedup_key="same everywhere")
        assert enqueued.created
        claim = await claim_one(broker, queue)
        assert (claim.id, claim.payload) == (enqueued.id, str(number).encode())
        assert await broker.nack(claim, f"error {number}", delay=0) is JobState.PENDING
        claim = await claim_one(broker, queue)
        assert (claim.attempts, claim.last_error) == (2, f"error {number}")
        await broker.renew(claim, 60)
        await broker.ack(claim, result=str(number).encode(), enqueue=[NewJob(queue, b"next")])
        assert await state(broker, claim.id) is JobState.DONE
        job = await broker.get(claim.id)
        assert job is not None
        assert job.result == str(number).encode()
        assert [one.payload for one in await broker.claim(queue, limit=5)] == [b"next"]

    await asyncio.gather(*(live(number) for number in range(100)))


async def test_many_concurrent_batches_stay_within_the_limit(broker: Broker) -> None:
    answers = await asyncio.gather(
        *(broker.enqueue_many([NewJob("q") for _ in range(2500)]) for _ in range(6))
    )
    assert len({one.id for answer in answers for one in answer}) == 15_000
    claimed = await asyncio.gather(*(broker.claim("q", limit=6000) for _ in range(3)))
    assert sorted(map(len, claimed)) == [3000, 6000, 6000]
    assert len({job.id for jobs in claimed for job in jobs}) == 15_000
