"""A worker that stood still for longer than ``dead_after`` finds itself replaced, and goes on as another."""

from __future__ import annotations

from collections import Counter
from signal import SIGCONT

import pytest

from dayjob import JobState
from tests.faults.fleet.scene import BOUND, Scene
from tests.support.processes import until

pytestmark = pytest.mark.slow

JOBS = 5


async def test_a_worker_that_was_replaced_loses_its_runs_and_goes_on_under_a_new_id(scene: Scene) -> None:
    options = {"dead_after": 1.5, "concurrency": 2 * JOBS}
    frozen = await scene.start(**options)
    held = await scene.enqueue("hold", JOBS)
    deaf = await scene.enqueue("stubborn", JOBS)
    await scene.until_told("started", held + deaf, frozen)
    heir = await scene.start(**options)

    await scene.freeze(frozen)
    await scene.until_running(held + deaf, heir.id)
    await scene.until_told("started", held + deaf, heir)
    scene.end("stubborn")  # Those of the frozen process end as well, as soon as it goes on.
    await scene.until_told("job.succeeded", deaf, heir)
    frozen.child.signal(SIGCONT)

    await scene.until_told("told-lost", held, frozen)
    await scene.until_told("job.lost", held + deaf, frozen)
    await until(lambda: _is_back(scene, frozen.pid, frozen.id), BOUND)

    # The heir is full, so that what comes now is for the one that is back.
    (new_id,) = [worker.id for worker in await scene.broker.workers() if worker.pid == frozen.pid]
    filling = await scene.enqueue("hold", 2 * JOBS + JOBS)
    await scene.until_running(filling)
    running = await scene.jobs(JobState.RUNNING)
    assert new_id in {running[id].worker for id in filling}
    scene.end("hold")
    await scene.until_idle()
    await scene.until_told("job.succeeded", held + deaf + filling)

    assert Counter(scene.told("job.succeeded")) == Counter(held + deaf + filling), "each once"
    assert Counter(scene.told("job.lost")) == Counter(held + deaf), "once for each that the frozen one had"
    assert not set(scene.told("job.succeeded", frozen)) & set(held + deaf)
    assert (await scene.broker.stats("default")).done == len(held + deaf + filling)
    jobs = await scene.jobs()
    assert {(jobs[id].worker, jobs[id].attempts, jobs[id].epoch) for id in held + deaf} == {(heir.id, 2, 2)}


async def _is_back(scene: Scene, pid: int, old: str) -> bool:
    return any(worker.pid == pid and worker.id != old for worker in await scene.broker.workers())


async def test_a_worker_that_wakes_up_under_load_counts_no_job_twice(scene: Scene) -> None:
    """Claims and settlements are on their way when it is stopped, and again when it goes on."""
    ids = await scene.enqueue("tick", 10)
    workers = await scene.start_many(2, dead_after=1, concurrency=20)
    frozen = workers[0]
    ids += await scene.enqueue("tick", 2000)
    await scene.freeze(frozen)
    await scene.until_declared_dead(frozen)
    ids += await scene.enqueue("tick", 2000)
    frozen.child.signal(SIGCONT)
    await until(lambda: _is_back(scene, frozen.pid, frozen.id), BOUND)
    await scene.until_idle()
    stats = await scene.broker.stats("default")
    jobs = await scene.jobs()
    assert sorted(jobs) == sorted(ids)
    assert {job.state for job in jobs.values()} == {JobState.DONE}
    assert stats.done == len(ids)
    await scene.until_told("job.succeeded", ids)
    assert set(Counter(scene.told("job.succeeded")).values()) == {1}, "told once each"
