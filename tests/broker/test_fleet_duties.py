"""The duties of the fleet: when the silence of a worker counts, and when a duty of a follower rests."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import Broker, EngineUnavailable
from dayjob.broker.worker_registry import RECONNECT
from dayjob.duties.duties import FOLLOWER_INTERVAL, Lead, Led, Periodic, Reclaim
from dayjob.duties.ended import EndedJobs
from dayjob.duties.service import Service
from dayjob.model.durations import SECOND
from dayjob.runtime.signals import LEAD, Signals, Topic
from dayjob.testing import ManualClock
from tests.broker.test_duties import IdleEngine
from tests.support.registered_workers import MEMBER
from tests.support.staging import Stage, turns


async def looks_until_dead(broker: Broker, clock: ManualClock, interval: float = 1) -> int:
    """Look at the registry at intervals. Return the number of looks that declare no worker dead."""
    for look in range(100):
        if await broker._session.worker_registry.mark_dead(False):
            return look
        clock.advance(interval)
    raise AssertionError("the worker is not declared dead")


@pytest.fixture
async def watched(broker: Broker, clock: ManualClock) -> None:
    """A worker that the broker has watched for a while, with its last heartbeat just now."""
    member = await broker.register(MEMBER)
    for _ in range(8):
        assert await broker.reclaim(trust_silence=False) == 0
        clock.advance(1)
    assert await broker.beat(member, 0) is not None


async def test_a_watched_worker_is_dead_after_dead_after(
    broker: Broker, clock: ManualClock, watched: None
) -> None:
    assert await looks_until_dead(broker, clock) == 16, "more than 15 seconds"


async def test_silence_counts_after_a_worker_had_the_time_for_a_heartbeat(
    broker: Broker, clock: ManualClock
) -> None:
    await broker.register(MEMBER)
    clock.advance(3600)
    assert await looks_until_dead(broker, clock) == 7, "a heartbeat comes every 5 seconds"


async def test_after_an_outage_silence_does_not_count_for_a_while(
    broker: Broker, clock: ManualClock, watched: None
) -> None:
    clock.advance(14)
    documents = Stage(broker, "documents")
    documents.failures.append(EngineUnavailable("no reply"))
    with pytest.raises(EngineUnavailable):
        await broker.reclaim()
    clock.advance(0.1)
    assert await looks_until_dead(broker, clock) == 7


@pytest.mark.parametrize(("dead_after", "stall"), [(15, 5.1), (3, 2.1), (1.5, 1.1)])
async def test_after_a_stall_of_this_process_silence_does_not_count_for_a_while(
    broker: Broker, clock: ManualClock, dead_after: float, stall: float
) -> None:
    """A pause of this process, or a term of another leader: heartbeats may have been missed meanwhile."""
    interval = min(dead_after / 3, 1)
    await broker.register(replace(MEMBER, dead_after=round(dead_after * SECOND)))
    looks = round(dead_after / interval)
    for _ in range(looks):
        await broker._session.worker_registry.mark_dead(False)
        clock.advance(interval)
    clock.advance(stall)
    assert await looks_until_dead(broker, clock, interval) * interval >= dead_after / 3


async def test_a_short_delay_is_no_stall(broker: Broker, clock: ManualClock, watched: None) -> None:
    for _ in range(13):
        await broker.reclaim(trust_silence=False)
        clock.advance(1)
    clock.advance(3)
    assert await looks_until_dead(broker, clock) == 0


class NoWorkers:
    """A registry without dead workers."""

    async def mark_dead(self, trust_silence: bool) -> list[Any]:
        return []


async def test_reclaim_runs_each_second_or_at_each_heartbeat(clock: ManualClock) -> None:
    registry: Any = NoWorkers()
    for dead_after, interval in ((15, 1), (1.5, 0.5)):
        storage = IdleEngine(clock).storage()
        assert await Reclaim(storage, registry, EndedJobs(None), dead_after).run_once() == interval


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


async def test_periodic_duties_and_lead_return_the_delay_of_their_next_run() -> None:
    async def fire() -> int:
        return 2_500_000

    election: Any = Election()
    assert await Periodic("recur", fire).run_once() == 2.5
    assert await Lead(election, Signals()).run_once() == 1.5


async def test_after_an_outage_a_worker_has_the_time_to_connect_again(
    broker: Broker, clock: ManualClock
) -> None:
    """In an outage a process tries to connect once a second, so a short ``dead_after`` is not enough."""
    await broker.register(replace(MEMBER, dead_after=1_500_000))
    clock.advance(10)
    interval = 0.5
    assert await looks_until_dead(broker, clock, interval) * interval >= RECONNECT
