"""dayjob's producers and workers as child processes of a measure:
``python -m benchmarks.fleet KIND URL NUMBER [OPTION]``.

Finished jobs are not retained, like those of the peers, unless a kind runs with the defaults.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.child import (
    Answer,
    Kind,
    call_at_intervals,
    median_wait,
    one_by_one,
    record_wait,
    run,
    settled_rate,
    starts,
    wait_for_go,
    wait_until,
    waits,
)
from benchmarks.server import connection
from dayjob import App, BrokerConfig, Retention, Worker
from dayjob.worker.process_memory import collect_less_often

BACKLOG = 10_000
STEADY_RATE = 20_000
"""Jobs a second that pass through the backlog, at most."""

_RUNNING = "SELECT FROM dayjob.jobs WHERE state = 'running'"
_BATCH = 1000

_SIZE = """
    SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::float8 / 1048576
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""
"""Selects the MiB of all tables with their indexes."""


async def record_start(number: int) -> None:
    starts.append(time.perf_counter())


async def record_job_wait(stamp: float) -> None:
    record_wait(stamp)


def make_app(
    url: str, handler: Callable[[int], Awaitable[None]] = record_start, *, retain: bool = False
) -> App:
    app = App(url) if retain else App(url, config=BrokerConfig(retention=Retention(done=0)))
    app.task(name="noop")(handler)
    app.task(name="wait")(record_job_wait)
    return app


async def _fill(app: App, jobs: int, batch: int = _BATCH) -> None:
    for start in range(0, jobs, batch):
        await app.tasks["noop"].aenqueue_many([(number,) for number in range(min(batch, jobs - start))])


async def fill(url: str, jobs: int) -> Answer:
    async with make_app(url) as app:
        await _fill(app, jobs, 10_000)
    return {}


@asynccontextmanager
async def working(app: App, concurrency: int = 100) -> AsyncIterator[None]:
    """Run a worker, as ``dayjob worker`` does, until the context ends."""
    worker = Worker(app, concurrency=concurrency)
    running = asyncio.ensure_future(worker.run())
    yield
    worker.stop()
    await running


async def drain(url: str, jobs: int, concurrency: str) -> Answer:
    """Drain a backlog with one worker."""
    async with make_app(url) as app:
        await _fill(app, jobs)
        async with working(app, int(concurrency)):
            return await settled_rate(url, jobs, _RUNNING)


async def drain_default(url: str, jobs: int) -> Answer:
    """Drain a backlog with one worker. App and worker have no options: done jobs are kept."""
    async with make_app(url, retain=True) as app:
        await _fill(app, jobs)
        async with working(app):
            return await settled_rate(url, jobs, _RUNNING)


async def fill_rate(url: str, jobs: int) -> Answer:
    """Return the rate of one producer that awaits batches of a thousand jobs."""
    async with make_app(url) as app:
        await _fill(app, _BATCH)
        start = time.perf_counter()
        await _fill(app, jobs)
        return {"rate": jobs / (time.perf_counter() - start)}


async def drain_for(url: str, seconds: int) -> Answer:
    """Drain a large backlog for some seconds, or until it ends. Return the rates of all and of two sixths."""
    async with make_app(url) as app:
        await app.broker.stats("default")
        await wait_for_go()
        async with working(app):
            await wait_until(lambda: bool(starts))
            ran = -1
            end = starts[0] + seconds
            while time.perf_counter() < end and len(starts) > ran:
                ran = len(starts)
                await asyncio.sleep(1)
    end = min(end, max(starts))
    part = (end - starts[0]) / 6
    return {
        "rate": sum(moment <= end for moment in starts) / (end - starts[0]),
        "first": sum(moment < starts[0] + part for moment in starts) / part,
        "last": sum(end - part < moment <= end for moment in starts) / part,
    }


async def churn(url: str, jobs: int, first: str) -> Answer:
    """Run a worker and a producer at a steady rate. Return the MiB after the first jobs and after all."""
    sizes = []
    async with make_app(url) as app, connection(url) as database:
        await _fill(app, BACKLOG)
        added = BACKLOG
        async with working(app):
            began = time.perf_counter()
            for end in (int(first), jobs):
                while len(starts) < end:
                    is_early = added > BACKLOG + STEADY_RATE * (time.perf_counter() - began)
                    if added - len(starts) < BACKLOG and not is_early:
                        await _fill(app, _BATCH)
                        added += _BATCH
                    else:
                        await asyncio.sleep(0.005)
                sizes.append(await database.fetchval(_SIZE))
    return {"first": sizes[0], "all": sizes[1], "rate": len(starts) / (max(starts) - min(starts))}


async def enqueue(url: str, calls: int) -> Answer:
    """Run one producer that awaits each enqueue."""
    async with make_app(url) as app:
        return await one_by_one(calls, lambda number: app.tasks["noop"].aenqueue(number))


async def producers(url: str, calls: int, count: str) -> Answer:
    """Run several producers in this process. Return their total rate."""
    async with make_app(url) as app:
        task = app.tasks["noop"]

        async def producer() -> None:
            for number in range(calls):
                await task.aenqueue(number)

        await task.aenqueue(0)
        start = time.perf_counter()
        await asyncio.gather(*(producer() for _ in range(int(count))))
        return {"rate": calls * int(count) / (time.perf_counter() - start)}


async def listen(url: str, jobs: int) -> Answer:
    """Run an idle worker. Return the median time from enqueue to start."""
    async with make_app(url) as app, working(app):
        await wait_for_go()
        await wait_until(lambda: len(waits) >= jobs)
    return median_wait()


async def call(url: str, jobs: int) -> Answer:
    """Run a producer that enqueues a job at intervals."""
    async with make_app(url) as app:
        await app.broker.stats("default")
        await wait_for_go()
        return await call_at_intervals(jobs, app.tasks["wait"].aenqueue)


KINDS: dict[str, Kind] = {
    "call": call,
    "churn": churn,
    "drain": drain,
    "drain-default": drain_default,
    "drain-for": drain_for,
    "enqueue": enqueue,
    "fill": fill,
    "fill-rate": fill_rate,
    "listen": listen,
    "producers": producers,
}

if __name__ == "__main__":
    collect_less_often()  # As ``dayjob worker`` does.
    run(KINDS, sys.argv[1:])
