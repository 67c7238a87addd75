"""How many jobs a worker claims ahead, by the rate at which its runs end."""

from __future__ import annotations

import pytest

from dayjob.testing import ManualClock
from dayjob.worker.run_rate import AHEAD, GROWTH, IDLE, RunRate


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr("dayjob.worker.run_rate.SYSTEM", clock)
    return clock


def run(rate: RunRate, number: int, seconds: float, clock: ManualClock, slots: int = 1) -> None:
    """Let runs end one after the other, or as many at once as there are slots."""
    for count in range(number):
        if count % slots == 0:
            clock.advance(seconds)
        rate.record(seconds, clock.elapsed())


def test_short_runs_are_claimed_ahead_for_the_time_that_they_need(clock: ManualClock) -> None:
    rate = RunRate()
    assert rate.ahead() == 0
    run(rate, 1000, 0.0001, clock)
    assert rate.ahead() == pytest.approx(10_000 * AHEAD, abs=1)


def test_runs_in_several_slots_are_claimed_ahead_for_all_of_them(clock: ManualClock) -> None:
    rate = RunRate()
    run(rate, 1000, 0.01, clock, slots=100)
    assert rate.ahead() == pytest.approx(10_000 * AHEAD, abs=1)


def test_the_time_between_short_runs_counts(clock: ManualClock) -> None:
    rate = RunRate()
    for _ in range(100):
        clock.advance(IDLE / 4)
        run(rate, 1, IDLE / 4, clock)
    assert rate.ahead() == pytest.approx(2 / IDLE * AHEAD, abs=1)


def test_the_time_in_which_the_worker_waits_for_a_claim_does_not_count(clock: ManualClock) -> None:
    rate = RunRate()
    for _ in range(10):
        clock.advance(0.2)
        run(rate, 100, 0.0001, clock)
    assert rate.ahead() == pytest.approx(10_000 * AHEAD, abs=1)


def test_few_runs_are_not_enough_for_a_large_claim(clock: ManualClock) -> None:
    rate = RunRate()
    run(rate, 3, 0.000001, clock)
    assert rate.ahead() == 3 * GROWTH


def test_slower_runs_are_claimed_ahead_less_within_a_fraction_of_a_second(clock: ManualClock) -> None:
    rate = RunRate()
    run(rate, 100_000, 0.0001, clock)
    assert rate.ahead() == pytest.approx(10_000 * AHEAD, abs=1)
    for _ in range(20):
        run(rate, 10, 0.001, clock)
    assert rate.ahead() < 2 * 1000 * AHEAD


def test_long_runs_are_not_claimed_ahead_though_many_end_at_once(clock: ManualClock) -> None:
    rate = RunRate()
    run(rate, 100, 1.0, clock, slots=100)
    clock.advance(AHEAD)
    assert rate.ahead() == 0


def test_nothing_is_claimed_ahead_once_no_run_ends(clock: ManualClock) -> None:
    """Long jobs have arrived after short ones, or the worker was idle."""
    rate = RunRate()
    run(rate, 1000, 0.0001, clock)
    assert rate.ahead() > 0
    clock.advance(1)
    assert rate.ahead() == 0
    run(rate, 2, 0.0001, clock)
    assert rate.ahead() == 2 * GROWTH, "the runs that ended before the pause do not count"
