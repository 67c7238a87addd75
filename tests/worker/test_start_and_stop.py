"""A worker starts, idles, stops and drains."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from threading import Thread

import pytest

from dayjob import App, Broker, BrokerConfig, Context, InvalidState, JobState, Retry, Worker
from dayjob.runtime.clock import SYSTEM, block
from dayjob.testing import ManualClock
from tests.support.bound import BOUND
from tests.support.engines import ENGINES, EngineUnderTest
from tests.support.workers import MakeApp, pause, record, run_until_idle, until, with_timeout, working


async def test_run_until_idle_runs_due_jobs_and_the_jobs_that_they_enqueue(
    timed_app: App, clock: ManualClock, outside: Broker
) -> None:
    app = timed_app
    seen: list[str] = []

    @app.task
    async def second() -> None:
        seen.append("second")

    @app.task
    async def first(ctx: Context) -> None:
        ctx.then(second.bind())
        seen.append("first")

    @app.task(retry=Retry.fixed(attempts=3, delay=0))
    async def stubborn(ctx: Context) -> None:
        seen.append(f"try {ctx.attempt}")
        if ctx.attempt < 3:
            raise ValueError

    await first.aenqueue()
    await stubborn.aenqueue()
    due = await second.using(delay=5).aenqueue()
    later = await second.using(delay=60).aenqueue()
    clock.advance(5)
    worker = await run_until_idle(app)
    assert sorted(seen) == ["first", "second", "second", "try 1", "try 2", "try 3"]
    assert worker.done == 6
    assert await due.astatus() is JobState.DONE
    assert await later.astatus() is JobState.SCHEDULED
    assert (await outside.stats("default")).running == 0


async def test_run_until_idle_waits_for_running_jobs(app: App) -> None:
    order: list[str] = []

    @app.task
    def slow() -> None:
        block(0.2)
        order.append("slow")

    await slow.aenqueue()
    await run_until_idle(app)
    assert order == ["slow"]


async def test_a_worker_may_be_run_again(app: App) -> None:
    seen: list[int] = []

    @app.task
    async def work(n: int) -> None:
        seen.append(n)

    worker = Worker(app, max_jobs=5)
    for n in (1, 2):
        await work.aenqueue(n)
        await with_timeout(worker.run_until_idle())
        assert seen == list(range(1, n + 1))
    worker.stop()
    await with_timeout(worker.run())
    await work.aenqueue(3)
    running = asyncio.create_task(worker.run())
    await until(lambda: seen == [1, 2, 3])
    with pytest.raises(InvalidState, match="is already running"):
        await worker.run()
    worker.stop()
    await with_timeout(running)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_worker_may_be_run_on_one_event_loop_after_another(url: str, engine: EngineUnderTest) -> None:
    app = App(url)
    seen: list[int] = []

    @app.task
    async def work(n: int) -> None:
        seen.append(n)

    worker = Worker(app)

    async def once(n: int) -> None:
        await work.aenqueue(n)
        running = asyncio.create_task(worker.run())
        await until(lambda: n in seen)
        worker.stop()
        await with_timeout(running)
        await app.close()

    for n in (1, 2, 3):
        asyncio.run(once(n))
    assert seen == [1, 2, 3]


async def test_a_stopped_worker_logs_the_running_jobs_that_it_waits_for(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> None:
        started.set()
        await finish.wait()

    await slow.aenqueue()
    worker = Worker(app, shutdown_timeout=BOUND)
    with caplog.at_level(logging.INFO, "dayjob.worker"):
        running = asyncio.create_task(worker.run())
        await with_timeout(started.wait())
        worker.stop()
        await until(lambda: f"stopping: waiting up to {BOUND:g} s for 1 running job" in caplog.text)
        finish.set()
        await with_timeout(running)
    assert "stopped after 1 run" in caplog.messages[-1]


async def test_a_worker_is_stopped_from_another_thread(app: App) -> None:
    started: list[bool] = []
    app.on("worker.started")(lambda event: started.append(True))
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await until(lambda: started)
    thread = Thread(target=worker.stop)
    thread.start()
    await with_timeout(running)
    thread.join()


async def test_two_workers_of_one_app_share_the_work_and_neither_stops_the_other(
    app: App, outside: Broker
) -> None:
    gate = asyncio.Event()
    started = 0

    @app.task
    async def work(waits: bool) -> None:
        nonlocal started
        started += 1
        if waits:
            await gate.wait()

    async with working(app, concurrency=3, name="two"):
        async with working(app, concurrency=3, name="one"):
            await work.aenqueue_many([(True,)] * 10)
            await until(lambda: started == 6)
            holders = {str(job.worker).partition("-")[0] for job in await outside.jobs(state="running")}
            assert holders == {"one", "two"}
            gate.set()
            await until(lambda: started == 10)
        handle = await work.using(delay=0.05).aenqueue(False)
        await with_timeout(handle.aresult(5))


async def test_a_signal_stops_every_worker_of_the_process_also_after_one_has_stopped(
    app: App, make_app: MakeApp
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    up: list[str] = []
    app.on("worker.started")(lambda event: up.append(event.id))
    workers = [Worker(app, name=name) for name in ("one", "two", "three")]
    running = [asyncio.create_task(worker.run(signals=True)) for worker in workers]
    await until(lambda: len(up) == 3)
    workers[2].stop()
    await with_timeout(running[2])
    os.kill(os.getpid(), signal.SIGTERM)
    await with_timeout(asyncio.gather(*running))
    assert signal.getsignal(signal.SIGTERM) is before


async def test_an_open_app_stays_open_and_a_closed_one_is_closed_again(make_app: MakeApp) -> None:
    app = make_app()
    await run_until_idle(app)
    assert not app.broker.is_open
    async with app:
        await run_until_idle(app)
        assert app.broker.is_open


@pytest.mark.parametrize("concurrency", [1, 2, 100])
async def test_a_worker_stops_after_max_jobs(app: App, outside: Broker, concurrency: int) -> None:
    runs = 0

    @app.task
    async def work() -> None:
        nonlocal runs
        runs += 1

    await work.aenqueue_many([()] * 300)
    worker = Worker(app, concurrency=concurrency, max_jobs=250)
    await with_timeout(worker.run())
    assert runs == worker.done == 250
    stats = await outside.stats("default")
    assert (stats.pending, stats.running, stats.done) == (50, 0, 250)
    assert {job.epoch for job in await outside.jobs(state="pending")} == {0}


# Draining.


async def test_a_drain_lets_running_jobs_finish_and_claims_no_more(app: App, outside: Broker) -> None:
    started = 0

    @app.task
    async def work(ctx: Context) -> None:
        nonlocal started
        started += 1
        await ctx.shutting_down.wait()
        await pause(0.05)

    await work.aenqueue_many([()] * 20)
    async with working(app, concurrency=5) as worker:
        await until(lambda: started == 5)
    assert worker.done == 5
    stats = await outside.stats("default")
    assert (stats.done, stats.pending, stats.running) == (5, 15, 0)


@pytest.mark.parametrize("kind", ["coroutine", "thread", "stubborn"])
async def test_long_jobs_are_signalled_at_once_and_released_after_the_timeout(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("dayjob.worker.worker._INTERRUPT_TIMEOUT", 0.3)
    signalled_at: list[float] = []
    reasons: list[str | None] = []
    started: list[bool] = []
    gate = asyncio.Event()

    if kind == "thread":

        @app.task(name="long")
        def in_thread(ctx: Context) -> None:
            started.append(True)
            ctx.shutting_down.wait_in_thread(BOUND)
            signalled_at.append(SYSTEM.elapsed())
            ctx.cancelled.wait_in_thread(BOUND)
            reasons.append(ctx.cancelled.reason)

    else:

        @app.task(name="long")
        async def long(ctx: Context) -> None:
            started.append(True)
            await ctx.shutting_down.wait()
            signalled_at.append(SYSTEM.elapsed())
            try:
                await gate.wait()
            except asyncio.CancelledError:
                reasons.append(ctx.cancelled.reason)
                if kind != "stubborn":
                    raise
            await gate.wait()

    lost: list[str] = []
    app.on("job.lost")(lambda event: lost.append(event.id))
    handle = await app.tasks["long"].aenqueue()
    worker = Worker(app, shutdown_timeout=1)
    running = asyncio.create_task(worker.run())
    await until(lambda: started)
    stopped = SYSTEM.elapsed()
    worker.stop()
    await with_timeout(running)
    assert signalled_at[0] - stopped < 0.9
    assert SYSTEM.elapsed() - stopped >= 1
    await until(lambda: reasons == ["shutdown"])
    gate.set()
    await pause(0.02)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)
    assert lost == []


async def test_stop_now_releases_running_jobs_at_once(app: App, outside: Broker) -> None:
    started = asyncio.Event()

    @app.task
    async def long() -> None:
        started.set()
        await asyncio.Event().wait()

    handle = await long.aenqueue()
    worker = Worker(app, shutdown_timeout=60)
    running = asyncio.create_task(worker.run())
    await with_timeout(started.wait())
    worker.stop()
    await pause(0.05)
    assert not running.done()
    worker.stop_now()
    await with_timeout(running)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)


async def test_a_drain_releases_jobs_claimed_ahead(app: App, outside: Broker) -> None:
    started = 0
    gate = asyncio.Event()

    @app.task
    async def work(waits: bool) -> None:
        nonlocal started
        started += 1
        if waits:
            await gate.wait()

    await work.aenqueue_many([(False,)] * 200 + [(True,)] * 50)
    async with working(app, concurrency=4) as worker:
        await until(lambda: started == 204)
        worker.stop()
        await pause(0.05)
        gate.set()
    stats = await outside.stats("default")
    assert (stats.running, stats.done, stats.pending) == (0, 204, 46)
    assert {job.attempts for job in await outside.jobs(state="pending")} == {0}


async def test_a_run_whose_task_is_cancelled_drains_too(app: App, outside: Broker) -> None:
    started = asyncio.Event()

    @app.task
    async def long() -> None:
        started.set()
        await asyncio.Event().wait()

    handle = await long.aenqueue()
    running = asyncio.create_task(Worker(app, shutdown_timeout=0.05).run())
    await with_timeout(started.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await with_timeout(running)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)


@pytest.mark.parametrize("duties", [True, False])
async def test_a_worker_runs_duties_unless_the_configuration_has_none(
    make_app: MakeApp, duties: bool
) -> None:
    app = make_app(config=BrokerConfig(duties=duties, promote_interval=0.05))

    @app.task
    async def work() -> None:
        return

    async with app, working(app):
        later = await work.using(delay=0.2).aenqueue()
        waited = await later.await_end(20 if duties else 1)
    assert waited.status == ("completed" if duties else "timed_out")
