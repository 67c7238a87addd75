"""Short runs share asyncio tasks, and no context variable or cancellation passes from one to the next."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from dayjob import App, Context, JobState, current
from tests.support.workers import run_until_idle, until, with_timeout, working

COLOUR: ContextVar[str] = ContextVar("colour")
SHAPE: ContextVar[str] = ContextVar("shape", default="round")

RUNS = 300


async def test_short_runs_share_tasks(app: App) -> None:
    tasks: set[int] = set()
    alive: list[object] = []

    @app.task
    async def short() -> None:
        alive.append(asyncio.current_task())
        tasks.add(id(alive[-1]))

    await short.aenqueue_many([()] * RUNS)
    await run_until_idle(app)
    assert len(alive) == RUNS
    assert len(tasks) <= RUNS // 10


@pytest.mark.parametrize("variable", [COLOUR, SHAPE], ids=["a new one", "one that was set"])
async def test_a_context_variable_set_by_a_run_is_unset_in_the_next(
    app: App, variable: ContextVar[str]
) -> None:
    SHAPE.set("square")
    seen: list[str | None] = []

    @app.task
    async def short(number: int) -> None:
        seen.append(variable.get(None))
        if number % 3 == 0:
            variable.set(f"set by {number}")

    await short.aenqueue_many([(number,) for number in range(RUNS)])
    await run_until_idle(app)
    assert len(seen) == RUNS
    assert set(seen) == {"square" if variable is SHAPE else None}


async def test_each_run_has_its_own_context(app: App) -> None:
    seen: list[bool] = []

    @app.task
    async def short(ctx: Context) -> None:
        seen.append(current() is ctx)

    await short.aenqueue_many([()] * RUNS)
    await run_until_idle(app)
    assert seen == [True] * RUNS


async def test_a_cancellation_delivered_after_its_run_ended_does_not_reach_the_next_run(app: App) -> None:
    """A run is interrupted at the moment when it ends by itself."""
    ends: list[str] = []

    @app.task
    async def ends_by_itself(ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        ends.append("first")

    @app.task
    async def waits() -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_soon(event.set)
        await event.wait()
        ends.append("second")

    handles = []
    for _ in range(20):
        await ends_by_itself.aenqueue()
        handles.append(await waits.aenqueue())
    await run_until_idle(app)
    assert ends.count("second") == 20
    assert {await handle.astatus() for handle in handles} == {JobState.DONE}


async def test_runs_that_await_start_concurrently(app: App) -> None:
    gate, started = asyncio.Event(), 0

    @app.task
    async def waits() -> None:
        nonlocal started
        started += 1
        await gate.wait()

    await waits.aenqueue_many([()] * 70)
    async with working(app, concurrency=50):
        await until(lambda: started == 50)
        gate.set()
        await with_timeout(until(lambda: started == 70))
