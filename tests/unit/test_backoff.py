"""Back-off doubles its pauses up to the longest, and starts again after a reset."""

from __future__ import annotations

import asyncio

import pytest

from dayjob.runtime.backoff import Backoff


class RecordingClock:
    """Records the pauses instead of waiting."""

    def __init__(self) -> None:
        self.pauses: list[float | None] = []

    def now(self) -> int:
        return 0

    def elapsed(self) -> float:
        return 0.0

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        self.pauses.append(timeout)
        return False


async def test_pauses_double_up_to_the_longest_and_a_reset_starts_again() -> None:
    clock, backoff = RecordingClock(), Backoff(0.1, 0.5)
    for _ in range(4):
        await backoff.wait(clock)
    assert clock.pauses == pytest.approx([0.1, 0.2, 0.4, 0.5])
    backoff.reset()
    assert backoff.pause == 0.1
    await backoff.wait(clock)
    assert clock.pauses[-1] == 0.1


async def test_a_pause_is_cut_to_the_time_that_is_left() -> None:
    clock, backoff = RecordingClock(), Backoff(10.0, 20.0)
    await backoff.wait(clock, at_most=0.25)
    assert clock.pauses == [0.25]


async def test_jitter_stays_within_half_of_the_pause() -> None:
    clock = RecordingClock()
    for _ in range(100):
        await Backoff(1.0, 1.0, jitter=True).wait(clock)
    pauses = [pause or 0.0 for pause in clock.pauses]
    assert 0.5 <= min(pauses) < 0.7
    assert 1.3 < max(pauses) <= 1.5
