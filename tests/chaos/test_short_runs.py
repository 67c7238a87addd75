"""A short run on each engine: a fleet under load, some faults, and no finding of the checker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import environments
from tests.chaos.chaos_run import ChaosRun, outcome
from tests.chaos.history import History
from tests.chaos.picture import picture

pytestmark = pytest.mark.slow

SECONDS = 1.5
SEED = 22

SHORT = {**environments.ENVIRONMENTS, "slatedb": environments.slatedb_folder}


@pytest.mark.parametrize("engine", SHORT)
async def test_a_short_run_keeps_every_promise(engine: str, tmp_path: Path) -> None:
    faults: list[str] = []
    async with SHORT[engine](tmp_path) as environment:
        await ChaosRun(environment, tmp_path, SEED, faults.append, quick=True).run(SECONDS)
    found = outcome(engine, SEED, SECONDS, tmp_path)
    assert found.violations == [], f"make chaos ENGINE={engine} SEED={SEED}"
    assert faults
    assert found.settled > 0
    assert "<polyline" in picture(History.load(tmp_path), engine)
