"""The engines that several processes can share, and a fleet of workers on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig
from tests.faults.fleet.worker_fleet import WorkerFleet
from tests.support.engines import ENGINES, EngineUnderTest
from tests.support.processes import Spawn

SHARED = [engine for engine in ENGINES if engine.name in ("sqlite", "postgres", "redis")]


@pytest.fixture(params=SHARED, ids=str)
def engine(request: pytest.FixtureRequest) -> EngineUnderTest:
    engine: EngineUnderTest = request.param
    return engine


@pytest.fixture
async def url(engine: EngineUnderTest, tmp_path: Path) -> AsyncIterator[str]:
    url = engine.url(tmp_path)
    yield url
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        await broker.sweep()  # Killed processes may have left expired claims.
    engine.after(tmp_path)


@pytest.fixture
async def fleet(url: str, spawn: Spawn, tmp_path: Path) -> AsyncIterator[WorkerFleet]:
    fleet = WorkerFleet(spawn, url, tmp_path)
    async with fleet.broker:
        yield fleet
