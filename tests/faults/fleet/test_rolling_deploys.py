"""Old and new code side by side: no call of either dies, and the schedules of the old code go with it."""

from __future__ import annotations

from pathlib import Path
from signal import SIGTERM
from typing import Any

import msgspec
import pytest

from dayjob import Broker, BrokerConfig, Job, JobState
from dayjob.runtime.clock import SYSTEM
from tests.faults.fleet.deployed_versions import RESULTS, Version, produce, work
from tests.faults.fleet.worker_fleet import WorkerFleet
from tests.support.bound import BOUND
from tests.support.processes import Child, Spawn, pause, until

pytestmark = pytest.mark.slow

UNDECLARED_FOR = 1.0
SIDE_BY_SIDE = 2.5


async def test_schedules_do_not_flap_while_old_and_new_workers_run(tmp_path: Path, spawn: Spawn) -> None:
    fleet = WorkerFleet(spawn, f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    options: dict[str, Any] = {"dead_after": 2, "undeclared_for": UNDECLARED_FOR}
    async with fleet.broker:
        old = await fleet.start_many(2, declares=["leaves", "stays"], **options)
        assert await _ids(fleet) == {"leaves", "stays"}
        next_time = await _next(fleet, "stays")
        new = await fleet.start(declares=["stays", "comes"], **options)
        deadline = SYSTEM.elapsed() + SIDE_BY_SIDE
        while SYSTEM.elapsed() < deadline:
            assert await _ids(fleet) == {"leaves", "stays", "comes"}
            await pause(0.05)

        old[0].child.signal(SIGTERM)
        assert await old[0].child.wait() == 0
        again = await fleet.start(declares=["leaves", "stays"], **options)
        await old[1].kill()
        deadline = SYSTEM.elapsed() + SIDE_BY_SIDE
        while SYSTEM.elapsed() < deadline:
            assert await _ids(fleet) == {"leaves", "stays", "comes"}
            await pause(0.05)
        again.child.signal(SIGTERM)
        assert await again.child.wait() == 0

        async def gone() -> bool:
            return await _ids(fleet) == {"stays", "comes"}

        await until(gone, BOUND)
        assert await _next(fleet, "stays") == next_time
        new.child.signal(SIGTERM)
        assert await new.child.wait() == 0
        await pause(2 * UNDECLARED_FOR)
        assert await _ids(fleet) == {"stays", "comes"}, "without a worker nothing is removed"


async def test_old_and_new_producers_and_workers_lose_no_call_of_either_version(
    tmp_path: Path, spawn: Spawn
) -> None:
    """Added, removed and renamed parameters, and an added task. Each job has one attempt."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    enqueued: dict[str, tuple[Version, str]] = {}

    async def receive(version: Version, child: Child) -> set[str]:
        ids = await child.receive()
        enqueued.update({id: (version, task) for task, id in ids.items()})
        return set(ids.values())

    async with Broker(url, config=BrokerConfig(duties=False)) as broker:

        async def jobs() -> dict[str, Job]:
            return {job.id: job for job in await broker.jobs(limit=1000)}

        old_worker = await spawn(work, url, "old")
        await old_worker.receive()
        old, new = await spawn(produce, url, "old"), await spawn(produce, url, "new")
        of_old, of_new = await receive("old", old), await receive("new", new)

        async def old_worker_has_tried_all() -> bool:
            found = await jobs()
            return all(found[id].state is JobState.DONE for id in of_old) and all(
                found[id].last_error for id in of_new
            )

        await until(old_worker_has_tried_all)
        found = await jobs()
        assert {(found[id].state, found[id].attempts) for id in of_new} == {(JobState.SCHEDULED, 0)}

        new_worker = await spawn(work, url, "new")
        await new_worker.receive()
        for child, version in ((old, "old"), (new, "new")):
            child.proceed()
            await receive(version, child)  # type: ignore[arg-type]
        old_worker.signal(SIGTERM)
        assert await old_worker.wait() == 0
        old.proceed()  # A producer is deployed last.
        await receive("old", old)

        async def all_ended() -> bool:
            return all(job.state.finished for job in (await jobs()).values())

        await until(all_ended)
        ended = await jobs()
        assert ended.keys() == enqueued.keys()
        for id, (version, task) in enqueued.items():
            job = ended[id]
            assert (job.state, job.attempts) == (JobState.DONE, 1), (version, task, job.last_error)
            assert msgspec.json.decode(job.result or b"") == RESULTS[version][task]


async def _ids(fleet: WorkerFleet) -> set[str]:
    return {schedule.id for schedule in await fleet.broker.schedules()}


async def _next(fleet: WorkerFleet, id: str) -> int | None:
    return next(schedule.next_us for schedule in await fleet.broker.schedules() if schedule.id == id)
