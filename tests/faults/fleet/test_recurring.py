"""Recurring and scheduled jobs while the process that does the duties is killed: each due time fires once."""

from __future__ import annotations

from statistics import median

import pytest

from dayjob import JobState, Recurring
from dayjob.model.durations import SECOND
from tests.faults.fleet.firing import fired, lateness, not_exactly_once
from tests.faults.fleet.scene import BOUND, Scene
from tests.support.engines import EngineUnderTest
from tests.support.processes import pause, until

pytestmark = pytest.mark.slow

WORKERS, SCHEDULES = 4, 20
BEFORE, AFTER = 2.0, 3.0
"""Seconds of firing before the leader is killed, and after another one has taken over."""


async def test_every_due_time_fires_exactly_once_though_the_leader_is_killed(
    scene: Scene, engine: EngineUnderTest
) -> None:
    # On PostgreSQL they can't see each other's processes: the next leader has to wait for the term to end.
    workers = await scene.start_many(WORKERS, foreign=engine.name == "postgres", tells=False)
    first = [await scene.broker.schedule(_recurring(number)) for number in range(SCHEDULES)]
    leader = await scene.leader(workers)
    (later,) = await scene.enqueue_later("tick", BEFORE + 1)
    await pause(BEFORE)
    await leader.kill()
    others = [worker for worker in workers if worker is not leader]
    assert await scene.leader(others) in others
    took_over = await scene.now()

    async def goes_on() -> bool:
        newest = {schedule.id: schedule.last_us or 0 for schedule in await scene.broker.schedules()}
        return min(newest.values()) > took_over

    await until(goes_on, BOUND)
    await pause(AFTER)
    job = await scene.broker.wait(later, BOUND)
    assert job.status == "completed"
    for schedule in first:
        await scene.broker.pause_schedule(schedule.id)
    await scene.until_idle()

    last = await scene.broker.schedules()
    jobs = list((await scene.jobs()).values())
    assert {job.state for job in jobs} == {JobState.DONE}
    assert not_exactly_once(first, last, jobs) == []
    times = fired(jobs)
    assert sum(map(len, times.values())) == (await scene.broker.stats("default")).done - 1
    late = [each / SECOND for each in lateness(jobs)]
    print(
        f"{engine}: {len(late)} fired, late by {median(late):.3f} s at the median, {max(late):.3f} s at most"
    )
    assert median(late) < 1, "on time but for the moment without a leader"


def _recurring(number: int) -> Recurring:
    if number % 2:
        return Recurring(f"schedule {number}", every=1, task="tick")
    return Recurring(f"schedule {number}", cron="* * * * * *", task="tick")


async def test_an_idle_worker_fires_on_time(scene: Scene, engine: EngineUnderTest) -> None:
    await scene.start(tells=False)
    for number in range(5):
        await scene.broker.schedule(Recurring(f"schedule {number}", every=0.5 + 0.07 * number, task="tick"))

    async def some_fired() -> bool:
        return (await scene.broker.stats("default")).done >= 30

    await until(some_fired, BOUND)
    late = sorted(each / SECOND for each in lateness((await scene.jobs()).values()))
    print(f"{engine}: fired {median(late) * 1000:.1f} ms late at the median, {late[-1] * 1000:.1f} at most")
    assert median(late) < 0.5, "far from any polling interval, on a busy machine, too"
