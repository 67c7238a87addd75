"""A step of the engine's clock is observed from reads of its time, also where reads overlap."""

from __future__ import annotations

import pytest

from dayjob.broker.clock_steps import ClockSteps
from dayjob.model.durations import SECOND
from dayjob.testing import ManualClock

LONGEST = 30.0
STEP = 60


def at(clock: ManualClock, seconds: float) -> float:
    """Advance the clock by this many seconds. Return the time elapsed by then."""
    clock.advance(seconds)
    return clock.elapsed()


def test_no_step_without_a_difference_between_the_clocks() -> None:
    clock = ManualClock()
    steps = ClockSteps(clock)
    for _ in range(3):
        steps.observe(clock.now(), at(clock, 1))
    assert steps.rest(LONGEST) <= 0


def test_a_step_between_two_reads() -> None:
    clock = ManualClock()
    steps = ClockSteps(clock)
    steps.observe(clock.now(), clock.elapsed())
    asked = at(clock, 1)
    steps.observe(clock.now() + STEP * SECOND, asked)
    assert steps.rest(LONGEST) == LONGEST
    clock.advance(LONGEST)
    assert steps.rest(LONGEST) <= 0


@pytest.mark.parametrize("first", ["before the step", "after the step"])
def test_a_step_between_two_reads_that_overlap(first: str) -> None:
    """The replies may come in either order. The step is observed once."""
    clock = ManualClock()
    steps = ClockSteps(clock)
    steps.observe(clock.now(), clock.elapsed())
    asked = at(clock, 1)
    before, after = clock.now(), clock.now() + STEP * SECOND
    clock.advance(0.1)
    for time in (before, after) if first == "before the step" else (after, before):
        steps.observe(time, asked)
    assert steps.rest(LONGEST) == LONGEST
    clock.advance(LONGEST)
    steps.observe(clock.now() + STEP * SECOND, clock.elapsed())
    assert steps.rest(LONGEST) <= 0


def test_reads_that_overlap_show_no_step_if_the_time_of_both_explains_the_difference() -> None:
    clock = ManualClock()
    steps = ClockSteps(clock)
    asked, before = clock.elapsed(), clock.now()
    clock.advance(5)
    steps.observe(before, asked)
    steps.observe(clock.now(), asked)
    assert steps.rest(LONGEST) <= 0
