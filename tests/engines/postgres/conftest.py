"""A schema of the shared server, a console and child processes for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dayjob import Broker, BrokerConfig
from tests.support.processes import Spawn, spawning
from tests.support.servers.postgres import schema_of, schema_url, server_url


@pytest.fixture
def schema(tmp_path: Path) -> str:
    return schema_of(tmp_path)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return schema_url(tmp_path)


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    """An open broker that runs no duties."""
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        yield broker


@pytest.fixture
def console() -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A session of another client of the same server."""
    with psycopg.connect(server_url(), autocommit=True) as console:
        yield console


@pytest.fixture
async def spawn() -> AsyncIterator[Spawn]:
    async with spawning() as spawn:
        yield spawn
