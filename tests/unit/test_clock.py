"""The system clock and the manual clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from dayjob.model.durations import SECOND, to_instant
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.testing import ManualClock

START = datetime(2026, 1, 1, tzinfo=UTC)


async def settled() -> None:
    """Let every task run until it waits."""
    loop = asyncio.get_running_loop()
    for _ in range(10):
        turned = asyncio.Event()
        loop.call_soon(turned.set)
        await turned.wait()


@pytest.fixture(params=["system", "manual"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return SYSTEM if request.param == "system" else ManualClock()


@pytest.mark.parametrize("timeout", [None, 60, 0, -1])
async def test_a_wait_for_a_set_event_returns_at_once(clock: Clock, timeout: float | None) -> None:
    event = asyncio.Event()
    event.set()
    assert await clock.wait(event, timeout) is True


@pytest.mark.parametrize("timeout", [0, -1])
async def test_a_wait_with_timeout_zero_returns_false_at_once(clock: Clock, timeout: float) -> None:
    assert await clock.wait(asyncio.Event(), timeout) is False


@pytest.mark.parametrize("timeout", [None, 60])
async def test_an_event_ends_the_wait(clock: Clock, timeout: float | None) -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(clock.wait(event, timeout))
    await settled()
    assert not waiting.done()
    event.set()
    assert await waiting is True


@pytest.mark.parametrize("timeout", [None, 60])
async def test_a_cancelled_wait_ends_and_leaves_no_task_behind(clock: Clock, timeout: float | None) -> None:
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), timeout))
    await settled()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await settled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_system_clock_ends_a_wait_when_its_time_has_passed() -> None:
    before = SYSTEM.elapsed()
    assert await SYSTEM.wait(asyncio.Event(), 0.01) is False
    assert SYSTEM.elapsed() - before > 0.009


def test_the_system_clock_returns_microseconds_of_utc(tmp_path: Path) -> None:
    stamped = tmp_path / "stamped"
    stamped.touch()
    assert abs(SYSTEM.now() - stamped.stat().st_mtime_ns // 1000) < 60 * SECOND


def test_the_elapsed_time_of_the_system_never_goes_back() -> None:
    readings = [SYSTEM.elapsed() for _ in range(1000)]
    assert all(earlier <= later for earlier, later in pairwise(readings))


def test_a_manual_clock_does_not_advance_by_itself() -> None:
    clock = ManualClock()
    assert clock.now() == clock.now() == to_instant(START, "start")
    assert clock.elapsed() == clock.elapsed() == 0


def test_a_manual_clock_starts_at_the_given_time() -> None:
    start = datetime(2030, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
    assert ManualClock(start).time == start


@pytest.mark.parametrize("by", [1.5, timedelta(seconds=1.5)])
def test_advance_changes_the_time_and_the_elapsed_time(by: float | timedelta) -> None:
    clock = ManualClock()
    clock.advance(by)
    assert clock.time == START + timedelta(seconds=1.5)
    assert clock.elapsed() == 1.5


def test_many_small_advances_add_up_exactly() -> None:
    clock = ManualClock()
    for _ in range(10):
        clock.advance(0.1)
    assert clock.time == START + timedelta(seconds=1)
    assert clock.elapsed() == 1


async def test_advance_ends_exactly_the_waits_whose_timeout_has_passed() -> None:
    clock = ManualClock()
    waits = {
        timeout: asyncio.create_task(clock.wait(asyncio.Event(), timeout))
        for timeout in (1, 2, 2.000_001, 3, None)
    }
    await settled()

    async def woken() -> set[float | None]:
        await settled()
        return {timeout for timeout, wait in waits.items() if wait.done()}

    clock.advance(0.999_999)
    assert await woken() == set()
    clock.advance(0.000_001)
    assert await woken() == {1}
    clock.advance(1)
    assert await woken() == {1, 2}
    clock.advance(100)
    assert await woken() == {1, 2, 2.000_001, 3}
    assert not any(wait.result() for wait in waits.values() if wait.done())
    waits[None].cancel()


async def test_a_wait_that_begins_later_ends_later() -> None:
    clock = ManualClock()
    clock.advance(5)
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 5))
    await settled()
    clock.advance(4)
    await settled()
    assert not waiting.done()
    clock.advance(1)
    assert await waiting is False


async def test_many_small_advances_wake_at_the_same_time_as_a_large_one() -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 1))
    await settled()
    for _ in range(10):
        assert not waiting.done()
        clock.advance(0.1)
    await settled()
    assert waiting.done()


@pytest.mark.parametrize(
    "to", [START + timedelta(days=365), START - timedelta(days=365)], ids=["forward", "back"]
)
async def test_a_jump_changes_the_time_and_ends_no_wait(to: datetime) -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 1))
    await settled()
    clock.set(to)
    await settled()
    assert not waiting.done()
    assert (clock.time, clock.elapsed()) == (to, 0)
    clock.advance(1)
    assert await waiting is False


async def test_an_event_set_at_the_timeout_is_not_missed() -> None:
    clock = ManualClock()
    event = asyncio.Event()
    waiting = asyncio.create_task(clock.wait(event, 1))
    await settled()
    clock.advance(1)
    event.set()
    assert await waiting is True


def test_advance_refuses_a_negative_duration() -> None:
    with pytest.raises(ValueError, match="by=-1"):
        ManualClock().advance(-1)


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="time="):
        ManualClock().set(datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="start="):
        ManualClock(datetime(2026, 1, 1))
