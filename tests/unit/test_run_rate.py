"""How many jobs a worker claims ahead, by the rate at which its runs end."""

from __future__ import annotations

import pytest

from dayjob.testing import ManualClock
from dayjob.worker.run_rate import AHEAD, RunRate


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr("dayjob.worker.run_rate.SYSTEM", clock)
    return clock


def end_runs(rate: RunRate, number: int, seconds: float, clock: ManualClock) -> None:
    for _ in range(number):
        rate.record(seconds, clock.elapsed())


def test_short_runs_are_claimed_ahead_for_the_time_that_they_need(clock: ManualClock) -> None:
    rate = RunRate()
    assert rate.ahead() == 0
    end_runs(rate, 1000, 0.0001, clock)
    clock.advance(0.1)
    assert rate.ahead() == round(10_000 * AHEAD)


def test_long_runs_are_not_claimed_ahead_though_many_end_at_once(clock: ManualClock) -> None:
    rate = RunRate()
    clock.advance(1)
    end_runs(rate, 100, 1.0, clock)
    clock.advance(AHEAD)
    assert rate.ahead() == 0


def test_nothing_is_claimed_ahead_once_no_run_ends(clock: ManualClock) -> None:
    """Long jobs have arrived after short ones, or the worker was idle."""
    rate = RunRate()
    end_runs(rate, 1000, 0.0001, clock)
    clock.advance(0.1)
    assert rate.ahead() > 0
    end_runs(rate, 1000, 0.0001, clock)
    clock.advance(1)
    assert rate.ahead() == 0, "the runs that ended before the pause do not count"
    end_runs(rate, 1000, 0.0001, clock)
    clock.advance(0.1)
    assert rate.ahead() > 0
