"""The duties of the fleet: when the silence of a worker counts, and when a duty of a follower rests."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob import EngineUnavailable
from dayjob.duties import EndedJobs, Lead, Led, Reclaim, Recur, Service
from dayjob.duties.duties import FOLLOWER_INTERVAL
from dayjob.runtime.signals import LEAD, Signals, Topic
from dayjob.testing import ManualClock
from tests.broker.test_duties import RETENTION, IdleEngine
from tests.support.staging import turns


class Registry:
    """A registry without dead workers. Records whether silence was trusted."""

    def __init__(self) -> None:
        self.trusted: list[bool] = []
        self.failing = False

    async def mark_dead(self, trust_silence: bool) -> list[Any]:
        if self.failing:
            raise EngineUnavailable("no reply")
        self.trusted.append(trust_silence)
        return []


def reclaim(registry: Any, dead_after: float, clock: ManualClock) -> Reclaim:
    return Reclaim(IdleEngine(clock).storage(), registry, RETENTION, EndedJobs(None), dead_after, clock)


async def run(duty: Reclaim, clock: ManualClock, times: int) -> None:
    for _ in range(times):
        delay = await duty.run_once()
        clock.advance(delay)


async def test_silence_counts_after_every_worker_had_the_time_for_a_heartbeat(clock: ManualClock) -> None:
    registry = Registry()
    duty = reclaim(registry, 15, clock)
    await run(duty, clock, 8)
    assert registry.trusted == [False] * 6 + [True] * 2, "a heartbeat comes every 5 seconds"


async def test_after_an_outage_silence_does_not_count_for_a_while(clock: ManualClock) -> None:
    registry = Registry()
    duty = reclaim(registry, 15, clock)
    await run(duty, clock, 8)
    registry.trusted.clear()
    registry.failing = True
    for _ in range(3):
        with pytest.raises(EngineUnavailable):
            await duty.run_once()
        clock.advance(0.1)
    registry.failing = False
    await run(duty, clock, 8)
    assert registry.trusted == [False] * 6 + [True] * 2


@pytest.mark.parametrize(("dead_after", "stall"), [(15, 5.1), (3, 2.1), (1, 0.7)])
async def test_after_a_stall_of_this_process_silence_does_not_count_for_a_while(
    clock: ManualClock, dead_after: float, stall: float
) -> None:
    """A pause of this process, or a term of another leader: heartbeats may have been missed meanwhile."""
    registry = Registry()
    duty = reclaim(registry, dead_after, clock)
    await run(duty, clock, 8)
    assert registry.trusted[-1]
    clock.advance(stall)
    await duty.run_once()
    assert not registry.trusted[-1]


async def test_a_short_delay_is_no_stall(clock: ManualClock) -> None:
    registry = Registry()
    duty = reclaim(registry, 15, clock)
    await run(duty, clock, 8)
    clock.advance(3)
    await duty.run_once()
    assert registry.trusted[-1]


async def test_reclaim_runs_each_second_or_at_each_heartbeat(clock: ManualClock) -> None:
    assert await reclaim(Registry(), 15, clock).run_once() == 1
    assert await reclaim(Registry(), 1.5, clock).run_once() == 0.5


class Election:
    """An election whose result a test sets."""

    def __init__(self) -> None:
        self.leads = False

    async def seek(self) -> float:
        return 1.5


class Counting:
    """A duty that counts its runs."""

    name = "counting"
    topics: tuple[Topic, ...] = ()

    def __init__(self) -> None:
        self.runs = 0

    async def run_once(self) -> float:
        self.runs += 1
        return 60.0


def led(duty: Counting, election: Any) -> Led:
    return Led(duty, election)


async def test_a_duty_of_a_follower_rests_until_the_process_leads(clock: ManualClock) -> None:
    election, duty, signals = Election(), Counting(), Signals()
    service = Service(led(duty, election), signals, clock)
    service.start()
    await turns()
    assert duty.runs == 0
    election.leads = True
    signals.publish([LEAD])
    await turns()
    assert duty.runs == 1
    await service.stop()


async def test_a_duty_resumes_without_a_signal_when_its_process_leads_again(clock: ManualClock) -> None:
    """A renewal took longer than the term: for a moment no process led, and nothing was published."""
    election, duty, signals = Election(), Counting(), Signals()
    election.leads = True
    service = Service(led(duty, election), signals, clock)
    service.start()
    await turns()
    election.leads = False
    clock.advance(60)
    await turns()
    election.leads = True
    assert duty.runs == 1
    clock.advance(FOLLOWER_INTERVAL)
    await turns()
    assert duty.runs == 2
    await service.stop()


class Schedules:
    async def fire(self) -> int:
        return 2_500_000


async def test_recur_and_lead_return_the_delay_of_their_next_run() -> None:
    schedules: Any = Schedules()
    election: Any = Election()
    assert await Recur(schedules).run_once() == 2.5
    assert await Lead(election, Signals()).run_once() == 1.5
