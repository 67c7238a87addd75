"""The leader is killed: each due time of each schedule still fires exactly once."""

from __future__ import annotations

from statistics import median

import pytest

from dayjob import JobState, Recurring
from dayjob.model.durations import SECOND
from tests.faults.fleet.fired_schedules import fired, lateness, not_exactly_once
from tests.faults.fleet.worker_fleet import WorkerFleet
from tests.support.bound import BOUND
from tests.support.engines import EngineUnderTest
from tests.support.processes import pause, until

pytestmark = pytest.mark.slow

WORKERS, SCHEDULES = 4, 20
BEFORE, AFTER = 2.0, 3.0
"""Seconds of firing before the leader is killed, and after the next leader took over."""


async def test_every_due_time_fires_exactly_once_while_the_leader_is_killed(
    fleet: WorkerFleet, engine: EngineUnderTest
) -> None:
    # On PostgreSQL the workers look like separate machines: the next leader waits for the end of the term.
    workers = await fleet.start_many(
        WORKERS, foreign=engine.name == "postgres", log_events=False, dead_after=3
    )
    first = [await fleet.broker.schedule(_recurring(number)) for number in range(SCHEDULES)]
    leader = await fleet.leader(workers)
    (later,) = await fleet.enqueue_later("tick", BEFORE + 1)
    await pause(BEFORE)
    await leader.kill()
    others = [worker for worker in workers if worker is not leader]
    assert await fleet.leader(others) in others
    took_over = await fleet.now()

    async def continues() -> bool:
        newest = {schedule.id: schedule.last_us or 0 for schedule in await fleet.broker.schedules()}
        return min(newest.values()) > took_over

    await until(continues, BOUND)
    await pause(AFTER)
    job = await fleet.broker.wait(later, BOUND)
    assert job.status == "completed"
    for schedule in first:
        await fleet.broker.pause_schedule(schedule.id)
    await fleet.until_idle()

    last = await fleet.broker.schedules()
    jobs = list((await fleet.jobs()).values())
    assert {job.state for job in jobs} == {JobState.DONE}
    assert not_exactly_once(first, last, jobs) == []
    times = fired(jobs)
    assert sum(map(len, times.values())) == (await fleet.broker.stats("default")).done - 1
    late = [each / SECOND for each in lateness(jobs)]
    print(
        f"{engine}: {len(late)} fired, late by {median(late):.3f} s at the median, {max(late):.3f} s at most"
    )
    assert median(late) < max(1, max(late) / 2), "on time except for the moment without a leader"


def _recurring(number: int) -> Recurring:
    if number % 2:
        return Recurring(f"schedule {number}", every=1, task="tick")
    return Recurring(f"schedule {number}", cron="* * * * * *", task="tick")


async def test_an_idle_worker_fires_on_time(fleet: WorkerFleet, engine: EngineUnderTest) -> None:
    await fleet.start(log_events=False)
    for number in range(5):
        await fleet.broker.schedule(Recurring(f"schedule {number}", every=0.5 + 0.07 * number, task="tick"))

    async def some_fired() -> bool:
        return (await fleet.broker.stats("default")).done >= 30

    await until(some_fired, BOUND)
    late = sorted(each / SECOND for each in lateness((await fleet.jobs()).values()))
    print(f"{engine}: fired {median(late) * 1000:.1f} ms late at the median, {late[-1] * 1000:.1f} at most")
    assert median(late) < 0.5, "far below any polling interval, even on a busy machine"
