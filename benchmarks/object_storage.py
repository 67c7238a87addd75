"""The object-storage engine: against a simple port, on a slow bucket, and its requests to a bucket."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from benchmarks import slatedb_port
from benchmarks.processes import run_child
from benchmarks.results import Result, millis, paired_ratio, percentile, rate
from benchmarks.run import Run, measure
from benchmarks.store_process import Store, StoreProcess
from benchmarks.workloads import PAYLOAD, QUEUE, enqueue, fill, timed
from dayjob import Broker, BrokerConfig, NewJob, Settlement
from tests.engines.slatedb.s3 import BUCKET, CREDENTIALS, Proxy, Server, proxying

_FLUSH = 5
_CONCURRENCY = 100
_LATENCY = 0.05
_REMOTE_FLUSH = 100


@measure("port-drain", "slatedb")
async def port_drain(run: Run, engine: str) -> list[Result]:
    """One worker process against a port with one transaction per operation."""
    jobs = run.size(10_000, 3000)
    port_jobs = jobs // 5

    async def ours() -> float:
        return float(
            run_child("benchmarks.drains", "drain", f"{run.url(engine)}?flush_ms={_FLUSH}", jobs)["rate"]
        )

    async def theirs() -> float:
        port = await slatedb_port.Port.open(run.url(engine).removeprefix("file://"), _FLUSH)
        await asyncio.gather(*(port.enqueue(PAYLOAD) for _ in range(port_jobs)))
        took = await timed(slatedb_port.drain(port, _CONCURRENCY))
        await port.close()
        return port_jobs / took

    fast, slow = await run.in_turn(f"port-drain · {engine}", run.size(5, 3), ours, theirs)
    return [
        Result(
            measure="port-drain",
            engine=engine,
            description="a worker on no-op tasks vs one transaction per operation",
            figures=f"{rate(median(fast))} vs {rate(median(slow))}",
            value=paired_ratio(fast, slow),
            unit="×",
            at_least=5,
        )
    ]


@measure("batch-enqueue", "slatedb")
async def batch_enqueue(run: Run, engine: str) -> list[Result]:
    """Batched enqueues against single ones."""
    jobs, singles = run.size(20_000, 5000), run.size(200, 100)
    async with Broker(f"{run.url(engine)}?flush_ms={_FLUSH}") as broker:

        async def in_batches() -> float:
            return jobs / await timed(enqueue(broker, jobs))

        async def one_by_one() -> float:
            async def all_of_them() -> None:
                for _ in range(singles):
                    await broker.enqueue(QUEUE, PAYLOAD)

            return singles / await timed(all_of_them())

        fast, slow = await run.in_turn(f"batch-enqueue · {engine}", run.size(5, 3), in_batches, one_by_one)
    return [
        Result(
            measure="batch-enqueue",
            engine=engine,
            description="enqueue_many of 1,000 vs one by one",
            figures=f"{rate(median(fast))} vs {rate(median(slow))}",
            value=paired_ratio(fast, slow),
            unit="×",
            at_least=10,
        )
    ]


def _resident() -> float:
    """Return the resident memory in MiB."""
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


async def _open(store: Store) -> tuple[float, float, float]:
    """Open the store. Return seconds, seconds of CPU, and resident MiB."""
    start, used = time.perf_counter(), time.process_time()
    await store.use(retain=False)
    return time.perf_counter() - start, time.process_time() - used, _resident()


@measure("open", "slatedb")
async def opening(run: Run, engine: str) -> list[Result]:
    """Time and memory to open a large backlog."""
    many = run.size(1_000_000, 100_000)
    url = run.url(engine)
    filler = StoreProcess(url)
    with run.progress.stage(f"filling · {engine} · {many:,} pending", many) as advance:
        filler.run_with_progress(advance, fill, many, 0, "")
    filler.close()
    opener = StoreProcess(url)
    with run.progress.stage(f"open · {engine}", 1):
        took, used, resident = opener.run(_open)
    opener.close()
    return [
        Result(
            measure="open", engine=engine, description=f"opening {many:,} pending jobs",
            figures=f"{used:.1f} s of CPU", value=took * 1000, unit="ms", at_most=15_000,
        ),
        Result(
            measure="open", engine=engine, description=f"resident with {many:,} pending jobs",
            figures="after opening", value=resident, unit="MiB", at_most=1024,
        ),
    ]  # fmt: skip


# On S3, simulated by moto.


@asynccontextmanager
async def _bucket(latency: float) -> AsyncIterator[Proxy]:
    """Run a bucket behind a proxy that delays each request."""
    os.environ.update(CREDENTIALS)
    server = Server()
    try:
        server.make_bucket()
        async with proxying(server.port) as proxy:
            proxy.latency = latency
            yield proxy
    finally:
        server.close()


async def _produce(broker: Broker, per_second: int, seconds: float) -> int:
    """Enqueue at a steady rate in single calls, which share commits. Return the number of jobs."""
    calls: list[asyncio.Task[object]] = []
    start = time.perf_counter()
    total = int(per_second * seconds)
    while len(calls) < total:
        due = min(int((time.perf_counter() - start) * per_second) + 1, total)
        for _ in range(due - len(calls)):
            stamp = str(time.perf_counter_ns()).encode()
            calls.append(asyncio.ensure_future(broker.enqueue(QUEUE, stamp)))
        await asyncio.sleep(0.005)
    await asyncio.gather(*calls)
    return total


async def _consume(broker: Broker, jobs: int) -> list[float]:
    """Claim and settle the jobs, several batches at once. Return the seconds from each enqueue to its ack."""
    waits: list[float] = []

    async def work() -> None:
        while len(waits) < jobs:
            claimed = await broker.claim(QUEUE, limit=200, wait=0.5)
            await broker.settle_many([Settlement.ack(job) for job in claimed])
            now = time.perf_counter_ns()
            waits.extend((now - int(job.payload)) / 1e9 for job in claimed)

    await asyncio.gather(*(work() for _ in range(8)))
    return waits


@measure("remote", "slatedb")
async def remote(run: Run, engine: str) -> list[Result]:
    """Throughput and latency on a bucket with 50 ms per request."""
    seconds, pace = run.size(10, 4), 600
    async with _bucket(_LATENCY) as proxy:
        url = f"s3://{BUCKET}/remote?endpoint={proxy.endpoint}&flush_ms={_REMOTE_FLUSH}"
        async with Broker(url, config=BrokerConfig()) as broker:
            proxy.took.clear()
            with run.progress.stage(f"remote · {engine} · {pace}/s", 1):
                start = time.perf_counter()
                _, waits = await asyncio.gather(
                    _produce(broker, pace, seconds), _consume(broker, int(pace * seconds))
                )
                took = time.perf_counter() - start
    request = median(proxy.took)
    return [
        Result(
            measure="remote", engine=engine, description="enqueued, claimed and acked at 50 ms per request",
            figures=f"{pace}/s enqueued for {seconds} s", value=len(waits) / took, unit="/s", at_least=500,
        ),
        Result(
            measure="remote", engine=engine, description="enqueue to ack, p50; bound: 4 flushes + a request",
            figures=f"p99 {millis(percentile(waits, 99))}, a PUT {millis(request)}",
            value=median(waits) * 1000, unit="ms", at_most=4 * _REMOTE_FLUSH + request * 1000,
        ),
    ]  # fmt: skip


@measure("requests", "slatedb")
async def requests(run: Run, engine: str) -> list[Result]:
    """Requests to the bucket per 1,000 jobs, at a steady rate."""
    results = []
    for pace in (100, 1000):
        seconds = run.size(20, 5)
        async with _bucket(0) as proxy:
            url = f"s3://{BUCKET}/requests?endpoint={proxy.endpoint}&flush_ms={_REMOTE_FLUSH}"
            async with Broker(url) as broker:
                await broker.enqueue_many([NewJob("other")])
                proxy.requests.clear()
                with run.progress.stage(f"requests · {engine} · {pace}/s", 1):
                    total, _ = await asyncio.gather(
                        _produce(broker, pace, seconds), _consume(broker, int(pace * seconds))
                    )
                counts = dict(proxy.requests)
        results += [
            Result(
                measure="requests", engine=engine, description=f"{method}s for 1,000 jobs at {pace}/s",
                figures=f"{counts.get(method, 0):,} for {total:,}",
                value=counts.get(method, 0) * 1000 / total, unit="",
            )
            for method in ("PUT", "GET")
        ]  # fmt: skip
    return results
