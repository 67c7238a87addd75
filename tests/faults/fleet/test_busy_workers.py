"""A worker whose handlers use all of the CPU is not declared dead."""

from __future__ import annotations

import pytest

from dayjob import JobState
from tests.faults.fleet.conftest import SHARED
from tests.faults.fleet.worker_fleet import WorkerFleet

pytestmark = pytest.mark.slow

SQLITE = [engine for engine in SHARED if engine.name == "sqlite"]
JOBS = 40


@pytest.mark.parametrize("engine", SQLITE[:1], ids=str, indirect=True)
async def test_cpu_bound_jobs_in_all_threads_are_done_beside_an_idle_worker_that_leads(
    fleet: WorkerFleet,
) -> None:
    options = {"dead_after": 4, "concurrency": 100}
    idle = await fleet.start(queues=("other",), **options)
    assert await fleet.leader([idle]) is idle
    busy = await fleet.start(**options)
    ids = await fleet.enqueue("burn", JOBS, max_attempts=1)
    await fleet.until_idle()
    jobs = await fleet.jobs()
    assert {(jobs[id].state, jobs[id].worker) for id in ids} == {(JobState.DONE, busy.id)}
    assert {worker.id for worker in await fleet.broker.workers()} == {idle.id, busy.id}
