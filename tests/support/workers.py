"""Running workers, and waiting for conditions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from dayjob import App, Broker, Context, Job, Retention, Retry, Worker
from dayjob.runtime.clock import SYSTEM
from dayjob.testing import ManualClock
from tests.support.bound import BOUND

T = TypeVar("T")


DAY = timedelta(days=1)
KEEP_ALL = Retention(done=DAY, dead=DAY, cancelled=DAY)


class MakeApp(Protocol):
    def __call__(self, *, clock: ManualClock | None = None, **options: Any) -> App: ...


class OpenBroker(Protocol):
    async def __call__(self, clock: ManualClock | None = None) -> Broker: ...


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker during the block. Stop and drain it afterwards."""
    worker = Worker(app, **{"shutdown_timeout": 5, **options})
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await with_timeout(running)


async def run_until_idle(app: App, **options: Any) -> Worker:
    worker = Worker(app, **options)
    await with_timeout(worker.run_until_idle())
    return worker


async def with_timeout(awaitable: Awaitable[T], seconds: float = BOUND) -> T:
    """Return the result of the awaitable. Raise ``TimeoutError`` if that takes too long."""
    async with asyncio.timeout(seconds):
        return await awaitable


async def pause(seconds: float) -> None:
    """Sleep in real time, for tests about real time."""
    await SYSTEM.wait(asyncio.Event(), seconds)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds. It is a plain function or a coroutine function."""
    async with asyncio.timeout(BOUND):
        while True:
            holds = condition()
            if isinstance(holds, Awaitable):
                holds = await holds
            if holds:
                return
            await pause(0.005)


async def record(broker: Broker, id: str) -> Job:
    """Return the full record of a job that must exist."""
    job = await broker.get(id)
    assert job is not None, f"job {id} is gone"
    return job


def first_run_waits(app: App, kind: str) -> list[Context]:
    """Register a task whose first run waits for its cancel signal. Return the contexts of its runs."""
    contexts: list[Context] = []

    def is_first(ctx: Context) -> bool:
        contexts.append(ctx)
        return [each.job.id for each in contexts].count(ctx.job.id) == 1

    if kind == "coroutine":

        @app.task(name="work", retry=Retry.fixed(attempts=5, delay=0))
        async def work(ctx: Context) -> str:
            if is_first(ctx):
                await ctx.cancelled.wait()
            return f"epoch {ctx.epoch}"

    else:

        @app.task(name="work", retry=Retry.fixed(attempts=5, delay=0))
        def work_in_thread(ctx: Context) -> str:
            if is_first(ctx):
                ctx.cancelled.wait_in_thread(BOUND)
            return f"epoch {ctx.epoch}"

    return contexts
