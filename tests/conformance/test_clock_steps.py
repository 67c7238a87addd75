"""Steps of the engine's clock: live workers keep their claims, and schedules continue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import Broker, Job, JobState, Recurring
from dayjob.broker.worker_registry import KIND, Member
from dayjob.model.cron import cron
from tests.support.arrange import OpenBroker, claim_one, dead, record, running, state
from tests.support.registered_workers import MEMBER
from tests.support.waiting import WatchedClock

DAY = 86_400
FORWARD = [16, 60, DAY, 365 * DAY]
STEPS = [*FORWARD, *(-step for step in FORWARD)]

forward = pytest.mark.parametrize("step", FORWARD)
either_way = pytest.mark.parametrize("step", STEPS)

BEAT = 5
"""Seconds between the heartbeats of ``MEMBER``."""

LEASE = 30
LOOKS = 3 * 5
"""The most seconds until an expired lease was seen by two looks of the reap duty."""


def set_by(clock: WatchedClock, seconds: float) -> None:
    """Set the clock. No time passes."""
    clock.set(clock.time + timedelta(seconds=seconds))


class Fleet:
    """Two workers that send heartbeats and renew their leases, and a third that has ended. Each has a job."""

    def __init__(self, clock: WatchedClock) -> None:
        self._clock = clock
        self._passed = 0
        self.jobs: dict[str, Job] = {}
        self.members: dict[str, Member] = {}

    async def start(self, broker: Broker) -> None:
        for id in ("a", "b", "ended"):
            self.members[id] = await broker.register(replace(MEMBER, id=id))
            await broker.enqueue("q")
            self.jobs[id] = await claim_one(broker, worker=id)

    async def run(self, broker: Broker, seconds: int, each_second: Callable[[], Awaitable[Any]]) -> None:
        """Let time pass. The live workers beat every 5 seconds and renew every 15."""
        for _ in range(seconds):
            self._clock.advance(1)
            self._passed += 1
            await each_second()
            for id in ("a", "b"):
                if self._passed % BEAT == 0:
                    member = await broker.beat(self.members[id], 1)
                    assert member is not None, f"worker {id} was declared dead"
                    self.members[id] = member
                if self._passed % 15 == 0:
                    await broker.renew(self.jobs[id])


@pytest.fixture
async def fleet(broker: Broker, clock: WatchedClock) -> Fleet:
    fleet = Fleet(clock)
    await fleet.start(broker)
    return fleet


async def states(broker: Broker, fleet: Fleet) -> dict[str, JobState]:
    return {id: (await record(broker, job.id)).state for id, job in fleet.jobs.items()}


KEPT = {"a": JobState.RUNNING, "b": JobState.RUNNING, "ended": JobState.PENDING}


# Workers.


@either_way
async def test_a_step_declares_no_live_worker_dead_and_an_ended_one_in_time(
    broker: Broker, fleet: Fleet, clock: WatchedClock, step: int
) -> None:
    def look() -> Awaitable[int]:
        return broker.reclaim(trust_silence=False)

    await fleet.run(broker, 12, look)
    set_by(clock, step)
    await look()
    assert (await record(broker, fleet.jobs["ended"].id)).state is JobState.RUNNING, "silent for 12 s only"
    await fleet.run(broker, 5, look)
    assert await states(broker, fleet) == KEPT
    await fleet.run(broker, 60, look)
    assert await states(broker, fleet) == KEPT
    assert [worker.id for worker in await broker.workers()] == ["a", "b"]


@either_way
async def test_a_new_leader_after_a_step_watches_before_it_declares_a_worker_dead(
    broker: Broker, open_broker: OpenBroker, fleet: Fleet, clock: WatchedClock, step: int
) -> None:
    await fleet.run(broker, 4, broker.workers)
    set_by(clock, step)
    leader = await open_broker()

    def look() -> Awaitable[int]:
        return leader.reclaim(trust_silence=False)

    await look()
    assert set((await states(broker, fleet)).values()) == {JobState.RUNNING}, "not in one look"
    await fleet.run(broker, 17, look)
    assert await states(broker, fleet) == KEPT


@forward
async def test_a_watched_worker_is_listed_after_a_step(
    broker: Broker, clock: WatchedClock, step: int
) -> None:
    """A schedule fires only while a live worker has its task."""
    await broker.register(MEMBER)
    await broker.reclaim(trust_silence=False)
    set_by(clock, step)
    assert [worker.id for worker in await broker.workers()] == [MEMBER.id]
    clock.advance(16)
    assert await broker.workers() == []


# Leases.


@either_way
async def test_the_reap_duty_ends_no_lease_that_its_holder_renews_in_time(
    broker: Broker, fleet: Fleet, clock: WatchedClock, step: int
) -> None:
    duty = broker._session.reap
    await fleet.run(broker, 12, duty.run_once)
    set_by(clock, step)
    await fleet.run(broker, 75, duty.run_once)
    found = await states(broker, fleet)
    assert (found["a"], found["b"]) == (JobState.RUNNING, JobState.RUNNING)
    assert step < 0 or found == KEPT, "after a step back, the lease of the ended worker lasts longer"
    for id in ("a", "b"):
        assert (await record(broker, fleet.jobs[id].id)).attempts == 1


async def seconds_until_reaped(broker: Broker, clock: WatchedClock, id: str) -> int:
    """Run the reap duty every second until the job's claim is ended. Return the seconds."""
    for passed in range(1, 100):
        clock.advance(1)
        await broker._session.reap.run_once()
        if await state(broker, id) is JobState.PENDING:
            return passed
    raise AssertionError("the claim is not ended")


@forward
async def test_the_reap_duty_rests_no_longer_than_a_lease(
    broker: Broker, clock: WatchedClock, step: int
) -> None:
    claim = await running(broker)
    await broker._session.reap.run_once()
    set_by(clock, step)
    assert min(step, LEASE) <= await seconds_until_reaped(broker, clock, claim.id) <= LEASE + LOOKS


async def test_time_that_passes_is_no_step(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    await broker._session.reap.run_once()
    assert LEASE <= await seconds_until_reaped(broker, clock, claim.id) <= LEASE + LOOKS


# Retention.


async def test_the_sweep_duty_rests_after_a_step_so_that_a_corrected_clock_removes_nothing(
    broker: Broker, clock: WatchedClock
) -> None:
    id = await dead(broker)
    duty = broker._session.sweep
    await duty.run_once()
    set_by(clock, 30 * DAY)
    assert 0 < await duty.run_once() <= 60
    assert await state(broker, id) is JobState.DEAD
    set_by(clock, -30 * DAY)
    clock.advance(61)
    await duty.run_once()
    assert await state(broker, id) is JobState.DEAD
    set_by(clock, 30 * DAY)
    await duty.run_once()
    clock.advance(60)
    await duty.run_once()
    assert await state(broker, id) is None, "the clock is not corrected"


# Schedules.


async def due_times(broker: Broker) -> list[datetime]:
    jobs = await broker.jobs("q", limit=10_000)
    return sorted(datetime.fromisoformat(job.headers["dayjob-due"]) for job in jobs)


TIMINGS: list[dict[str, Any]] = [{"cron": "* * * * *"}, {"every": 60}]


@pytest.mark.parametrize("timing", TIMINGS, ids=["cron", "every"])
@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize("step", [3600, DAY, 365 * DAY])
async def test_a_schedule_fires_again_after_the_clock_was_set_back(
    broker: Broker,
    open_broker: OpenBroker,
    clock: WatchedClock,
    step: int,
    restarted: bool,
    timing: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await broker.schedule(Recurring("s", queue="q", **timing))
    clock.advance(60)
    await broker.recur()
    set_by(clock, step)
    await broker.recur()
    set_by(clock, -step)
    fired = await due_times(broker)
    assert len(fired) == 2
    if restarted:
        broker = await open_broker()
    begun = clock.time
    for _ in range(3):
        await broker.recur()
        clock.advance(60)
    await broker.recur()
    again = [time for time in await due_times(broker) if time not in fired]
    assert len(again) == 3
    assert begun < again[0] <= begun + timedelta(seconds=60)
    assert caplog.text.count("the clock was set back") == 1
    [schedule] = await broker.schedules()
    assert (schedule.problem, schedule.last_at) == (None, again[-1])


@pytest.mark.parametrize("timing", [*TIMINGS, {"cron": "@daily"}, {"every": 1}], ids=str)
@pytest.mark.parametrize("step", [0.1, 1, 8])
async def test_after_a_small_step_back_no_due_time_fires_twice(
    broker: Broker, clock: WatchedClock, timing: dict[str, Any], step: float
) -> None:
    """Done jobs are not kept, so their ids alone would not prevent it."""
    await broker.schedule(Recurring("s", queue="q", missed="all", **timing))
    fired: list[str] = []
    for second in range(40):
        clock.advance(DAY if timing.get("cron") == "@daily" else timing.get("every", 60))
        if second % 10 == 5:
            set_by(clock, -step)
        await broker.recur()
        for job in await broker.claim("q", limit=1000):
            fired.append(job.headers["dayjob-due"])
            await broker.ack(job)
    assert len(fired) == len(set(fired)) >= 3


async def test_a_schedule_that_was_paused_while_the_clock_was_ahead_resumes_in_time(
    broker: Broker, clock: WatchedClock
) -> None:
    set_by(clock, DAY)
    await broker.schedule(Recurring("s", every=60, queue="q"))
    await broker.pause_schedule("s")
    set_by(clock, -DAY)
    await broker.recur()
    await broker.resume_schedule("s")
    clock.advance(60)
    await broker.recur()
    assert len(await due_times(broker)) == 1


async def test_a_changed_interval_counts_from_now_if_the_last_time_is_in_the_future(
    broker: Broker, clock: WatchedClock
) -> None:
    set_by(clock, DAY)
    await broker.schedule(Recurring("s", every=60, queue="q"))
    clock.advance(60)
    await broker.recur()
    set_by(clock, -DAY)
    changed = await broker.schedule(Recurring("s", every=90, queue="q"))
    assert changed.next_at == clock.time + timedelta(seconds=90)


async def test_a_schedule_whose_due_times_are_unknown_after_a_step_back_has_a_problem(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.schedule(Recurring("s", cron="@daily", timezone="Europe/Berlin", queue="q"))

    def no_zones(name: str) -> Any:
        raise LookupError(f"no time zone {name}")

    monkeypatch.setattr("dayjob.model.cron.find_zone", no_zones)
    cron.cache_clear()
    await (await open_broker()).recur()
    [schedule] = await broker.schedules()
    assert schedule.problem == "LookupError: no time zone Europe/Berlin"
    monkeypatch.undo()


# The history of the throughput.


@pytest.mark.parametrize("step", [600, DAY, 365 * DAY])
async def test_samples_of_the_future_do_not_stop_the_history(
    broker: Broker, clock: WatchedClock, step: int
) -> None:
    set_by(clock, step)
    await broker.enqueue("q")
    await broker.sample()
    set_by(clock, -step)
    await broker.enqueue("q")
    await broker.sample()
    now, [sample] = await broker.history(24)
    assert sample.at_us <= now == clock.now()
    assert sample.stats("q").pending == 2


async def test_documents_are_stored_at_the_time_of_their_write(broker: Broker, clock: WatchedClock) -> None:
    """The times of documents may go back with the clock."""
    member = await broker.register(MEMBER)
    set_by(clock, -DAY)
    await broker.beat(member, 1)
    now, [document] = await broker._engine.documents(KIND)
    assert document.written_us == now == clock.now()
