"""Procrastinate: ``python -m benchmarks.peers.procrastinate KIND URL JOBS [CONCURRENCY]``.

Finished jobs are deleted, as in dayjob's runs. It fetches and finishes jobs one by one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.child import Answer, one_by_one, run, settled_rate, starts
from benchmarks.open_loop import Put

CONCURRENCY = 10


def record_start(_: float) -> None:
    starts.append(time.perf_counter())


def _app(url: str, connections: int, started: Callable[[float], None] = record_start) -> tuple[Any, Any]:
    package = import_module("procrastinate")
    connector = package.PsycopgConnector(conninfo=url, min_size=connections, max_size=connections)
    app = package.App(connector=connector)

    async def noop(number: float) -> None:
        started(number)

    return app, app.task(name="noop")(noop)


async def install(url: str) -> None:
    app, _ = _app(url, 1)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[Put]:
    app, task = _app(url, 10)
    async with app.open_async():
        yield lambda stamp: task.defer_async(number=stamp)


@asynccontextmanager
async def working(url: str, started: Callable[[float], None], _: object) -> AsyncIterator[None]:
    """Run a worker with a connection per job, and one to listen."""
    app, _task = _app(url, CONCURRENCY + 1, started)
    async with app.open_async():
        running = asyncio.ensure_future(
            app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="always", install_signal_handlers=False)
        )
        yield
        running.cancel()
        await asyncio.wait({running})


async def drain(url: str, jobs: int, concurrency: str) -> Answer:
    """Run a worker with this concurrency, a connection per job, and one to listen."""
    app, task = _app(url, int(concurrency) + 1)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for start in range(0, jobs, 1000):
            some = range(start, min(start + 1000, jobs))
            await task.batch_defer_async(*({"number": number} for number in some))
        running = asyncio.ensure_future(
            app.run_worker_async(
                concurrency=int(concurrency), wait=False, delete_jobs="always", install_signal_handlers=False
            )
        )
        answer = await settled_rate(url, jobs, "SELECT FROM procrastinate_jobs")
        await running
    return answer


async def enqueue(url: str, jobs: int) -> Answer:
    """Run one producer that awaits each ``defer_async``."""
    app, task = _app(url, 1)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        return await one_by_one(jobs, lambda number: task.defer_async(number=number))


if __name__ == "__main__":
    run({"drain": drain, "enqueue": enqueue}, sys.argv[1:])
