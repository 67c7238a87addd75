"""A batch of acks that are kept is one statement: one time for all of its jobs, and the result of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dayjob import Broker, BrokerConfig, NewJob, Retention, Settlement
from dayjob.engines.base import RetentionTimes, SettleOp
from dayjob.engines.postgres.rows import ack_columns
from dayjob.model.lifecycle import Transition
from tests.support.observe import check_counters


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    async with Broker(url, config=BrokerConfig(duties=False, retention=Retention(done=3600))) as broker:
        yield broker
        await check_counters(broker)


@pytest.mark.parametrize(
    "results",
    [
        [b"1"], [None], [b"null"] * 3, [None] * 3, [b"1", b"2", b"3"], [b"1", None, b"1"], [None, b"1", None],
    ],
    ids=str,
)  # fmt: skip
async def test_each_job_has_its_own_result(broker: Broker, results: list[bytes | None]) -> None:
    await broker.enqueue_many([NewJob("q") for _ in results])
    jobs = await broker.claim("q", limit=len(results))
    await broker.settle_many(
        [Settlement.ack(job, result=result) for job, result in zip(jobs, results, strict=True)]
    )
    stored = [await broker.get(job.id) for job in jobs]
    assert [None if job is None else job.result for job in stored] == results


async def test_all_have_the_time_of_the_statement(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(50)])
    jobs = await broker.claim("q", limit=50)
    await broker.settle_many([Settlement.ack(job) for job in jobs])
    stored = await asyncio.gather(*(broker.get(job.id) for job in jobs))
    assert len({job and job.finished_at for job in stored}) == 1


@pytest.mark.parametrize(
    ("results", "sent"),
    [([b"null"] * 3, [b"null"]), ([None] * 3, [None]), ([b"1", b"2"], [b"1", b"2"]), ([b"1"], [b"1"])],
    ids=str,
)
def test_equal_results_are_sent_once(results: list[bytes | None], sent: list[bytes | None]) -> None:
    ops = [
        SettleOp(bytes(16), bytes(16), Transition.ACK, RetentionTimes(done=1), result=result)
        for result in results
    ]
    assert ack_columns(ops)[-1] == sent
