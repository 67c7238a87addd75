"""One store per test, in memory and in SQLite, and a test client for its dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, Retention
from dayjob.dashboard import bulk
from tests.dashboard.browsing import Browser, browse
from tests.support.bound import BOUND

DAY = timedelta(days=1)
RETAIN_ALL = Retention(done=DAY, dead=DAY, cancelled=DAY)


@pytest.fixture(autouse=True)
def bulk_operations_end_before_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "RESPONSE_WAIT", BOUND)


@pytest.fixture(params=["memory", "sqlite"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    async with Broker(url, config=BrokerConfig(duties=False, retention=RETAIN_ALL)) as opened:
        yield opened


@pytest.fixture
def browser(broker: Broker) -> Browser:
    return browse(broker)
