"""When each duty runs: promote at the next due time, reap and sweep at their intervals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from dayjob import Broker, BrokerConfig, EngineUnavailable, Job, JobState
from dayjob.broker.retrying_storage import RetryingStorage
from dayjob.duties import duties
from dayjob.duties.duties import LOCKED, MAX_BATCH, RENEWAL_GRACE, SOON, Promote, Reap, Sweep
from dayjob.duties.ended import EndedJobs
from dayjob.duties.service import Service
from dayjob.engines.base import Capabilities, Token
from dayjob.model.durations import SECOND
from dayjob.testing import ManualClock
from tests.support.staging import ObservedClock, Stage, turns

DUTIES = ("promote", "next_due", "reap", "sweep")


@pytest.fixture
def observed(clock: ManualClock) -> ObservedClock:
    return ObservedClock(clock)


@pytest.fixture
async def promoting(broker: Broker, observed: ObservedClock) -> AsyncIterator[Stage]:
    """Run the promote duty at intervals of a minute at most. Yield its calls of the engine."""
    stage = Stage(broker, "promote")
    promote = Promote(broker._session.storage, EndedJobs(None), 60)
    service = Service(promote, broker._engine.signals, observed)
    service.start()
    assert await observed.next_wait() == 60
    yield stage
    await service.stop()


async def state(broker: Broker, id: str) -> JobState | None:
    job = await broker.get(id)
    return None if job is None else job.state


async def running(broker: Broker) -> Job:
    await broker.enqueue("q")
    [job] = await broker.claim("q")
    return job


async def test_promote_does_not_call_the_engine_while_nothing_is_due(
    broker: Broker, clock: ManualClock, observed: ObservedClock, promoting: Stage
) -> None:
    await broker.enqueue("q")
    for _ in range(3):
        clock.advance(60)
        assert await observed.next_wait() == 60
    assert promoting.calls == []


async def test_promote_sleeps_until_the_next_due_time(
    broker: Broker, clock: ManualClock, observed: ObservedClock, promoting: Stage
) -> None:
    enqueued = await broker.enqueue("q", delay=10)
    assert await observed.next_wait() == 10
    clock.advance(9.999)
    await turns()
    assert promoting.calls == []
    clock.advance(0.001)
    assert await observed.next_wait() == 60
    assert len(promoting.calls) == 1
    assert await state(broker, enqueued.id) is JobState.PENDING


async def test_promote_is_woken_by_an_earlier_arrival(
    broker: Broker, clock: ManualClock, observed: ObservedClock, promoting: Stage
) -> None:
    late = await broker.enqueue("q", delay=30)
    assert await observed.next_wait() == 30
    clock.advance(5)
    early = await broker.enqueue("q", delay=3)
    assert await observed.next_wait() == 3
    clock.advance(3)
    assert await observed.next_wait() == 22
    assert await state(broker, early.id) is JobState.PENDING
    assert await state(broker, late.id) is JobState.SCHEDULED
    clock.advance(22)
    await observed.next_wait()
    assert await state(broker, late.id) is JobState.PENDING


async def test_a_later_arrival_changes_nothing(
    broker: Broker, clock: ManualClock, observed: ObservedClock, promoting: Stage
) -> None:
    await broker.enqueue("q", delay=10)
    assert await observed.next_wait() == 10
    clock.advance(4)
    await broker.enqueue("q", delay=50)
    assert await observed.next_wait() == 6


async def test_promote_sleeps_no_longer_than_its_interval(
    broker: Broker, observed: ObservedClock, promoting: Stage
) -> None:
    """Where a signal may be lost, a job of another process waits for one interval at most."""
    await broker.enqueue("q", delay=1000)
    assert await observed.next_wait() == 60


async def by_nack(broker: Broker, clock: ManualClock) -> None:
    await broker.nack(await running(broker), "no", delay=7)


async def by_snooze(broker: Broker, clock: ManualClock) -> None:
    await broker.snooze(await running(broker), 7)


async def by_reschedule(broker: Broker, clock: ManualClock) -> None:
    enqueued = await broker.enqueue("q")
    await broker.reschedule(enqueued.id, run_at=clock.time + timedelta(seconds=7))


async def by_expiry(broker: Broker, clock: ManualClock) -> None:
    await broker.enqueue("q", expires=7)


@pytest.mark.parametrize("arrival", [by_nack, by_snooze, by_reschedule, by_expiry])
async def test_every_change_with_a_due_time_wakes_promote(
    broker: Broker,
    clock: ManualClock,
    observed: ObservedClock,
    promoting: Stage,
    arrival: Callable[[Broker, ManualClock], Awaitable[None]],
) -> None:
    await arrival(broker, clock)
    assert await observed.next_wait() == 7
    clock.advance(7)
    assert await observed.next_wait() == 60
    assert len(promoting.calls) == 1


async def test_more_due_jobs_than_one_batch_are_promoted_in_one_run(
    broker: Broker, clock: ManualClock, observed: ObservedClock, promoting: Stage
) -> None:
    for _ in range(2500):
        await broker.enqueue("q", delay=10)
    clock.advance(10)
    while promoting.calls == [] or observed.unseen:
        await observed.next_wait()
    assert (await broker.stats("q")).pending == 2500
    assert all(call[0] <= MAX_BATCH for call in promoting.calls)
    assert len(promoting.calls) >= 3


class TimedCommits:
    """Work on many jobs, each commit with a latency, and a time for each job. It is also the clock."""

    def __init__(self, jobs: int, latency: float, per_job: float) -> None:
        self.left = jobs
        self.latency, self.per_job = latency, per_job
        self.now = self.paused = 0.0
        self.limits: list[int] = []

    async def work(self, limit: int) -> int:
        self.limits.append(limit)
        changed = min(limit, self.left)
        self.left -= changed
        self.now += self.latency + changed * self.per_job
        return changed

    def elapsed(self) -> float:
        return self.now

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        self.paused += seconds
        self.now += seconds
        return False


async def test_the_latency_of_a_commit_does_not_slow_a_duty_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """On object storage finished jobs were removed at 100 in four latencies, slower than new ones arrived."""
    commits = TimedCommits(20_000, latency=0.1, per_job=1e-6)
    monkeypatch.setattr(duties, "SYSTEM", commits)
    assert await duties.in_short_commits(commits.work, duties.SWEEP_PAUSE, concurrent=True) == 20_000
    assert commits.limits[:5] == [100, 200, 400, 800, MAX_BATCH]
    assert 20_000 / commits.now > 5_000


@pytest.mark.parametrize("latency", [0.0, 0.02])
async def test_a_duty_works_in_short_commits_and_pauses_for_others(
    monkeypatch: pytest.MonkeyPatch, latency: float
) -> None:
    """A commit of SQLite locks the file while it waits for the disk, so that others wait, too."""
    commits = TimedCommits(20_000, latency=latency, per_job=20e-6)
    monkeypatch.setattr(duties, "SYSTEM", commits)
    assert await duties.in_short_commits(commits.work, duties.SWEEP_PAUSE) == 20_000
    assert max(commits.limits) * commits.per_job <= 2 * duties.COMMIT_TIME
    assert commits.paused > commits.now * 0.7


class IdleEngine:
    """An engine without work for the duties. It records the calls of ``reap``."""

    timeout = 0.0

    def __init__(self, clock: ManualClock, *, knows_orphans: bool = False) -> None:
        self.capabilities = Capabilities(
            persistent=False,
            multi_process=False,
            transactional_enqueue=False,
            knows_orphans=knows_orphans,
            stores_replies=False,
        )
        self._clock = clock
        self.takes = 0.0
        self.fails = False
        self.expired_by: list[int] = []

    async def documents(self, kind: str) -> tuple[int, list[Any]]:
        return self._clock.now(), []

    async def reap(self, limit: int, expired_by: int, token: Token) -> list[Any]:
        self.expired_by.append(expired_by)
        self._clock.advance(self.takes)
        if self.fails:
            raise EngineUnavailable("no reply")
        return []

    async def sweep(self, *_: Any, token: Token) -> tuple[int, int]:
        return 0, 0

    def storage(self) -> RetryingStorage:
        engine: Any = self
        return RetryingStorage(engine, self._clock)

    def reap_duty(self, interval: float) -> Reap:
        return Reap(self.storage(), EndedJobs(None), interval, self._clock, 30)


@pytest.mark.parametrize("interval", [0.2, 5, 3600])
async def test_reap_looks_at_leases_at_its_interval_and_at_orphans_every_second(
    clock: ManualClock, interval: float
) -> None:
    plain, orphans = IdleEngine(clock), IdleEngine(clock, knows_orphans=True)
    assert await plain.reap_duty(interval).run_once() == interval
    duty = orphans.reap_duty(interval)
    wait = await duty.run_once()
    assert wait == min(interval, 1)
    clock.advance(wait)
    await duty.run_once()
    leases = orphans.expired_by[-1] > 0
    assert leases == (interval <= 1), "0 ends claims of dead processes only"
    assert await Sweep(plain.storage(), 60).run_once() == 60


async def looks(engine: IdleEngine, duty: Reap, clock: ManualClock, number: int) -> list[float]:
    """Return the ages of the times by which the next looks judge leases, in seconds."""
    ages: list[float] = []
    for _ in range(number):
        began, wait = clock.now(), await duty.run_once()
        ages.append(round((began - engine.expired_by[-1]) / SECOND, 3))
        clock.advance(wait)
    return ages


async def test_reap_judges_leases_by_the_time_of_the_look_before(clock: ManualClock) -> None:
    engine = IdleEngine(clock)
    ages = await looks(engine, engine.reap_duty(0.5), clock, 4)
    assert ages[0] > 1e9, "the first look ends no claim"
    assert ages[1:] == [0.5, 0.5, 0.5]


async def test_after_a_step_back_of_the_clock_no_lease_of_the_new_time_has_expired(
    clock: ManualClock,
) -> None:
    engine = IdleEngine(clock)
    duty = engine.reap_duty(0.5)
    await looks(engine, duty, clock, 3)
    clock.set(clock.time - timedelta(days=1))
    assert min(await looks(engine, duty, clock, 20)) >= 0


@pytest.mark.parametrize("disturbance", ["slow", "failed", "late"])
async def test_after_a_disturbed_look_holders_have_time_to_renew(
    clock: ManualClock, disturbance: str
) -> None:
    """A lease that expired during an outage is judged only after the grace that follows it."""
    engine = IdleEngine(clock)
    duty = engine.reap_duty(0.5)
    await looks(engine, duty, clock, 3)
    if disturbance == "late":
        clock.advance(40)
    else:
        engine.takes, engine.fails = 40, disturbance == "failed"
        with suppress(EngineUnavailable):
            await duty.run_once()
        engine.takes, engine.fails = 0, False
    over = clock.now()
    while True:
        await looks(engine, duty, clock, 1)
        if engine.expired_by[-1] > over - 30 * SECOND:
            break
        assert clock.now() < over + 10 * SECOND, "no lease ends any more"
    assert clock.now() - over >= RENEWAL_GRACE * SECOND


async def test_reap_and_sweep_run_at_once_and_then_at_their_intervals(clock: ManualClock) -> None:
    broker = Broker("memory://", config=BrokerConfig(reap_interval=5, sweep_interval=60), clock=clock)
    reap, sweep = Stage(broker, "reap"), Stage(broker, "sweep")
    async with broker:
        await turns()
        assert (len(reap.calls), len(sweep.calls)) == (1, 1)
        clock.advance(4.999)
        await turns()
        assert (len(reap.calls), len(sweep.calls)) == (1, 1)
        clock.advance(0.001)
        await turns()
        assert (len(reap.calls), len(sweep.calls)) == (2, 1)
        for _ in range(11):
            clock.advance(5)
            await turns()
        assert (len(reap.calls), len(sweep.calls)) == (13, 2)
    clock.advance(600)
    await turns()
    assert (len(reap.calls), len(sweep.calls)) == (13, 2)


async def test_an_outage_of_one_duty_delays_no_other(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker("memory://", config=BrokerConfig(reap_interval=5, sweep_interval=5), clock=clock)
    reap, sweep = Stage(broker, "reap"), Stage(broker, "sweep")
    reap.failures.extend([EngineUnavailable("no reply")] * 2)
    async with broker:
        await turns()
        assert (len(reap.calls), len(sweep.calls)) == (1, 1)
        clock.advance(0.1)
        await turns()
        assert (len(reap.calls), len(sweep.calls)) == (2, 1)
        clock.advance(0.2)
        await turns()
        assert (len(reap.calls), len(sweep.calls)) == (3, 1)
        clock.advance(4.7)
        await turns()
        assert (len(reap.calls), len(sweep.calls)) == (3, 2)
    assert caplog.text.count("the reap duty failed") == 2


async def test_without_duties_none_runs(clock: ManualClock) -> None:
    broker = Broker("memory://", config=BrokerConfig(duties=False), clock=clock)
    stages = [Stage(broker, verb) for verb in DUTIES]
    async with broker:
        await broker.enqueue("q", delay=1, expires=2)
        for _ in range(10):
            clock.advance(60)
            await turns()
    assert [stage.calls for stage in stages] == [[]] * len(stages)


async def test_without_duties_a_held_claim_still_gets_its_cancel_request(broker: Broker) -> None:
    """The watch serves the claims of this broker, not the fleet."""
    job = await running(broker)
    await broker.cancel(job.id)
    await turns()
    assert job.cancel_token.cancelled


class LockedEngine(IdleEngine):
    """An engine with due jobs, of which all but some are locked by another client."""

    def __init__(self, clock: ManualClock, free: int) -> None:
        super().__init__(clock)
        self.free = free

    async def next_due(self) -> int:
        return 0

    async def promote(self, *_: Any, token: Token) -> tuple[int, list[Any]]:
        free, self.free = self.free, 0
        return free, []


async def test_promote_pauses_while_the_only_due_jobs_are_locked(clock: ManualClock) -> None:
    storage = LockedEngine(clock, free=1).storage()
    promote = Promote(storage, EndedJobs(None), 60)
    assert await promote.run_once() == SOON, "another job may have become due meanwhile"
    for _ in range(3):
        assert await promote.run_once() == LOCKED
