"""A private server for each test that stops it, and a proxy in front of the shared one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.servers.postgres import schema_url, server_url
from tests.support.servers.postgres_proxy import Proxy, proxy
from tests.support.servers.private_postgres import PrivateServer, private_server


@pytest.fixture
async def server() -> AsyncIterator[PrivateServer]:
    async with private_server() as server:
        yield server


@pytest.fixture
def direct_url(tmp_path: Path) -> str:
    """A schema of the shared server, without the proxy."""
    return schema_url(tmp_path)


@pytest.fixture
async def wire() -> AsyncIterator[Proxy]:
    async with proxy(server_url()) as wire:
        yield wire


@pytest.fixture
def url(wire: Proxy, direct_url: str) -> str:
    """The same schema, through the proxy."""
    return wire.through(direct_url)
