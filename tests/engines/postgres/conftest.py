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
from tests.support.servers.private_postgres import PrivateServer, private_server


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


@pytest.fixture
async def server() -> AsyncIterator[PrivateServer]:
    """A server without other snapshots, on which dead index entries stay."""
    async with private_server(autovacuum="off") as server:
        yield server


@pytest.fixture
async def snapshot(server: PrivateServer, broker: Broker) -> AsyncIterator[None]:
    """A long transaction of another client, after the broker has created its tables."""
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await connection.execute("SELECT 1")
        yield
