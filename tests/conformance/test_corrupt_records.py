"""A record that can't be decoded is quarantined as dead with a clear error, and blocks no other job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dayjob import Broker, Job, JobState, NewJob, QueueStats, Settlement
from tests.support.arrange import KEEP_ALL, OpenBroker, quiet, record, state
from tests.support.engines import ENGINES, EngineUnderTest
from tests.support.observe import check_counters, every_job, ids
from tests.support.waiting import WatchedClock

Harm = Callable[[str], None]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each engine with each way to corrupt it, and an engine without any once."""
    if "damage" in metafunc.fixturenames:
        pairs = [
            (engine, name) for engine in ENGINES for name in (*engine.corrupt, *[""][len(engine.corrupt) :])
        ]
        names = [f"{engine}-{name}" for engine, name in pairs]
        metafunc.parametrize(("engine", "damage"), pairs, ids=names)


@pytest.fixture
async def broker(open_broker: OpenBroker) -> Broker:
    return await open_broker(quiet(retention=KEEP_ALL))


@pytest.fixture
def harm(broker: Broker, engine: EngineUnderTest, damage: str, tmp_path: Path) -> Harm:
    if not broker.capabilities.persistent:
        pytest.skip("the engine stores no encoded records")
    assert engine.corrupt, "an engine that stores encoded records needs ways to `corrupt` them"
    return lambda id: engine.corrupt[damage](tmp_path, id)


async def three(broker: Broker, **options: Any) -> tuple[str, str, str]:
    first, second, third = await broker.enqueue_many(
        [NewJob("q", b"data", task="t", tenant="acme", headers={"h": "v"}, **options) for _ in range(3)]
    )
    return first.id, second.id, third.id


async def check_every_read(broker: Broker, id: str) -> Job:
    """Check that every read succeeds and includes the corrupt record with its fields."""
    listed = await every_job(broker)
    assert id in ids(listed)
    assert id in ids(await broker.jobs("q", newest_first=True))
    for job in listed:
        assert repr(job)
        assert job.run_at is not None
        assert job.enqueued_at is not None
    await check_counters(broker)
    return await record(broker, id)


async def test_a_claim_quarantines_the_record_and_returns_its_neighbours(
    broker: Broker, harm: Harm, clock: WatchedClock
) -> None:
    first, second, third = await three(broker)
    harm(second)
    await check_every_read(broker, second)
    clock.advance(1)
    assert ids(await broker.claim("q", limit=5)) == [first, third]
    job = await check_every_read(broker, second)
    assert job.state is JobState.DEAD
    assert job.finished_at == clock.time
    assert job.last_error is not None
    assert "corrupt" in job.last_error
    assert ids(await broker.dead_jobs()) == [second]
    assert await broker.stats("q") == QueueStats(running=2, dead=1)


async def test_a_claim_of_one_job_skips_the_corrupt_record(broker: Broker, harm: Harm) -> None:
    first, second, third = await three(broker)
    harm(first)
    harm(second)
    assert ids(await broker.claim("q")) == [third]
    assert await broker.claim("q") == []
    assert await broker.stats("q") == QueueStats(running=1, dead=2)


async def test_quarantine_releases_the_dedup_key(broker: Broker, harm: Harm) -> None:
    enqueued = await broker.enqueue("q", task="t", tenant="acme", dedup_key="k", dedup_until="settled")
    harm(enqueued.id)
    assert await broker.claim("q") == []
    assert (await broker.enqueue("q", dedup_key="k")).created


async def test_a_requeued_record_is_repaired_or_quarantined_again(broker: Broker, harm: Harm) -> None:
    """A requeue rewrites attempts and due time. Damage to any other field still prevents a run."""
    _, second, _ = await three(broker)
    harm(second)
    await broker.claim("q", limit=5)
    for requeue in (lambda: broker.requeue(second), lambda: broker.requeue_dead("q")):
        assert await requeue() == 1
        claimed = await broker.claim("q", limit=5)
        job = await check_every_read(broker, second)
        if claimed:
            assert (job.state, job.attempts) == (JobState.RUNNING, 1)
            break
        assert job.state is JobState.DEAD


async def test_a_quarantined_record_can_be_purged(broker: Broker, harm: Harm) -> None:
    _, second, _ = await three(broker)
    harm(second)
    await broker.claim("q", limit=5)
    assert await broker.purge_dead("q") == 1
    assert await broker.get(second) is None
    assert await broker.stats("q") == QueueStats(running=2)


async def test_a_corrupt_scheduled_record_does_not_block_promote(
    broker: Broker, harm: Harm, clock: WatchedClock
) -> None:
    first, second, third = await three(broker, delay=10)
    harm(second)
    clock.advance(10)
    await broker._session.promote.run_once()
    await broker.promote()
    await check_every_read(broker, second)
    assert ids(await broker.claim("q", limit=5)) == [first, third]


async def test_a_corrupt_expired_record_does_not_block_expiry(
    broker: Broker, harm: Harm, clock: WatchedClock
) -> None:
    first, second, third = await three(broker, expires=10)
    harm(second)
    clock.advance(10)
    await broker._session.promote.run_once()
    await broker.promote()
    assert await state(broker, first) is JobState.CANCELLED
    assert await state(broker, third) is JobState.CANCELLED
    assert await broker.claim("q", limit=5) == []
    await check_every_read(broker, second)


async def test_a_corrupt_running_record_does_not_block_settlements(broker: Broker, harm: Harm) -> None:
    first, second, third = await three(broker)
    claims = await broker.claim("q", limit=3)
    harm(second)
    await check_every_read(broker, second)
    results = await broker.settle_many([Settlement.nack(claim, "x", delay=60) for claim in claims])
    assert [results[0].applied, results[2].applied] == [True, True]
    assert await state(broker, first) is JobState.SCHEDULED
    assert await state(broker, third) is JobState.SCHEDULED
    await check_every_read(broker, second)


async def test_a_corrupt_running_record_does_not_block_reap(
    broker: Broker, harm: Harm, clock: WatchedClock
) -> None:
    first, second, third = await three(broker)
    await broker.claim("q", limit=3)
    harm(second)
    clock.advance(30)
    assert await broker.reap() >= 2
    assert ids(await broker.claim("q", limit=5)) == [first, third]
    clock.advance(30)
    await broker.reap()
    assert ids(await broker.claim("q", limit=5)) == [first, third]
    await check_every_read(broker, second)


async def test_a_corrupt_running_record_does_not_block_cancel_requests(broker: Broker, harm: Harm) -> None:
    first, second, third = await three(broker)
    claims = await broker.claim("q", limit=3)
    await broker.cancel(second)
    harm(second)
    for claim in (claims[0], claims[2]):
        await broker.cancel(claim.id)
        await broker.check_cancels()
        assert claim.cancel_requested
    await broker.settle_many([Settlement.mark_cancelled(claim) for claim in claims])
    assert await state(broker, first) is JobState.CANCELLED
    assert await state(broker, third) is JobState.CANCELLED
    await check_every_read(broker, second)


async def test_a_corrupt_running_record_does_not_block_reclaim(broker: Broker, harm: Harm) -> None:
    first, second, third = await three(broker)
    await broker.claim("q", limit=3, worker="gone")
    harm(second)
    assert await broker.reclaim_from(["gone"]) >= 2
    assert ids(await broker.claim("q", limit=5)) == [first, third]
    await check_every_read(broker, second)


async def test_a_corrupt_finished_record_is_listed_and_swept(
    broker: Broker, harm: Harm, clock: WatchedClock
) -> None:
    _, second, third = await three(broker)
    claims = await broker.claim("q", limit=3)
    await broker.settle_many([Settlement.ack(claims[0]), Settlement.ack(claims[1])])
    await broker.dead_letter(claims[2], "x")
    harm(second)
    harm(third)
    await check_every_read(broker, second)
    await check_every_read(broker, third)
    assert ids(await broker.dead_jobs()) == [third]
    clock.advance(2 * 86_400)
    assert await broker.sweep() == 3
    assert await every_job(broker) == []


async def test_a_corrupt_waiting_record_can_be_cancelled_and_rescheduled(
    broker: Broker, harm: Harm, clock: WatchedClock
) -> None:
    first, second, third = await three(broker)
    harm(second)
    await broker.reschedule(second, priority=5)
    assert (await broker.cancel(second)).acted
    assert ids(await broker.claim("q", limit=5)) == [first, third]
