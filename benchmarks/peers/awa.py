"""awa, with its worker in Rust: ``python -m benchmarks.peers.awa KIND URL JOBS [WORKERS]``.

The number of workers is that of its guide for many short jobs, because a job
holds its worker until its outcome is committed. The default is 50. It keeps finished jobs for some seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from benchmarks.child import Answer, drain_rate, run, starts, wait_until
from benchmarks.open_loop import Put

WORKERS = 1024

_QUEUE = "bench"


@dataclass
class Stamped:
    stamp: float


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Any]:
    # Its driver refuses a URL without a host, also if the socket's folder follows as an option.
    client = import_module("awa").AsyncClient(url.replace("@/", "@localhost/"))
    try:
        yield client
    finally:
        await client.close()


async def install(url: str) -> None:
    async with _opened(url) as client:
        await client.migrate()
        await client.install_queue_storage()  # its engine for new installations


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[Put]:
    async with _opened(url) as client:
        yield lambda stamp: client.insert(Stamped(stamp), queue=_QUEUE)


@asynccontextmanager
async def working(
    url: str, started: Callable[[float], None], settled: Callable[[float], None], workers: int = WORKERS
) -> AsyncIterator[Any]:
    async with _opened(url) as client:

        async def handle(job: Any) -> None:
            started(job.args.stamp)

        client.task(Stamped, queue=_QUEUE)(handle)
        await client.start([(_QUEUE, workers)])
        try:
            yield client
        finally:
            await client.shutdown()


async def _fill(client: Any, jobs: int) -> None:
    for start in range(0, jobs, 1000):
        some = [Stamped(float(number)) for number in range(start, min(start + 1000, jobs))]
        await client.enqueue_many_copy(some, queue=_QUEUE)


async def fill_rate(url: str, jobs: int) -> Answer:
    """Return the rate of one producer that awaits batches of a thousand jobs."""
    await install(url)
    async with _opened(url) as client:
        await _fill(client, 1000)
        start = time.perf_counter()
        await _fill(client, jobs)
        return {"rate": jobs / (time.perf_counter() - start)}


async def drain(url: str, jobs: int, workers: str) -> Answer:
    """Return the rate from the first start to the last. No cheap query shows that all are settled."""
    await install(url)
    async with _opened(url) as client:
        await _fill(client, jobs)

    def record(stamp: float) -> None:
        starts.append(time.perf_counter())

    async with working(url, record, record, int(workers)):
        await wait_until(lambda: len(starts) >= jobs)
    return drain_rate(jobs)


if __name__ == "__main__":
    run({"drain": drain, "fill-rate": fill_rate}, sys.argv[1:])
