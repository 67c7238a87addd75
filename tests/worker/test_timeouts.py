"""Runs that exceed their timeout."""

from __future__ import annotations

import asyncio
from threading import Event as ThreadEvent

from dayjob import (
    App,
    Broker,
    Context,
    JobState,
)
from tests.support.bound import BOUND
from tests.support.workers import record, run_until_idle, until, with_timeout, working


async def test_a_coroutine_past_its_timeout_is_cancelled(app: App, outside: Broker) -> None:
    seen: list[str | None] = []

    @app.task(timeout=0.05, max_attempts=1)
    async def slow(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.cancelled.reason)

    handle = await slow.aenqueue()
    await run_until_idle(app)
    assert seen == ["timeout"]
    job = await record(outside, handle.id)
    assert job.state is JobState.DEAD
    text = str(job.last_error)
    assert text.startswith("TimeoutError: timed out after 0.05 s")
    assert "in slow" in text


async def test_the_workers_job_timeout_applies_to_tasks_without_their_own(app: App, outside: Broker) -> None:
    @app.task(max_attempts=1)
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.task(timeout=30)
    async def patient() -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, event.set)
        await event.wait()

    short, long = await slow.aenqueue(), await patient.aenqueue()
    await run_until_idle(app, job_timeout=0.1)
    assert "timed out after 0.1 s" in str((await record(outside, short.id)).last_error)
    assert await long.astatus() is JobState.DONE


async def test_a_coroutine_may_clean_up_after_its_timeout(app: App, outside: Broker) -> None:
    """Its job has failed, also if it returns afterwards."""
    cleaned: list[bool] = []

    @app.task(timeout=0.05, max_attempts=1)
    async def slow() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaned.append(True)
        return "all"

    handle = await slow.aenqueue()
    await run_until_idle(app)
    assert cleaned == [True]
    assert str((await record(outside, handle.id)).last_error).startswith("TimeoutError: timed out")


async def test_a_thread_past_its_timeout_is_abandoned_and_replaced(app: App, outside: Broker) -> None:
    gate = ThreadEvent()
    reasons: list[str | None] = []
    ended: list[bool] = []

    @app.task(timeout=0.05, max_attempts=1)
    def stuck(ctx: Context) -> str:
        ctx.cancelled.wait_in_thread(10)
        reasons.append(ctx.cancelled.reason)
        gate.wait(BOUND)
        ended.append(True)
        return "late"

    @app.task
    def quick() -> str:
        return "done"

    async with working(app, concurrency=2):
        stucks = [await stuck.aenqueue() for _ in range(4)]
        for handle in stucks:
            waited = await with_timeout(handle.await_end())
            assert waited.job is not None
            assert "timed out" in str(waited.job.last_error)
        quicks = [await quick.aenqueue() for _ in range(4)]
        for handle in quicks:
            assert await with_timeout(handle.aresult()) == "done"
        gate.set()
        await until(lambda: len(ended) == 4)
        again = await quick.aenqueue()
        assert await with_timeout(again.aresult()) == "done"
    assert reasons == ["timeout"] * 4
    for handle in stucks:
        job = await record(outside, handle.id)
        assert (job.state, job.result) == (JobState.DEAD, None)
