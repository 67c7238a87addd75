"""After a crash, the jobs that were in hand run one at a time, so that another crash ends one run."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import LOW, App, Broker, Context, EngineUnavailable, JobState, Snooze
from dayjob.model.job import id_text
from dayjob.model.lifecycle import Transition
from dayjob.worker import worker
from tests.support.bound import BOUND
from tests.support.staging import Stage
from tests.support.workers import pause, record, run_until_idle, until, working


async def crash(broker: Broker, jobs: int) -> None:
    """Claim the jobs for a worker that then dies."""
    assert len(await broker.claim("default", limit=jobs, worker="gone")) == jobs
    assert len(await broker._engine.reclaim(["gone"], jobs)) == jobs


async def test_suspects_run_one_at_a_time_with_no_other_job_in_hand(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "ALONE", BOUND)
    in_hand: list[int] = []

    @app.task
    async def work() -> None:
        in_hand.append((await outside.stats("default")).running)

    suspects = await work.aenqueue_many([()] * 8)
    await crash(outside, 8)
    others = await work.aenqueue_many([()] * 4)
    await run_until_idle(app)
    assert in_hand[:8] == [1] * 8
    assert len(in_hand) == 12
    for handles, attempts in ((suspects, 2), (others, 1)):
        jobs = [await record(outside, handle.id) for handle in handles]
        assert {(job.state, job.attempts) for job in jobs} == {(JobState.DONE, attempts)}


async def test_long_suspects_start_soon_one_after_the_other(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "ALONE", 0.01)
    gate = asyncio.Event()
    started: list[int] = []

    @app.task
    async def work(number: int) -> None:
        started.append(number)
        await gate.wait()

    await work.aenqueue_many([(number,) for number in range(6)])
    await crash(outside, 5)
    async with working(app):
        await until(lambda: len(started) == 6)
        gate.set()
    assert started == [0, 1, 2, 3, 4, 5]


async def test_a_suspect_on_its_last_attempt_stays_alone_for_longer(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "ALONE", 0.0)
    in_hand: list[int] = []

    @app.task(max_attempts=2)
    async def work() -> None:
        await pause(0.02)
        in_hand.append((await outside.stats("default")).running)

    await work.aenqueue_many([()] * 5)
    await crash(outside, 5)
    await run_until_idle(app)
    assert in_hand == [1] * 5


async def test_a_suspect_on_its_last_attempt_is_not_claimed_while_other_jobs_run(
    app: App, outside: Broker
) -> None:
    """A crash of one of them would be the end of it, although it has not started."""
    gate = asyncio.Event()
    order: list[str] = []

    @app.task(max_attempts=2)
    async def suspect() -> None:
        order.append("suspect")

    @app.task(priority=1)
    async def long() -> None:
        order.append("long")
        await gate.wait()
        order.append("end")

    handle = await suspect.aenqueue()
    await crash(outside, 1)
    await long.aenqueue()
    settles = Stage(app.broker, "settle")

    async def given_back() -> bool:
        job = await record(outside, handle.id)
        return sum(settles.sizes) > 0 and (job.state, job.attempts) == (JobState.PENDING, 1)

    async with working(app):
        await until(given_back)
        assert order == ["long"]
        gate.set()
        await until(lambda: len(order) == 3)
    assert order == ["long", "end", "suspect"]


async def test_a_job_without_end_delays_a_last_attempt_for_a_limited_time(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LAST_ALONE", 0.05)
    gate = asyncio.Event()
    started: list[str] = []

    @app.task(max_attempts=2)
    async def suspect() -> None:
        started.append("suspect")
        await gate.wait()

    @app.task(priority=1)
    async def endless() -> None:
        started.append("endless")
        await gate.wait()

    await suspect.aenqueue_many([()] * 3)
    await crash(outside, 3)
    await endless.aenqueue()
    async with working(app):
        await until(lambda: started == ["endless", "suspect", "suspect", "suspect"])
        gate.set()


async def test_the_jobs_before_a_suspect_are_not_given_back(app: App, outside: Broker) -> None:
    @app.task
    async def work() -> None:
        pass

    await work.using(priority=LOW).aenqueue()
    await crash(outside, 1)
    before = await work.aenqueue_many([()] * 19)
    settled = Stage(app.broker, "settle")
    await run_until_idle(app, concurrency=20)
    released = [op.key for ops, *_ in settled.calls for op in ops if op.transition is Transition.RELEASE]
    assert not {handle.id for handle in before} & set(map(id_text, released))
    assert (await outside.stats("default")).done == 20


async def test_jobs_that_came_with_a_suspect_are_given_back_through_an_outage(
    app: App, outside: Broker
) -> None:
    @app.task
    async def work() -> None:
        return

    handles = await work.aenqueue_many([()] * 3)
    await crash(outside, 2)
    settles = Stage(app.broker, "settle")
    settles.failures.extend([EngineUnavailable("the storage is away")] * 2)
    await run_until_idle(app)
    assert not settles.failures
    jobs = [await record(outside, handle.id) for handle in handles]
    assert [(job.state, job.attempts) for job in jobs] == [
        (JobState.DONE, 2),
        (JobState.DONE, 2),
        (JobState.DONE, 1),
    ]


@pytest.mark.parametrize(("max_attempts", "suspect"), [(3, False), (2, True)])
async def test_a_suspect_that_snoozes_is_no_longer_suspect_unless_a_crash_would_be_its_last(
    app: App, outside: Broker, max_attempts: int, suspect: bool
) -> None:
    @app.task(max_attempts=max_attempts)
    async def work(ctx: Context) -> None:
        assert ctx.job.suspect
        raise Snooze(60)

    handle = await work.aenqueue()
    await crash(outside, 1)
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts, job.suspect) == (JobState.SCHEDULED, 1, suspect)
