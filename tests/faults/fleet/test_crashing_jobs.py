"""A job that kills its worker process ends dead after its attempts, and takes no other job with it."""

from __future__ import annotations

from collections import Counter

import pytest

from dayjob import JobState
from tests.faults.fleet.conftest import SHARED
from tests.faults.fleet.worker_fleet import WorkerFleet

pytestmark = pytest.mark.slow

SQLITE = [engine for engine in SHARED if engine.name == "sqlite"]


@pytest.mark.parametrize("engine", SQLITE[:1], ids=str, indirect=True)
@pytest.mark.parametrize(
    ("poison", "innocent", "number"), [("crash", "tick", 300), ("crash_late", "brief", 12)]
)
async def test_one_crashing_job_ends_dead_and_all_others_are_done(
    fleet: WorkerFleet, poison: str, innocent: str, number: int
) -> None:
    """The late crash comes when jobs run beside it that started after it."""
    [crashing] = await fleet.enqueue(poison, 1)
    innocents = await fleet.enqueue(innocent, number)
    deaths = await fleet.run_supervised(concurrency=100, log_events=False)
    jobs = await fleet.jobs()
    assert Counter(jobs[id].state for id in innocents) == {JobState.DONE: number}
    assert (jobs[crashing].state, jobs[crashing].attempts) == (JobState.DEAD, 3)
    assert deaths == 3
