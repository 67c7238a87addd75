"""A machine whose clock is behind the last write of a database. SlateDB refuses writes at an earlier time."""

from __future__ import annotations

import pytest
from slatedb import uniffi

from dayjob import Broker, EngineUnavailable
from dayjob.engines.registry import parse
from dayjob.engines.slatedb import create
from dayjob.engines.slatedb.engine import SlateEngine
from dayjob.model.durations import SECOND
from dayjob.runtime.clock import SYSTEM, SystemClock
from tests.engines.slatedb.conftest import QUIET

HOUR = 3600


def set_back(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    right = SystemClock.now
    monkeypatch.setattr(SystemClock, "now", lambda self: right(self) - round(seconds * SECOND))


@pytest.fixture
async def written(url: str) -> str:
    """The URL of a database whose last write is just now."""
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q")
    return url


@pytest.mark.parametrize("option", ["timeout=5", "timeout=5&takeover=1"])
async def test_a_clock_that_is_an_hour_behind_is_refused_at_once_with_the_cause(
    written: str, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    set_back(monkeypatch, HOUR)
    started = SYSTEM.elapsed()
    with pytest.raises(
        EngineUnavailable, match=r"3,[56]\d\d s ahead of this machine's clock.*correct the clock"
    ):
        await Broker(f"{written}?{option}", config=QUIET).open()
    assert SYSTEM.elapsed() - started < 5, "without waiting for the timeout"
    monkeypatch.undo()
    async with Broker(written, config=QUIET) as broker:
        assert (await broker.stats("q")).pending == 1


async def test_a_clock_that_is_a_little_behind_opens_when_it_has_caught_up(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_back(monkeypatch, 1.5)
    started = SYSTEM.elapsed()
    async with Broker(written, config=QUIET) as broker:
        assert SYSTEM.elapsed() - started > 0.5
        await broker.enqueue("q")
        assert (await broker.stats("q")).pending == 2


async def test_a_database_can_be_read_by_a_clock_that_is_behind(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_back(monkeypatch, HOUR)
    async with Broker(f"{written}?readonly=1", config=QUIET) as broker:
        assert len(await broker.jobs()) == 1


def test_a_refused_time_is_reported_as_a_wrong_clock(url: str) -> None:
    engine = create(parse(url), SYSTEM)
    assert isinstance(engine, SlateEngine)
    refused = uniffi.Error.Invalid(
        message="invalid clock tick, must be monotonic. last_tick=`2`, next_tick=`1`"
    )
    for opening in (True, False):
        error = engine.settings.translated(refused, opening=opening)
        assert isinstance(error, EngineUnavailable)
        assert "last_tick=`2`" in str(error)
        assert "correct the clock" in str(error)
