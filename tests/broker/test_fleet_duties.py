"""The duties of the fleet: when silence counts as an end, and when a duty rests."""

from __future__ import annotations

import pytest

from dayjob import EngineUnavailable
from dayjob.duties import Lead, Led, Reclaim, Recur, Service, Sweep
from dayjob.duties.chores import RESTING
from dayjob.runtime.signals import LEAD, Signals
from dayjob.testing import ManualClock
from tests.broker.test_duties import Chores
from tests.support.staging import turns


class Reclaims(Chores):
    """Tells whether silence was to be trusted."""

    def __init__(self) -> None:
        self.trusting: list[bool] = []
        self.failing = False

    async def reclaim(self, *, trusting: bool) -> int:
        if self.failing:
            raise EngineUnavailable("no answer")
        self.trusting.append(trusting)
        return 0


async def look(duty: Reclaim, clock: ManualClock, times: int) -> None:
    for _ in range(times):
        delay = await duty.run_once()
        clock.advance(delay)


async def test_silence_counts_once_others_had_the_time_to_be_heard(clock: ManualClock) -> None:
    chores = Reclaims()
    duty = Reclaim(chores, 15, clock)
    await look(duty, clock, 8)
    assert chores.trusting == [False] * 6 + [True] * 2, "a beat comes every 5 seconds"


async def test_after_an_outage_silence_does_not_count_for_a_while(clock: ManualClock) -> None:
    chores = Reclaims()
    duty = Reclaim(chores, 15, clock)
    await look(duty, clock, 8)
    chores.trusting.clear()
    chores.failing = True
    for _ in range(3):
        with pytest.raises(EngineUnavailable):
            await duty.run_once()
        clock.advance(0.1)
    chores.failing = False
    await look(duty, clock, 8)
    assert chores.trusting == [False] * 6 + [True] * 2


@pytest.mark.parametrize(("dead_after", "stall"), [(15, 5.1), (3, 2.1), (1, 0.7)])
async def test_after_a_stall_of_our_own_silence_does_not_count_for_a_while(
    clock: ManualClock, dead_after: float, stall: float
) -> None:
    """A pause of this process, or a turn in which another one led: what was missed meanwhile is not known."""
    chores = Reclaims()
    duty = Reclaim(chores, dead_after, clock)
    await look(duty, clock, 8)
    assert chores.trusting[-1]
    clock.advance(stall)
    await duty.run_once()
    assert not chores.trusting[-1]


async def test_a_small_hitch_is_no_stall(clock: ManualClock) -> None:
    chores = Reclaims()
    duty = Reclaim(chores, 15, clock)
    await look(duty, clock, 8)
    clock.advance(3)
    await duty.run_once()
    assert chores.trusting[-1]


async def test_it_looks_often_enough(clock: ManualClock) -> None:
    assert await Reclaim(Reclaims(), 15, clock).run_once() == 1
    assert await Reclaim(Reclaims(), 1.5, clock).run_once() == 0.5


class Following(Chores):
    """Leads when it is told to."""

    def __init__(self) -> None:
        self.leading = False
        self.swept = 0

    @property
    def leads(self) -> bool:
        return self.leading

    async def sweep(self) -> int:
        self.swept += 1
        return 0

    async def recur(self) -> int:
        return 2_500_000

    async def lead(self) -> float:
        return 1.5


async def test_a_duty_rests_until_it_leads(clock: ManualClock) -> None:
    chores, signals = Following(), Signals()
    service = Service(Led(Sweep(chores, 60), chores), signals, clock)
    service.start()
    await turns()
    assert chores.swept == 0
    chores.leading = True
    signals.publish([LEAD])
    await turns()
    assert chores.swept == 1
    await service.stop()


async def test_a_duty_that_was_not_told_that_it_leads_again_finds_out(clock: ManualClock) -> None:
    """A renewal that took longer than the term: for a moment nobody led, and nothing was announced."""
    chores, signals = Following(), Signals()
    chores.leading = True
    service = Service(Led(Sweep(chores, 60), chores), signals, clock)
    service.start()
    await turns()
    chores.leading = False
    clock.advance(60)
    await turns()
    chores.leading = True
    assert chores.swept == 1
    clock.advance(RESTING)
    await turns()
    assert chores.swept == 2
    await service.stop()


async def test_recur_and_lead_say_when_they_are_wanted_again() -> None:
    assert await Recur(Following()).run_once() == 2.5
    assert await Lead(Following()).run_once() == 1.5
