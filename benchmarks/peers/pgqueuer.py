"""PgQueuer: ``python -m benchmarks.peers.pgqueuer KIND URL JOBS [BATCH]``.

On asyncpg, which its documentation prefers, with a pool, so that its claims don't wait for its log.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.child import (
    Answer,
    drained,
    hold,
    median_wait,
    now_and_then,
    run,
    starts,
    until,
    waited,
    waits,
)


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[tuple[Any, Any]]:
    """The worker and the producer, over one pool."""
    async with import_module("asyncpg").create_pool(url, min_size=4, max_size=4) as pool:
        worker = import_module("pgqueuer").PgQueuer.from_asyncpg_pool(pool)
        yield worker, worker.qm.queries


async def drain(url: str, jobs: int, batch: str) -> Answer:
    types = import_module("pgqueuer.types")
    async with _opened(url) as (worker, queries):
        await queries.install()

        async def note(job: object) -> None:
            starts.append(time.perf_counter())

        worker.entrypoint("note")(note)
        for start in range(0, jobs, 1000):
            some = range(start, min(start + 1000, jobs))
            await queries.enqueue(["note"] * len(some), [b"%d" % number for number in some], [0] * len(some))
        await worker.qm.run(batch_size=int(batch), mode=types.QueueExecutionMode.drain)
    return drained(jobs)


async def listen(url: str, jobs: int) -> Answer:
    """An idle worker: how long each job waited from the moment it was asked for to its start."""
    async with _opened(url) as (worker, queries):
        await queries.install()

        async def note_wait(job: Any) -> None:
            waited(float(job.payload))

        worker.entrypoint("note_wait")(note_wait)
        running = asyncio.ensure_future(worker.qm.run())
        await hold()
        await until(lambda: len(waits) >= jobs)
        worker.shutdown.set()
        await running
    return median_wait()


async def call(url: str, jobs: int) -> Answer:
    """A producer that adds a job now and then."""
    async with _opened(url) as (_, queries):
        await hold()
        return await now_and_then(jobs, lambda stamp: queries.enqueue("note_wait", repr(stamp).encode()))


if __name__ == "__main__":
    run({"drain": drain, "listen": listen, "call": call}, sys.argv[1:])
