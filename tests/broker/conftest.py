"""A broker in memory, with a clock moved by hand and no duties but those that a test starts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dayjob import Broker, BrokerConfig
from dayjob.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def broker(clock: ManualClock) -> AsyncIterator[Broker]:
    async with Broker("memory://", config=BrokerConfig(duties=False), clock=clock) as broker:
        yield broker
