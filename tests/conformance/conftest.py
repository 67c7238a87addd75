"""Fixtures: one storage per test, brokers on it without duties, and a manual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig
from dayjob.engines.base import Engine
from dayjob.runtime.clock import Clock
from tests.support.arrange import OpenBroker
from tests.support.engines import ENGINES, EngineUnderTest
from tests.support.observe import check_counters
from tests.support.waiting import WatchedClock


@pytest.fixture(params=ENGINES, ids=str)
def engine(request: pytest.FixtureRequest) -> EngineUnderTest:
    chosen: EngineUnderTest = request.param
    return chosen


@pytest.fixture
def url(engine: EngineUnderTest, tmp_path: Path) -> Iterator[str]:
    yield engine.url(tmp_path)
    engine.after(tmp_path)


@pytest.fixture
def clock() -> WatchedClock:
    return WatchedClock()


@pytest.fixture
async def open_broker(url: str, clock: WatchedClock) -> AsyncIterator[OpenBroker]:
    """Open brokers on the test's storage with the test's clock, and close them afterwards.

    After every test the counters must equal the listing.
    """
    opened: list[Broker] = []
    test_clock = clock

    async def open_one(config: BrokerConfig | None = None, *, clock: Clock | None = None) -> Broker:
        broker = Broker(url, config=config or BrokerConfig(duties=False), clock=clock or test_clock)
        await broker.open()
        opened.append(broker)
        return broker

    yield open_one
    if opened:
        await check_counters(await open_one())
    for broker in opened:
        await broker.close()


@pytest.fixture
async def broker(open_broker: OpenBroker) -> Broker:
    """An open broker with the default configuration, but no duties."""
    return await open_broker()


@pytest.fixture
def raw_engine(broker: Broker) -> Engine:
    """The engine of the broker, for verbs that the broker does not expose."""
    return broker._engine
