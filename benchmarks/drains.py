"""One worker process drains no-op jobs: ``python -m benchmarks.drains KIND STORE JOBS [TASK [CONCURRENCY]]``.

Prints a line of JSON. Each kind runs in its own process, so that none slows down another. The rate is
measured from the first start of a handler to the last, as for the peers.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import harmonic_mean
from threading import Event
from typing import Any

from benchmarks.child import drain_rate, starts
from dayjob import App, BrokerConfig, Limit, Retention, Worker
from dayjob.worker.process_memory import collect_less_often

TRACED = 0.01
"""The share of sampled traces, as in busy systems. A recorded span costs more than a no-op job."""

TURN = 1000
"""Jobs that one of two apps drains per turn."""


def record_start(number: int) -> None:
    starts.append(time.perf_counter())


async def record_start_async(number: int) -> None:
    starts.append(time.perf_counter())


def make_app(url: str, *, retain: bool = False) -> App:
    """Return an app that retains no finished jobs, like the peers, or one as it comes."""
    app = App(url) if retain else App(url, config=BrokerConfig(retention=Retention(done=0)))
    app.task(name="coroutine")(record_start_async)
    app.task(name="thread")(record_start)
    app.task(name="limited", limits=[Limit("bench", running=100_000)])(record_start_async)
    app.task(name="keyed", limits=[Limit("key", running=1, key=lambda number: number)])(record_start_async)
    return app


async def drain(
    url: str, jobs: int, task: str, concurrency: str = "100", *, retain: bool = False
) -> dict[str, float]:
    async with make_app(url, retain=retain) as app:
        await _fill(app, jobs, task)
        starts.clear()
        await Worker(app, concurrency=int(concurrency)).run_until_idle()
    return drain_rate(jobs)


async def drain_observed(url: str, jobs: int, task: str) -> dict[str, float]:
    """Two apps take turns, one of them with Prometheus metrics and OpenTelemetry traces.

    The turns are short, many and in one process, because the speed of a machine changes within seconds by
    more than the difference to measure. Few turns record a trace, so the total times are compared.
    """
    plain, observed = make_app(f"{url}.plain"), _observe(make_app(f"{url}.observed"))
    rates: dict[App, list[float]] = {plain: [], observed: []}
    for turn in range(jobs // TURN):
        for app in (plain, observed) if turn % 2 else (observed, plain):
            async with app:
                await _fill(app, TURN, task, batch=50)  # each call is one trace, sampled or not
                starts.clear()
                gc.collect()
                await Worker(app).run_until_idle()
            if turn:  # the first warms up
                rates[app].append(drain_rate(TURN)["rate"])
    return {"plain": harmonic_mean(rates[plain]), "observed": harmonic_mean(rates[observed])}


def _observe(app: App) -> App:
    """Add metrics, and traces of which the share ``TRACED`` is recorded."""
    import_module("dayjob.metrics").measure(app)
    sdk = import_module("opentelemetry.sdk.trace")
    export = import_module("opentelemetry.sdk.trace.export")
    memory = import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    sampling = import_module("opentelemetry.sdk.trace.sampling")
    provider = sdk.TracerProvider(sampler=sampling.ParentBasedTraceIdRatio(TRACED))
    provider.add_span_processor(export.BatchSpanProcessor(memory.InMemorySpanExporter()))
    import_module("dayjob.tracing").trace(app, provider)
    return app


async def memory_growth(url: str, jobs: int, task: str) -> dict[str, float]:
    """Return the growth of the process in MiB between a tenth of the jobs and all of them."""
    async with make_app(url) as app:
        sizes = []
        for some in (jobs // 10, jobs - jobs // 10):
            for _ in range(0, some, 5000):
                await _fill(app, 5000, task)
                await Worker(app).run_until_idle()
            sizes.append(_rss())
    return {"mib": sizes[1] - sizes[0]}


async def latency(url: str, jobs: int, task: str) -> dict[str, float]:
    """Measure from the call of ``aenqueue`` to the handler's start, on an idle worker in the same process."""
    async with make_app(url) as app:
        worker = Worker(app)
        running = asyncio.ensure_future(worker.run())
        waits, commits = [], []
        for number in range(jobs + 20):
            starts.clear()
            begun = time.perf_counter()
            handle = await app.tasks[task].aenqueue(number)
            commits.append(time.perf_counter() - begun)
            await handle.await_end(10)
            waits.append(starts[0] - begun)
            await asyncio.sleep(0.01)
        worker.stop()
        await running
    return {"p50": sorted(waits[20:])[jobs // 2], "commit": sorted(commits[20:])[jobs // 2]}


def huey(path: str, jobs: int, task: str) -> dict[str, float]:
    """Drain Huey's SQLite storage: one thread, a poll every 10 ms; jobs are deleted before they run."""
    queue = import_module("huey").SqliteHuey("bench", results=False, filename=path)
    done = Event()

    def job(number: int) -> None:
        starts.append(time.perf_counter())
        if len(starts) == jobs:
            done.set()

    enqueue = queue.task(name="noop")(job)
    for number in range(jobs):
        enqueue(number)
    consumer = queue.create_consumer(workers=1, periodic=False, initial_delay=0.01, max_delay=0.01)
    consumer.start()
    done.wait(300)
    consumer.stop(graceful=True)
    return drain_rate(jobs)


async def _fill(app: App, jobs: int, task: str, batch: int = 1000) -> None:
    for start in range(0, jobs, batch):
        await app.tasks[task].aenqueue_many([(number,) for number in range(start, min(start + batch, jobs))])


def _rss() -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


KINDS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, float]]]] = {
    "drain": drain,
    "drain-default": partial(drain, retain=True),
    "growth": memory_growth,
    "latency": latency,
    "observed": drain_observed,
}


def main(kind: str, store: str, jobs: int, task: str = "coroutine", *concurrency: str) -> dict[str, float]:
    if kind == "huey":
        return huey(store, jobs, task)
    collect_less_often()  # As ``dayjob worker`` does.
    factory = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(KINDS[kind](store, jobs, task, *concurrency))


if __name__ == "__main__":
    kind, store, jobs, *rest = sys.argv[1:]
    print(json.dumps(main(kind, store, int(jobs), *rest)))
