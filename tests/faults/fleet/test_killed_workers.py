"""A worker is killed with a hundred jobs running: they run elsewhere or are dead soon after, counted."""

from __future__ import annotations

import pytest

from dayjob import JobState
from tests.faults.fleet.scene import BOUND, Member, Scene
from tests.support.engines import EngineUnderTest
from tests.support.processes import until

pytestmark = pytest.mark.slow

JOBS = 100
DEAD_AFTER = 3.0


async def test_jobs_of_a_process_that_is_gone_are_taken_over_at_once(
    scene: Scene, engine: EngineUnderTest
) -> None:
    """On its own machine nobody waits for its silence: far less than ``dead_after``, here 15 s."""
    took = await _kill_with_jobs(scene, foreign=False, dead_after=15)
    print(f"{engine}: taken over {took:.1f} s after the kill")
    assert took < 12


async def test_jobs_of_a_worker_that_fell_silent_are_taken_over(
    scene: Scene, engine: EngineUnderTest
) -> None:
    if engine.name == "sqlite":
        pytest.skip("all its processes are on one machine, and can tell who is gone")
    took = await _kill_with_jobs(scene, foreign=True, dead_after=DEAD_AFTER)
    print(f"{engine}: taken over {took:.1f} s after the kill, {DEAD_AFTER:g} s of them silence")
    assert DEAD_AFTER / 2 < took < (DEAD_AFTER + 5) * 2, "twice the bound, on a busy machine"


async def _kill_with_jobs(scene: Scene, *, foreign: bool, dead_after: float) -> float:
    """Seconds from the kill until all jobs are elsewhere or dead."""
    options = {"foreign": foreign, "dead_after": dead_after, "concurrency": JOBS}
    victim = await scene.start(**options)
    again = await scene.enqueue("hang", JOBS // 2)
    no_more = await scene.enqueue("hang", JOBS // 2, max_attempts=1)
    await scene.until_running(again + no_more, victim.id)
    heir: Member = await scene.start(**options)
    await victim.kill()

    async def all_elsewhere() -> bool:
        jobs = await scene.jobs()
        return all(jobs[id].worker == heir.id for id in again) and all(
            jobs[id].state is JobState.DEAD for id in no_more
        )

    took = await until(all_elsewhere, BOUND)
    jobs = await scene.jobs()
    assert {(jobs[id].state, jobs[id].attempts, jobs[id].epoch) for id in again} == {(JobState.RUNNING, 2, 2)}
    assert {(jobs[id].attempts, jobs[id].epoch) for id in no_more} == {(1, 1)}
    assert {jobs[id].last_error for id in again + no_more} <= {"lease expired", "worker gone"}

    async def only_the_heir() -> bool:
        return [worker.id for worker in await scene.broker.workers()] == [heir.id]

    await until(only_the_heir, BOUND)
    return took
