"""One folder per test, and processes that do not outlive it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig
from tests.engines.slatedb.s3 import base, proxy, server
from tests.support.processes import Spawn, spawning

__all__ = ["base", "proxy", "server"]

QUIET = BrokerConfig(duties=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


@pytest.fixture
def url(path: Path) -> str:
    return f"file://{path}"


@pytest.fixture
async def spawn() -> AsyncIterator[Spawn]:
    async with spawning() as spawn:
        yield spawn


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    """An open broker that runs no duties."""
    async with Broker(url, config=QUIET) as broker:
        yield broker
