"""Old and new code side by side: schedules of either stay, and those of the old code go with it."""

from __future__ import annotations

from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from dayjob.runtime.clock import SYSTEM
from tests.faults.fleet.worker_fleet import WorkerFleet
from tests.support.bound import BOUND
from tests.support.processes import Spawn, pause, until

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


async def _ids(fleet: WorkerFleet) -> set[str]:
    return {schedule.id for schedule in await fleet.broker.schedules()}


async def _next(fleet: WorkerFleet, id: str) -> int | None:
    return next(schedule.next_us for schedule in await fleet.broker.schedules() if schedule.id == id)
