"""Old and new code side by side: what either declares stays, and what only the old declared goes with it."""

from __future__ import annotations

from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from dayjob.runtime.clock import SYSTEM
from tests.faults.fleet.scene import BOUND, Scene
from tests.support.processes import Spawn, pause, until

pytestmark = pytest.mark.slow

UNDECLARED_FOR = 1.0
SIDE_BY_SIDE = 2.5


async def test_schedules_do_not_flap_while_old_and_new_workers_run(tmp_path: Path, spawn: Spawn) -> None:
    scene = Scene(spawn, f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    options: dict[str, Any] = {"dead_after": 2, "undeclared_for": UNDECLARED_FOR}
    async with scene.broker:
        old = await scene.start_many(2, declares=["leaves", "stays"], **options)
        assert await _ids(scene) == {"leaves", "stays"}
        next_time = await _next(scene, "stays")
        new = await scene.start(declares=["stays", "comes"], **options)
        deadline = SYSTEM.elapsed() + SIDE_BY_SIDE
        while SYSTEM.elapsed() < deadline:
            assert await _ids(scene) == {"leaves", "stays", "comes"}
            await pause(0.05)

        old[0].child.signal(SIGTERM)
        assert await old[0].child.ended() == 0
        again = await scene.start(declares=["leaves", "stays"], **options)
        await old[1].kill()
        deadline = SYSTEM.elapsed() + SIDE_BY_SIDE
        while SYSTEM.elapsed() < deadline:
            assert await _ids(scene) == {"leaves", "stays", "comes"}
            await pause(0.05)
        again.child.signal(SIGTERM)
        assert await again.child.ended() == 0

        async def gone() -> bool:
            return await _ids(scene) == {"stays", "comes"}

        await until(gone, BOUND)
        assert await _next(scene, "stays") == next_time
        new.child.signal(SIGTERM)
        assert await new.child.ended() == 0
        await pause(2 * UNDECLARED_FOR)
        assert await _ids(scene) == {"stays", "comes"}, "nobody is there to tell that the code changed"


async def _ids(scene: Scene) -> set[str]:
    return {schedule.id for schedule in await scene.broker.schedules()}


async def _next(scene: Scene, id: str) -> int | None:
    return next(schedule.next_us for schedule in await scene.broker.schedules() if schedule.id == id)
