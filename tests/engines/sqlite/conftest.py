"""One file per test, and processes that do not outlive it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig
from tests.support.processes import Spawn, spawning


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
async def spawn() -> AsyncIterator[Spawn]:
    async with spawning() as spawn:
        yield spawn


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    """An open broker that runs no duties."""
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        yield broker


@pytest.fixture
async def dutiful(url: str) -> AsyncIterator[Broker]:
    """An open broker that runs its duties, with the default configuration."""
    async with Broker(url) as broker:
        yield broker
