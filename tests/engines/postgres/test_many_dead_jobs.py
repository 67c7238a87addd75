"""Operations on many finished jobs, in commits of 1,000: none reads the index entries of the commits before.

Under an old snapshot, VACUUM and index scans leave these entries in place.
"""

from __future__ import annotations

from typing import Any

import pytest

from dayjob import Broker, BrokerConfig, JobState, NewJob, Retention, Settlement
from dayjob.broker import broker as broker_module
from dayjob.duties import duties
from dayjob.engines.postgres import listing
from dayjob.testing import ManualClock

SOME = 100


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (broker_module, duties):
        monkeypatch.setattr(module, "MAX_BATCH", SOME)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    """The ids after which dead jobs are read."""
    found: list[bytes | None] = []
    finished_keys = listing.finished_keys

    async def spy(database: Any, state: JobState, queue: str | None, after: Any, limit: int) -> list[bytes]:
        found.append(after)
        return await finished_keys(database, state, queue, after, limit)

    monkeypatch.setattr(listing, "finished_keys", spy)
    return found


async def let_die(broker: Broker, count: int) -> list[str]:
    enqueued = await broker.enqueue_many([NewJob("q")] * count)
    jobs = await broker.claim("q", limit=count)
    await broker.settle_many([Settlement.dead_letter(job, "wrong") for job in jobs])
    return [one.id for one in enqueued]


@pytest.mark.parametrize("queue", ["q", None])
async def test_each_commit_of_a_purge_starts_where_the_last_one_ended(
    broker: Broker, starts: list[bytes | None], queue: str | None
) -> None:
    await let_die(broker, 5 * SOME + 10)
    assert await broker.purge_dead(queue) == 5 * SOME + 10
    cursors = [after for after in starts if after is not None]
    assert starts[0] is None
    assert len(cursors) == 5
    assert cursors == sorted(cursors)
    assert (await broker.stats("q")).dead == 0


async def test_each_commit_of_a_requeue_starts_where_the_last_one_ended(
    broker: Broker, starts: list[bytes | None]
) -> None:
    await let_die(broker, 3 * SOME)
    assert await broker.requeue_dead("q") == 3 * SOME
    assert [after is None for after in starts] == [True, False, False]
    assert (await broker.stats("q")).pending == 3 * SOME


async def test_a_purge_finds_jobs_before_the_end_of_the_last_one(broker: Broker) -> None:
    early = (await broker.enqueue("later")).id
    await let_die(broker, 2 * SOME)
    assert await broker.purge_dead() == 2 * SOME
    [job] = await broker.claim("later")
    assert job.id == early
    await broker.dead_letter(job, "wrong")
    assert await broker.purge_dead() == 1


async def test_each_commit_of_a_sweep_starts_where_the_last_one_ended(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    config = BrokerConfig(duties=False, retention=Retention(dead=60))
    async with Broker(url, config=config, clock=clock) as broker:
        engine: Any = broker._engine
        execute, starts = engine._database.execute, []

        async def spy(name: str, *given: Any, **named: Any) -> Any:
            if name == "sweep":
                starts.append(given[-1])
            return await execute(name, *given, **named)

        monkeypatch.setattr(engine._database, "execute", spy)
        for _ in range(5):
            await let_die(broker, SOME)
            clock.advance(1)
        clock.advance(60)
        assert await broker.sweep() == 5 * SOME
        assert starts == sorted(starts)
        assert len(set(starts)) > 3
        await let_die(broker, 1)
        clock.advance(60)
        assert await broker.sweep() == 1
        assert starts[-1] == starts[0], "a sweep that found less than it could starts anew"
