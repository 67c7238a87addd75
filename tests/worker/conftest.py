"""Fixtures: one storage per test on each engine, apps on it, and a second broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dayjob import App, Broker, BrokerConfig
from dayjob.testing import ManualClock
from tests.support.engines import ENGINES, EngineUnderTest
from tests.support.workers import KEEP_ALL, MakeApp, OpenBroker


@pytest.fixture(params=ENGINES, ids=str)
def engine(request: pytest.FixtureRequest) -> EngineUnderTest:
    chosen: EngineUnderTest = request.param
    return chosen


@pytest.fixture
def url(engine: EngineUnderTest, tmp_path: Path) -> Iterator[str]:
    yield engine.url(tmp_path)
    engine.after(tmp_path)


@pytest.fixture
async def make_app(url: str) -> AsyncIterator[MakeApp]:
    """Return a factory of apps on the test's storage that keep all finished jobs. Close them afterwards."""
    apps: list[App] = []

    def make(*, clock: ManualClock | None = None, **options: Any) -> App:
        app = App(url, **{"config": BrokerConfig(retention=KEEP_ALL), **options})
        app.clock = clock
        apps.append(app)
        return app

    yield make
    for app in apps:
        await app.close()
        await asyncio.to_thread(app.__exit__)


@pytest.fixture
def app(make_app: MakeApp) -> App:
    return make_app()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed_app(make_app: MakeApp, clock: ManualClock) -> App:
    """An app with a clock that the test advances."""
    return make_app(clock=clock)


@pytest.fixture
async def open_broker(url: str) -> AsyncIterator[OpenBroker]:
    opened: list[Broker] = []

    async def open_one(clock: ManualClock | None = None) -> Broker:
        config = BrokerConfig(duties=False, retention=KEEP_ALL)
        opened.append(await Broker(url, config=config, clock=clock).open())
        return opened[-1]

    yield open_one
    for broker in opened:
        await broker.close()


@pytest.fixture
async def outside(open_broker: OpenBroker) -> Broker:
    """Another broker on the same storage, like that of another process."""
    return await open_broker()
