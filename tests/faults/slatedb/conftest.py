"""A bucket behind a proxy that refuses, delays and changes requests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dayjob import Broker, BrokerConfig
from tests.engines.slatedb.s3 import Proxy, base, proxy, server

__all__ = ["base", "proxy", "server"]

QUIET = BrokerConfig(duties=False)


@pytest.fixture
def url(base: str, proxy: Proxy) -> str:
    return f"{base}?endpoint={proxy.endpoint}&flush_ms=20"


@pytest.fixture
async def broker(url: str, proxy: Proxy) -> AsyncIterator[Broker]:
    """An open broker without duties, on a store that works again when the broker is closed."""
    async with Broker(url, config=QUIET) as broker:
        yield broker
        proxy.failing = None
        proxy.latency = 0
