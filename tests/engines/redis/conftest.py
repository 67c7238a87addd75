"""A server that a test may harm, a proxy before it, and brokers on both; nothing leaks from any test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dayjob import Broker, BrokerConfig
from tests.support.servers.proxy import Proxy, proxied
from tests.support.servers.redis import Server, client, running_server
from tests.support.servers.redis_audit import check

QUIET = BrokerConfig(duties=False)

SHORT = "&patience=2"
"""Short enough to wait for its end, and long enough for a busy machine to answer within it."""


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server of the test's own, which forgets nothing that it has acknowledged."""
    async with running_server(appendonly="yes", appendfsync="always") as server:
        yield server
        with client(server.url) as connection:
            check(connection, "dayjob")


@pytest.fixture
async def broker(server: Server) -> AsyncIterator[Broker]:
    """An open broker that runs no duties, straight on the server."""
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
    """A broker elsewhere, which enqueues."""
    async with Broker(server.url, config=QUIET) as broker:
        yield broker
