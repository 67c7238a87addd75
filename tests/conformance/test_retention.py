"""Retention: how long finished jobs are kept, counted from their finish and stamped when they end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dayjob import Broker, JobState, NewJob, QueueConfig, Retention
from dayjob.duties import duties
from tests.support.arrange import (
    KEEP_ALL,
    OpenBroker,
    cancelled,
    dead,
    done,
    quiet,
    record,
    running,
    state,
)
from tests.support.observe import every_job, everything, ids
from tests.support.waiting import WatchedClock

MOMENT = timedelta(microseconds=1)


@pytest.mark.parametrize("make", [done, dead, cancelled], ids=["done", "dead", "cancelled"])
async def test_a_finished_job_is_kept_for_its_retention(
    open_broker: OpenBroker, clock: WatchedClock, make: object
) -> None:
    broker = await open_broker(quiet(retention=Retention(done=60, dead=60, cancelled=timedelta(minutes=1))))
    clock.advance(1000)
    assert callable(make)
    id: str = await make(broker)
    clock.advance(timedelta(seconds=60) - MOMENT)
    assert await broker.sweep() == 0
    assert await broker.get(id) is not None
    clock.advance(MOMENT)
    assert await broker.sweep() == 1
    assert await broker.get(id) is None
    assert await broker.sweep() == 0


async def test_retention_counts_from_the_finish_and_not_from_the_enqueue(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=Retention(done=60)))
    claim = await running(broker)
    clock.advance(500)
    await broker.ack(claim)
    assert await broker.sweep() == 0
    clock.advance(59)
    assert await broker.sweep() == 0
    clock.advance(1)
    assert await broker.sweep() == 1


async def test_by_default_dead_jobs_are_kept_a_week_and_others_are_removed_at_once(
    broker: Broker, clock: WatchedClock
) -> None:
    await done(broker)
    await cancelled(broker)
    id = await dead(broker)
    assert ids(await every_job(broker)) == [id]
    clock.advance(timedelta(days=7) - MOMENT)
    assert await broker.sweep() == 0
    clock.advance(MOMENT)
    assert await broker.sweep() == 1
    assert await every_job(broker) == []


async def test_dead_jobs_without_a_limit_are_kept_for_ever(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=Retention(dead=None)))
    id = await dead(broker)
    clock.advance(timedelta(days=30_000))
    assert await broker.sweep() == 0
    assert await state(broker, id) is JobState.DEAD


async def test_a_retention_of_zero_keeps_nothing(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(retention=Retention(done=0, dead=0, cancelled=0)))
    for make in (done, dead, cancelled):
        id = await make(broker)
        assert await broker.get(id) is None
    assert await every_job(broker) == []


async def test_a_queue_has_its_own_retention(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await open_broker(
        quiet(
            retention=Retention(done=10),
            queues={
                "longer": QueueConfig(retention=Retention(done=100)),
                "none": QueueConfig(retention=Retention()),
            },
        )
    )
    kept = [await done(broker, "usual"), await done(broker, "longer")]
    assert await broker.get(await done(broker, "none")) is None
    assert ids(await every_job(broker)) == kept
    clock.advance(10)
    assert await broker.sweep() == 1
    assert ids(await every_job(broker)) == kept[1:]
    clock.advance(90)
    assert await broker.sweep() == 1


async def test_every_kind_of_end_uses_the_retention_of_the_queue(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    """Including the ends without a settlement: cancel, expiry, and an expired lease."""
    own = QueueConfig(retention=Retention(done=10, dead=20, cancelled=30), max_attempts=1)
    broker = await open_broker(quiet(queues={"own": own}, retention=Retention(dead=1000)))
    by_cancel = await cancelled(broker, "own")
    by_expiry = (await broker.enqueue("own", expires=1)).id
    clock.advance(1)
    await broker.promote()
    claim = await running(broker, "own")
    clock.advance(30)
    await broker.reap()
    assert await state(broker, claim.id) is JobState.DEAD
    assert await broker.sweep() == 2, "the cancelled one and the expired one, 30 seconds after they ended"
    assert await broker.get(by_cancel) is None
    assert await broker.get(by_expiry) is None
    clock.advance(19)
    assert await broker.sweep() == 0
    clock.advance(1)
    assert await broker.sweep() == 1, "the dead one, 20 seconds after its lease"


async def test_a_sweep_does_not_depend_on_configuration(open_broker: OpenBroker, clock: WatchedClock) -> None:
    keeper = await open_broker(quiet(retention=Retention(done=100)))
    stranger = await open_broker(quiet(retention=Retention(done=1)))
    id = await done(keeper)
    clock.advance(99)
    assert await stranger.sweep() == 0
    assert await state(stranger, id) is JobState.DONE
    clock.advance(1)
    assert await stranger.sweep() == 1


async def test_unfinished_jobs_are_never_swept(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue("q")
    await running(broker, "r")
    await broker.enqueue("q", delay=5)
    claim = await running(broker, "s")
    await broker.nack(claim, "again", delay=5)
    before = await everything(broker)
    clock.advance(timedelta(days=10_000))
    assert await broker.sweep() == 0
    assert await broker.sweep_done(0) == 0
    assert await broker.sweep_dead(0) == 0
    assert await everything(broker) == before


async def test_sweep_removes_all_jobs_past_their_retention(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    await broker.enqueue_many([NewJob("q") for _ in range(2500)])
    for claim in await broker.claim("q", limit=2500):
        await broker.ack(claim)
    clock.advance(timedelta(days=1))
    assert await broker.sweep() == 2500
    assert await every_job(broker) == []
    assert (await broker.stats("q")).done == 2500


@pytest.mark.parametrize("final", [JobState.DONE, JobState.DEAD])
async def test_sweep_done_and_sweep_dead_use_their_argument(
    open_broker: OpenBroker, clock: WatchedClock, final: JobState
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    make, sweep = (done, broker.sweep_done) if final is JobState.DONE else (dead, broker.sweep_dead)
    old = await make(broker)
    others = [await cancelled(broker), await (dead if make is done else done)(broker)]
    clock.advance(10)
    young = await make(broker)
    clock.advance(10)
    assert await sweep(timedelta(seconds=21)) == 0
    assert await sweep(20) == 1
    assert await broker.get(old) is None
    assert (await record(broker, young)).state is final
    assert await sweep(0) == 1
    assert ids(await every_job(broker)) == others


async def test_a_sweep_keeps_up_however_long_a_commit_takes_unless_it_locks_the_storage(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await open_broker(quiet())
    asked: list[bool] = []
    in_short_commits = duties.in_short_commits

    async def recorded(work: Any, pause: int = 1, *, concurrent: bool = False) -> int:
        asked.append(concurrent)
        return await in_short_commits(work, pause, concurrent=concurrent)

    monkeypatch.setattr(duties, "in_short_commits", recorded)
    await broker.sweep()
    await broker.promote()
    assert {*asked} == {broker.url.partition(":")[0] not in ("memory", "sqlite")}
