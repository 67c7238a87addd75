"""A server that a test may kill, a proxy in front of it, and brokers on both; each test is audited."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dayjob import Broker, BrokerConfig
from tests.support.servers.proxy import Proxy, proxied
from tests.support.servers.redis import Server, client, running_server
from tests.support.servers.redis_audit import check

QUIET = BrokerConfig(duties=False)

SHORT = "&timeout=2"
"""Short enough to wait for its end, and long enough for a reply from a busy machine."""


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server of the test's own, which loses no acknowledged write."""
    async with running_server(appendonly="yes", appendfsync="always") as server:
        yield server
        with client(server.url) as connection:
            check(connection, "dayjob")


@pytest.fixture
async def broker(server: Server) -> AsyncIterator[Broker]:
    """An open broker without duties, connected to the server directly."""
    async with Broker(server.url, config=QUIET) as broker:
        yield broker


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with proxied(server.socket) as proxy:
        yield proxy


@pytest.fixture
async def through(proxy: Proxy) -> AsyncIterator[Broker]:
    """An open broker whose connections go through the proxy."""
    async with Broker(proxy.url("dayjob"), config=QUIET) as broker:
        yield broker


@pytest.fixture
async def other(server: Server) -> AsyncIterator[Broker]:
    """A broker in another process, in effect: it enqueues."""
    async with Broker(server.url, config=QUIET) as broker:
        yield broker
