"""A cancel from any process reaches the handler of its job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dayjob import App, Broker, CancelOutcome, Context, JobCancelled, JobState, Retry, Snooze
from dayjob.runtime.clock import SYSTEM
from tests.support.bound import BOUND
from tests.support.staging import Gate, Stage
from tests.support.workers import record, run_until_idle, until, with_timeout, working

PROMPT = 10.0
"""The maximum of seconds until a handler receives a cancel. A renewal would deliver it after 15 s."""


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_running_handler_receives_a_cancel_from_another_broker(
    app: App, outside: Broker, kind: str
) -> None:
    started: list[str] = []
    received: list[float] = []

    if kind == "coroutine":

        @app.task(name="work")
        async def work(ctx: Context) -> None:
            started.append(ctx.job.id)
            assert await ctx.cancelled.wait() == "cancel"
            received.append(SYSTEM.elapsed())
            raise JobCancelled

    else:

        @app.task(name="work")
        def work_in_thread(ctx: Context) -> None:
            started.append(ctx.job.id)
            assert not ctx.cancelled
            assert ctx.cancelled.wait_in_thread(BOUND)
            assert ctx.cancelled.reason == "cancel"
            received.append(SYSTEM.elapsed())
            raise JobCancelled

    async with working(app):
        handle: Any = await app.tasks["work"].aenqueue()
        await until(lambda: started)
        asked = SYSTEM.elapsed()
        assert await outside.cancel(handle.id) is CancelOutcome.REQUESTED
        await until(lambda: received)
        assert received[0] - asked < PROMPT
        await with_timeout(handle.await_end())
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.CANCELLED, 1)


async def test_an_interruptible_coroutine_is_cancelled(app: App, outside: Broker) -> None:
    started = asyncio.Event()
    seen: list[str | None] = []

    @app.task(cancel="interrupt")
    async def work(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.cancelled.reason)

    async with working(app):
        handle = await work.aenqueue()
        await with_timeout(started.wait())
        await outside.cancel(handle.id)
        await with_timeout(handle.await_end(), 10)
    assert seen == ["cancel"]
    assert await handle.astatus() is JobState.CANCELLED


async def test_an_interrupting_cancel_signals_a_thread_and_does_not_abandon_it(
    app: App, outside: Broker
) -> None:
    started: list[bool] = []

    @app.task(cancel="interrupt")
    def work(ctx: Context) -> str:
        started.append(True)
        ctx.cancelled.wait_in_thread(BOUND)
        return "finished anyway"

    async with working(app):
        handle = await work.aenqueue()
        await until(lambda: started)
        await outside.cancel(handle.id)
        assert await with_timeout(handle.aresult()) == "finished anyway"


async def test_a_job_cancelled_before_its_start_does_not_run(app: App, outside: Broker) -> None:
    runs = 0

    @app.task
    async def work() -> None:
        nonlocal runs
        runs += 1

    pending, scheduled = await work.aenqueue(), await work.using(delay=60).aenqueue()
    for handle in (pending, scheduled):
        assert await outside.cancel(handle.id) is CancelOutcome.REMOVED
    await run_until_idle(app)
    assert runs == 0
    assert await pending.astatus() is JobState.CANCELLED


@pytest.mark.parametrize("on_cancel", ["signal", "interrupt"])
async def test_a_cancel_between_the_claim_and_the_start_is_not_lost(
    app: App, outside: Broker, on_cancel: Any
) -> None:
    reasons: list[str | None] = []

    @app.task(cancel=on_cancel)
    async def work(ctx: Context) -> None:
        await with_timeout(ctx.cancelled.wait(), 10)
        reasons.append(ctx.cancelled.reason)
        raise JobCancelled

    handle = await work.aenqueue()
    claims = Stage(app.broker, "claim")
    claims.after = Gate()
    async with working(app):
        await claims.after.reached()
        assert await outside.cancel(handle.id) is CancelOutcome.REQUESTED
        claims.after.open()
        await with_timeout(handle.await_end())
    assert reasons == (["cancel"] if on_cancel == "signal" else [])
    assert await handle.astatus() is JobState.CANCELLED


async def test_a_handler_that_ignores_a_cancel_and_returns_is_done(app: App, outside: Broker) -> None:
    started = asyncio.Event()

    @app.task
    async def work(ctx: Context) -> str:
        started.set()
        await ctx.cancelled.wait()
        return "done all the same"

    async with working(app):
        handle = await work.aenqueue()
        await with_timeout(started.wait())
        await outside.cancel(handle.id)
        assert await with_timeout(handle.aresult()) == "done all the same"


@pytest.mark.parametrize("error", [ValueError("failed"), Snooze(60)], ids=["failure", "snooze"])
async def test_a_cancelled_job_that_fails_is_not_retried(app: App, outside: Broker, error: Exception) -> None:
    started = asyncio.Event()

    @app.task(retry=Retry.fixed(attempts=9, delay=0))
    async def work(ctx: Context) -> None:
        started.set()
        await ctx.cancelled.wait()
        raise error

    async with working(app):
        handle = await work.aenqueue()
        await with_timeout(started.wait())
        await outside.cancel(handle.id)
        await with_timeout(handle.await_end())
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.CANCELLED, 1)


async def test_a_cancel_meant_for_one_job_does_not_reach_another(app: App, outside: Broker) -> None:
    contexts: dict[str, Context] = {}
    finish = asyncio.Event()

    @app.task
    async def work(ctx: Context) -> None:
        contexts[ctx.job.id] = ctx
        await finish.wait()

    async with working(app):
        handles = [await work.aenqueue() for _ in range(3)]
        await until(lambda: len(contexts) == 3)
        await outside.cancel(handles[1].id)
        await until(lambda: contexts[handles[1].id].cancelled)
        assert [bool(contexts[handle.id].cancelled) for handle in handles] == [False, True, False]
        finish.set()


async def test_a_cancelled_wait_for_a_signal_leaves_no_callback_behind(app: App) -> None:
    """``shutting_down`` lives as long as the worker: the callbacks of its jobs must not accumulate."""
    kept: list[Any] = []

    @app.task
    async def work(ctx: Context) -> None:
        waiting = asyncio.ensure_future(ctx.shutting_down.wait())
        await asyncio.wait({waiting}, timeout=0.001)
        waiting.cancel()
        kept.append(ctx.shutting_down)

    await work.aenqueue_many([()] * 10)
    async with working(app):
        await until(lambda: len(kept) == 10)
        await until(lambda: not kept[0]._callbacks)
