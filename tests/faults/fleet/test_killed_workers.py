"""A worker is killed with a hundred running jobs: each soon runs on another worker or is dead."""

from __future__ import annotations

import pytest

from dayjob import JobState
from dayjob.worker.worker import ALONE
from tests.faults.fleet.worker_fleet import WorkerFleet, WorkerProcess
from tests.support.bound import BOUND
from tests.support.engines import EngineUnderTest
from tests.support.processes import until

pytestmark = pytest.mark.slow

JOBS = 100
DEAD_AFTER = 3.0
IN_TURN = JOBS // 2 * ALONE
"""Seconds in which the jobs start one after the other, as suspects do."""


async def test_jobs_of_a_worker_killed_on_this_machine_are_reclaimed_at_once(
    fleet: WorkerFleet, engine: EngineUnderTest
) -> None:
    """On the same machine the reclaim does not wait for ``dead_after``, here 15 s."""
    took = await _kill_with_jobs(fleet, foreign=False, dead_after=15)
    print(f"{engine}: reclaimed {took:.1f} s after the kill")
    assert took < 12 + IN_TURN


async def test_jobs_of_a_worker_killed_on_another_machine_are_reclaimed_after_dead_after(
    fleet: WorkerFleet, engine: EngineUnderTest
) -> None:
    if engine.name == "sqlite":
        pytest.skip("all processes on SQLite are on one machine, where a dead process is detected at once")
    took = await _kill_with_jobs(fleet, foreign=True, dead_after=DEAD_AFTER)
    print(f"{engine}: reclaimed {took:.1f} s after the kill, {DEAD_AFTER:g} s of them silence")
    assert DEAD_AFTER / 2 < took < (DEAD_AFTER + 5) * 2 + IN_TURN, "twice the bound, on a busy machine"


async def _kill_with_jobs(fleet: WorkerFleet, *, foreign: bool, dead_after: float) -> float:
    """Return the seconds from the kill until all jobs run on the successor or are dead."""
    options = {"foreign": foreign, "dead_after": dead_after, "concurrency": JOBS}
    victim = await fleet.start(**options)
    again = await fleet.enqueue("hold", JOBS // 2)
    no_more = await fleet.enqueue("hang", JOBS // 2, max_attempts=1)
    await fleet.until_running(again + no_more, victim.id)
    successor: WorkerProcess = await fleet.start(**options)
    await victim.kill()

    async def all_elsewhere() -> bool:
        jobs = await fleet.jobs()
        return set(again) <= set(fleet.logged("started", successor)) and all(
            jobs[id].state is JobState.DEAD for id in no_more
        )

    took = await until(all_elsewhere, BOUND)
    jobs = await fleet.jobs()
    assert {(jobs[id].state, jobs[id].attempts) for id in again} == {(JobState.RUNNING, 2)}
    assert {jobs[id].attempts for id in no_more} == {1}
    assert {jobs[id].last_error for id in again + no_more} <= {"lease expired", "worker gone"}

    async def only_the_successor() -> bool:
        return [worker.id for worker in await fleet.broker.workers()] == [successor.id]

    await until(only_the_successor, BOUND)
    return took
