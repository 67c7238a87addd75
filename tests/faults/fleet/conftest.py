"""The storages that several processes share, and a scene on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig
from tests.faults.fleet.scene import Scene
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
        await broker.sweep()  # Processes that were killed may have left something.
    engine.after(tmp_path)


@pytest.fixture
async def scene(url: str, spawn: Spawn, tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(spawn, url, tmp_path)
    async with scene.broker:
        yield scene
