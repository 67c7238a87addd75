"""Close stores the submitted writes and ends every wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, Closed, EngineUnavailable
from dayjob.testing import ManualClock
from tests.support.bound import BOUND
from tests.support.staging import Gate, Stage, turns

QUIET = BrokerConfig(duties=False)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A storage in memory of this test."""
    return f"memory://{tmp_path.name}"


@pytest.fixture
async def other(url: str, clock: ManualClock) -> AsyncIterator[Broker]:
    """A second broker on the storage that ``shared`` uses."""
    async with Broker(url, config=QUIET, clock=clock) as broker:
        yield broker


@pytest.fixture
async def shared(url: str, clock: ManualClock, other: Broker) -> Broker:
    return await Broker(url, config=QUIET, clock=clock).open()


async def test_submitted_jobs_are_stored(shared: Broker, other: Broker) -> None:
    """Also those that wait behind a batch under way."""
    insert = Stage(shared, "insert")
    insert.before = Gate()
    first = asyncio.create_task(shared.enqueue("q"))
    await insert.before.reached()
    rest = [asyncio.create_task(shared.enqueue("q")) for _ in range(10)]
    await turns()
    closing = asyncio.create_task(shared.close())
    await turns()
    assert not closing.done()
    insert.before.open()
    async with asyncio.timeout(BOUND):
        await closing
        answers = await asyncio.gather(first, *rest)
    assert insert.sizes == [1, 10]
    assert [job.id for job in await other.jobs("q")] == [answer.id for answer in answers]


async def test_submitted_settlements_are_stored(shared: Broker, other: Broker) -> None:
    for _ in range(3):
        await other.enqueue("q")
    jobs = await shared.claim("q", limit=3)
    settle = Stage(shared, "settle")
    settle.before = Gate()
    acks = [asyncio.create_task(shared.ack(job)) for job in jobs]
    await settle.before.reached()
    closing = asyncio.create_task(shared.close())
    await turns()
    settle.before.open()
    async with asyncio.timeout(BOUND):
        await closing
        await asyncio.gather(*acks)
    assert (await other.stats("q")).done == 3


async def test_claims_of_cancelled_callers_are_released_first(shared: Broker, other: Broker) -> None:
    enqueued = await other.enqueue("q")
    claim, settle = Stage(shared, "claim"), Stage(shared, "settle")
    claim.after, settle.before = Gate(), Gate()
    claiming = asyncio.create_task(shared.claim("q"))
    await claim.after.reached()
    claiming.cancel()
    closing = asyncio.create_task(shared.close())
    await turns()
    claim.after.open()
    await settle.before.reached()
    await turns()
    assert not closing.done()
    settle.before.open()
    async with asyncio.timeout(BOUND):
        await closing
    [job] = await other.claim("q")
    assert (job.id, job.attempts) == (enqueued.id, 1)


async def test_calls_during_a_close_are_refused(shared: Broker, other: Broker) -> None:
    insert = Stage(shared, "insert")
    insert.before = Gate()
    first = asyncio.create_task(shared.enqueue("q"))
    await insert.before.reached()
    closing = asyncio.create_task(shared.close())
    await turns()
    for call in (shared.enqueue("q"), shared.claim("q"), shared.claim("q", wait=5), shared.stats("q")):
        with pytest.raises(Closed, match="is not open"):
            await call
    insert.before.open()
    await closing
    assert (await first).created
    assert insert.sizes == [1]


async def test_waiting_claims_end_before_the_flush(shared: Broker, other: Broker) -> None:
    enqueued = await other.enqueue("elsewhere")
    waiting: list[asyncio.Task[object]] = [
        asyncio.create_task(shared.claim("q", wait=60)),
        asyncio.create_task(shared.wait(enqueued.id, 60)),
    ]
    insert = Stage(shared, "insert")
    insert.before = Gate()
    storing = asyncio.create_task(shared.enqueue("elsewhere"))
    await insert.before.reached()
    await turns()
    closing = asyncio.create_task(shared.close())
    async with asyncio.timeout(BOUND):
        for task in waiting:
            with pytest.raises(Closed):
                await task
    assert not closing.done()
    insert.before.open()
    await asyncio.gather(storing, closing)


@pytest.mark.parametrize("jobs", [0, 1])
async def test_a_waiting_claim_inside_the_engine_ends_after_its_reply(
    shared: Broker, other: Broker, jobs: int
) -> None:
    """With the job, if there was one: it is running."""
    for _ in range(jobs):
        await other.enqueue("q")
    claim = Stage(shared, "claim")
    claim.after = Gate()
    claiming = asyncio.create_task(shared.claim("q", wait=60))
    await claim.after.reached()
    closing = asyncio.create_task(shared.close())
    await turns()
    claim.after.open()
    async with asyncio.timeout(BOUND):
        await closing
        if jobs:
            assert len(await claiming) == 1
        else:
            with pytest.raises(Closed):
                await claiming
    assert len(claim.calls) == 1


async def test_a_waiting_claim_with_a_handoff_under_way_gets_its_job(shared: Broker, other: Broker) -> None:
    both = Stage(shared, "insert_and_claim")
    both.after = Gate()
    claiming = asyncio.create_task(shared.claim("q", wait=60))
    await turns()
    adding = asyncio.create_task(shared.enqueue("q"))
    await both.after.reached()
    closing = asyncio.create_task(shared.close())
    await turns()
    assert not closing.done()
    both.after.open()
    async with asyncio.timeout(BOUND):
        await closing
        [job] = await claiming
        assert job.id == (await adding).id
    await other.ack(job)


async def test_an_outage_during_the_flush_fails_the_caller_and_not_the_close(
    shared: Broker, other: Broker
) -> None:
    insert = Stage(shared, "insert")
    insert.before = Gate()
    insert.failures.append(EngineUnavailable("no reply"))
    storing = asyncio.create_task(shared.enqueue("q"))
    await insert.before.reached()
    closing = asyncio.create_task(shared.close())
    await turns()
    insert.before.open()
    await closing
    with pytest.raises(EngineUnavailable):
        await storing


async def test_a_close_that_was_cancelled_can_be_repeated(shared: Broker, other: Broker) -> None:
    insert = Stage(shared, "insert")
    insert.before = Gate()
    storing = asyncio.create_task(shared.enqueue("q"))
    await insert.before.reached()
    closing = asyncio.create_task(shared.close())
    await turns()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    insert.before.open()
    async with asyncio.timeout(BOUND):
        await shared.close()
        assert (await storing).created
    await shared.open()
    assert len(await shared.claim("q")) == 1
    await shared.close()


async def test_concurrent_closes_close_the_engine_once(shared: Broker, other: Broker) -> None:
    stage = Stage(shared, "close")
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(shared.close() for _ in range(5)))
    assert len(stage.calls) == 1


async def test_a_closed_broker_can_be_opened_again(shared: Broker, other: Broker) -> None:
    for _ in range(3):
        await shared.close()
        await shared.open()
        await shared.enqueue("q")
    assert len(await other.claim("q", limit=5)) == 3
    await shared.close()
