"""Progress is readable while the job runs, and takes few writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dayjob import App, Broker, Context, EngineUnavailable, JobState, Retry
from dayjob.runtime.clock import SYSTEM, block
from dayjob.runtime.stop_signal import StopSignal
from dayjob.worker.progress import ProgressReports
from tests.support.bound import BOUND
from tests.support.staging import Gate, Stage
from tests.support.workers import pause, record, run_until_idle, until, with_timeout, working


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_the_last_progress_report_is_stored_with_the_outcome(
    app: App, outside: Broker, kind: str
) -> None:
    if kind == "coroutine":

        @app.task(name="work")
        async def work(ctx: Context) -> None:
            ctx.progress(0.5, "half")
            ctx.progress(1.0, "all of it")

    else:

        @app.task(name="work")
        def work_in_thread(ctx: Context) -> None:
            ctx.progress(0.5, "half")
            ctx.progress(1.0, "all of it")

    handles = await app.tasks["work"].aenqueue_many([()] * 3)
    reports = Stage(app.broker, "record_progress")
    await run_until_idle(app)
    jobs = [await record(outside, handle.id) for handle in handles]
    assert [(job.state, job.progress) for job in jobs] == [(JobState.DONE, (1.0, "all of it"))] * 3
    assert len(reports.calls) <= 1, "the outcome carried it"


async def test_a_report_under_way_when_the_run_settles_is_stored_with_the_outcome(
    app: App, outside: Broker
) -> None:
    on_the_way = Gate()
    ran: list[int] = []

    @app.task(retry=Retry.fixed(attempts=2, delay=0))
    async def work(ctx: Context) -> None:
        ran.append(ctx.attempt)
        if ctx.attempt == 1:
            ctx.progress(0.5, "half")
            await on_the_way.reached()
            raise OSError("once more")

    handle = await work.aenqueue()
    Stage(app.broker, "record_progress").before = on_the_way
    settled = Stage(app.broker, "settle")
    async with working(app):
        await until(lambda: len(settled.calls) == 2)
        on_the_way.open()
    first, second = [call[0][0] for call in settled.calls]
    assert (first.progress, second.progress) == ((0.5, "half"), None), "each run has its own"
    assert ran == [1, 2]
    assert (await record(outside, handle.id)).state is JobState.DONE


async def test_the_end_of_a_lost_run_does_not_take_the_report_of_the_next_run(outside: Broker) -> None:
    await outside.enqueue("q")
    (lost,) = await outside.claim("q")
    await outside.release(lost)
    (current,) = await outside.claim("q")
    reports = ProgressReports(outside)
    reports.report(Context(current, StopSignal()), 0.5, "half")
    assert reports.take(lost) is None
    assert reports.take(current) == (0.5, "half")
    await reports.close()


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_progress_is_readable_from_outside_while_the_job_runs(
    app: App, outside: Broker, kind: str
) -> None:
    if kind == "coroutine":

        @app.task(name="work")
        async def work(ctx: Context) -> None:
            ctx.progress(0.4, "resizing")
            await ctx.shutting_down.wait()

    else:

        @app.task(name="work")
        def work_in_thread(ctx: Context) -> None:
            ctx.progress(0.4, "resizing")
            ctx.shutting_down.wait_in_thread(BOUND)

    async with working(app):
        handle: Any = await app.tasks["work"].aenqueue()

        async def seen() -> bool:
            job = await record(outside, handle.id)
            return (job.state, job.progress) == (JobState.RUNNING, (0.4, "resizing"))

        await until(seen)


async def test_many_reports_of_many_jobs_are_one_write_every_250_ms(app: App, outside: Broker) -> None:
    finish = asyncio.Event()
    began: list[float] = []

    @app.task
    async def work(ctx: Context) -> None:
        began.append(SYSTEM.elapsed())
        while not finish.is_set():
            ctx.progress(min((SYSTEM.elapsed() - began[0]) / 2, 1))
            await pause(0.001)
        ctx.progress(1, "last")
        await ctx.shutting_down.wait()

    handles = await work.aenqueue_many([()] * 5)
    reports = Stage(app.broker, "record_progress")
    async with working(app):
        await until(lambda: reports.calls)
        await pause(0.9)
        assert 2 <= len(reports.calls) <= 1 + (SYSTEM.elapsed() - began[0]) / 0.25
        finish.set()

        async def all_last() -> bool:
            jobs = [await record(outside, handle.id) for handle in handles]
            return all(job.progress == (1.0, "last") for job in jobs)

        await until(all_last)
        assert len(reports.calls) <= 1 + (SYSTEM.elapsed() - began[0]) / 0.25


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf"), "half", None, True], ids=str)
async def test_an_invalid_fraction_is_refused(app: App, fraction: Any) -> None:
    @app.task(max_attempts=1)
    async def work(ctx: Context) -> str:
        with pytest.raises(ValueError, match="fraction"):
            ctx.progress(fraction)
        return "refused"

    handle = await work.aenqueue()
    await run_until_idle(app)
    assert await handle.aresult() == "refused"


async def test_a_storage_that_fails_to_store_progress_fails_no_job(app: App) -> None:
    @app.task
    async def work(ctx: Context) -> str:
        ctx.progress(0.5, "odd \0 text \ud800")
        await until(lambda: reports.calls)
        return "done"

    handle = await work.aenqueue()
    reports = Stage(app.broker, "record_progress")
    reports.failures.extend([EngineUnavailable("away")] * 3)
    await run_until_idle(app)
    assert await handle.aresult() == "done"


async def test_late_progress_of_an_abandoned_thread_is_ignored(app: App, outside: Broker) -> None:
    late: list[Context] = []

    @app.task(timeout=0.05, max_attempts=1)
    def work(ctx: Context) -> None:
        ctx.cancelled.wait_in_thread(BOUND)
        block(0.3)
        ctx.progress(0.9)
        late.append(ctx)

    async with working(app):
        handle = await work.aenqueue()
        await with_timeout(handle.await_end())
        await until(lambda: late)
        await pause(0.3)
    assert (await record(outside, handle.id)).progress is None
