"""PgQueuer: ``python -m benchmarks.peers.pgqueuer KIND URL JOBS [BATCH]``.

Runs on asyncpg, as its documentation recommends, with a pool, so that claims do not wait for its log.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.child import (
    Answer,
    call_at_intervals,
    median_wait,
    record_wait,
    run,
    settled_rate,
    starts,
    wait_for_go,
    wait_until,
    waits,
)
from benchmarks.open_loop import Put


@asynccontextmanager
async def _opened(url: str, connections: int = 4) -> AsyncIterator[tuple[Any, Any]]:
    """Open the worker and the producer over one pool."""
    async with import_module("asyncpg").create_pool(url, min_size=4, max_size=connections) as pool:
        worker = import_module("pgqueuer").PgQueuer.from_asyncpg_pool(pool)
        yield worker, worker.qm.queries


async def install(url: str) -> None:
    async with _opened(url) as (_, queries):
        await queries.install()


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[Put]:
    async with _opened(url, connections=10) as (_, queries):
        yield lambda stamp: queries.enqueue("wait", repr(stamp).encode())


@asynccontextmanager
async def working(url: str, started: Callable[[float], None], _: object) -> AsyncIterator[None]:
    async with _opened(url) as (worker, _queries):

        async def handle(job: Any) -> None:
            started(float(job.payload))

        worker.entrypoint("wait")(handle)
        running = asyncio.ensure_future(worker.qm.run(batch_size=100))
        yield
        worker.shutdown.set()
        await running


async def drain(url: str, jobs: int, batch: str) -> Answer:
    types = import_module("pgqueuer.types")
    async with _opened(url) as (worker, queries):
        await queries.install()

        async def record_start(job: object) -> None:
            starts.append(time.perf_counter())

        worker.entrypoint("noop")(record_start)
        await _fill(queries, jobs)
        running = asyncio.ensure_future(
            worker.qm.run(batch_size=int(batch), mode=types.QueueExecutionMode.drain)
        )
        answer = await settled_rate(url, jobs, "SELECT FROM pgqueuer")
        await running
    return answer


async def _fill(queries: Any, jobs: int) -> None:
    for start in range(0, jobs, 1000):
        some = range(start, min(start + 1000, jobs))
        await queries.enqueue(["noop"] * len(some), [b"%d" % number for number in some], [0] * len(some))


async def fill_rate(url: str, jobs: int) -> Answer:
    """Return the rate of one producer that awaits batches of a thousand jobs."""
    async with _opened(url) as (_, queries):
        await queries.install()
        await _fill(queries, 1000)
        start = time.perf_counter()
        await _fill(queries, jobs)
        return {"rate": jobs / (time.perf_counter() - start)}


async def listen(url: str, jobs: int) -> Answer:
    """Run an idle worker. Return the median time from enqueue to start."""
    async with _opened(url) as (worker, queries):
        await queries.install()

        async def record_job_wait(job: Any) -> None:
            record_wait(float(job.payload))

        worker.entrypoint("wait")(record_job_wait)
        running = asyncio.ensure_future(worker.qm.run())
        await wait_for_go()
        await wait_until(lambda: len(waits) >= jobs)
        worker.shutdown.set()
        await running
    return median_wait()


async def call(url: str, jobs: int) -> Answer:
    """Run a producer that enqueues a job at intervals."""
    async with _opened(url) as (_, queries):
        await wait_for_go()
        return await call_at_intervals(jobs, lambda stamp: queries.enqueue("wait", repr(stamp).encode()))


if __name__ == "__main__":
    run({"drain": drain, "fill-rate": fill_rate, "listen": listen, "call": call}, sys.argv[1:])
