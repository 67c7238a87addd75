"""Reclaim: the claims of dead workers end as if their leases had expired."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, JobState, LeaseLost
from dayjob.engines.base import Engine
from tests.support.arrange import OpenBroker, running, state
from tests.support.waiting import LONG, with_timeout


async def claimed_by(broker: Broker, worker: str, jobs: int = 1, **options: object) -> list[str]:
    for _ in range(jobs):
        await broker.enqueue("q", **options)  # type: ignore[arg-type]
    return [job.id for job in await broker.claim("q", limit=jobs, worker=worker)]


async def test_reclaim_ends_the_claims_of_dead_workers(broker: Broker, raw_engine: Engine) -> None:
    lost = await claimed_by(broker, "gone", 2)
    kept = await claimed_by(broker, "alive")
    also = await claimed_by(broker, "also gone")
    assert len(await raw_engine.reclaim(["gone", "also gone", "unknown"], 100)) == 3
    for id in (*lost, *also):
        job = await broker.get(id)
        assert job is not None
        assert (job.state, job.attempts, job.last_error, job.worker) == (
            JobState.PENDING,
            1,
            "worker gone",
            None,
        )
        assert [(failure.worker, failure.message) for failure in job.errors] == [
            ("gone" if id in lost else "also gone", "worker gone")
        ]
    assert await state(broker, kept[0]) is JobState.RUNNING


async def test_a_reclaimed_last_attempt_is_dead(broker: Broker, raw_engine: Engine) -> None:
    [id] = await claimed_by(broker, "gone", max_attempts=1)
    assert len(await raw_engine.reclaim(["gone"], 100)) == 1
    job = await broker.get(id)
    assert job is not None
    assert (job.state, job.last_error) == (JobState.DEAD, "worker gone")


async def test_reclaim_is_bounded_by_its_limit_and_can_be_repeated(
    broker: Broker, raw_engine: Engine
) -> None:
    await claimed_by(broker, "gone", 5)
    assert [len(await raw_engine.reclaim(["gone"], 2)) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_settlement_after_reclaim_is_lost(broker: Broker, raw_engine: Engine) -> None:
    job = await running(broker)
    assert len(await raw_engine.reclaim(["w"], 10)) == 1
    [again] = await broker.claim("q", worker="new")
    with pytest.raises(LeaseLost):
        await broker.ack(job)
    await broker.ack(again)


async def test_reclaimed_jobs_are_announced(
    broker: Broker, raw_engine: Engine, open_broker: OpenBroker
) -> None:
    await claimed_by(broker, "gone")
    waiting = asyncio.create_task(broker.claim("q", wait=LONG))
    other = (await open_broker())._engine
    assert len(await other.reclaim(["gone"], 10)) == 1
    assert len(await with_timeout(waiting)) == 1
