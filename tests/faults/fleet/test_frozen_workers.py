"""A worker frozen for longer than ``dead_after`` loses its jobs and registers again under a new id."""

from __future__ import annotations

from collections import Counter
from signal import SIGCONT

import pytest

from dayjob import JobState
from tests.faults.fleet.worker_fleet import WorkerFleet
from tests.support.bound import BOUND
from tests.support.processes import until

pytestmark = pytest.mark.slow

JOBS = 5


async def test_a_worker_frozen_past_dead_after_loses_its_runs_and_continues_under_a_new_id(
    fleet: WorkerFleet,
) -> None:
    options = {"dead_after": 1.5, "concurrency": 2 * JOBS}
    frozen = await fleet.start(**options)
    held = await fleet.enqueue("hold", JOBS)
    ignoring = await fleet.enqueue("ignore_cancel", JOBS)
    await fleet.until_logged("started", held + ignoring, frozen)
    successor = await fleet.start(**options)

    await fleet.freeze(frozen)
    await fleet.until_running(held + ignoring, successor.id)
    await fleet.until_logged("started", held + ignoring, successor)
    fleet.end("ignore_cancel")  # Those of the frozen process end as well, as soon as it continues.
    await fleet.until_logged("job.succeeded", ignoring, successor)
    frozen.child.signal(SIGCONT)

    await fleet.until_logged("cancelled-lost", held, frozen)
    await fleet.until_logged("job.lost", held + ignoring, frozen)
    await until(lambda: _is_back(fleet, frozen.pid, frozen.id), BOUND)

    # The successor is full, so the worker that is back gets the new jobs.
    (new_id,) = [worker.id for worker in await fleet.broker.workers() if worker.pid == frozen.pid]
    filling = await fleet.enqueue("hold", 2 * JOBS + JOBS)
    await fleet.until_running(filling)
    running = await fleet.jobs(JobState.RUNNING)
    assert new_id in {running[id].worker for id in filling}
    fleet.end("hold")
    await fleet.until_idle()
    await fleet.until_logged("job.succeeded", held + ignoring + filling)

    assert Counter(fleet.logged("job.succeeded")) == Counter(held + ignoring + filling), "each once"
    assert Counter(fleet.logged("job.lost")) == Counter(held + ignoring), (
        "once for each run of the frozen worker"
    )
    assert not set(fleet.logged("job.succeeded", frozen)) & set(held + ignoring)
    assert (await fleet.broker.stats("default")).done == len(held + ignoring + filling)
    jobs = await fleet.jobs()
    assert {(jobs[id].worker, jobs[id].attempts) for id in held + ignoring} == {(successor.id, 2)}


async def _is_back(fleet: WorkerFleet, pid: int, old: str) -> bool:
    return any(worker.pid == pid and worker.id != old for worker in await fleet.broker.workers())


async def test_a_worker_frozen_under_load_settles_no_job_twice(fleet: WorkerFleet) -> None:
    """Claims and settlements are under way when it is stopped, and again when it continues."""
    ids = await fleet.enqueue("tick", 10)
    workers = await fleet.start_many(2, dead_after=1, concurrency=20)
    frozen = workers[0]
    ids += await fleet.enqueue("tick", 2000)
    await fleet.freeze(frozen)
    await fleet.until_declared_dead(frozen)
    ids += await fleet.enqueue("tick", 2000)
    frozen.child.signal(SIGCONT)
    await until(lambda: _is_back(fleet, frozen.pid, frozen.id), BOUND)
    await fleet.until_idle()
    stats = await fleet.broker.stats("default")
    jobs = await fleet.jobs()
    assert sorted(jobs) == sorted(ids)
    assert {job.state for job in jobs.values()} == {JobState.DONE}
    assert stats.done == len(ids)
    await fleet.until_logged("job.succeeded", ids)
    assert set(Counter(fleet.logged("job.succeeded")).values()) == {1}, "logged once each"
