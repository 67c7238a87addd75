"""Throughput, latency and memory of one worker process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from statistics import median

from benchmarks.processes import run_child
from benchmarks.results import Result, millis, paired_ratio, rate
from benchmarks.run import Run, measure

_DRAINS = "benchmarks.drains"

BOUNDS = {("sqlite", "coroutine"): 4.0, ("sqlite", "thread"): 2.0, ("memory", "coroutine"): 10.0}
"""The required ratio to Huey's rate, by engine and task, without jobs that are kept."""

KEPT_BOUND = 4.0
"""The required ratio with the defaults, which keep done jobs."""

CONCURRENCIES = (100, 500, 1000, 2000)
"""The default, and settings that may be better. ``peer-drain`` compares them on PostgreSQL."""


@measure("worker-drain", "sqlite", "memory")
async def worker_drain(run: Run, engine: str) -> list[Result]:
    """Throughput of one worker on no-op tasks, against Huey on SQLite."""
    if find_spec("huey") is None:
        raise SystemExit("worker-drain compares with Huey: run  make bench, or  pip install huey")
    jobs = run.size(20_000, 4000)
    kinds = [task for known, task in BOUNDS if known == engine]

    def ours(task: str, kind: str = "drain") -> Callable[[], Awaitable[float]]:
        async def drain() -> float:
            return run_child(_DRAINS, kind, run.url(engine), jobs, task)["rate"]

        return drain

    async def theirs() -> float:
        return run_child(_DRAINS, "huey", run.file("huey"), jobs // 4)["rate"]

    by_default, *rates, peer = await run.in_turn(
        f"worker-drain · {engine}",
        run.size(5, 3),
        ours("coroutine", "drain-default"),
        *(ours(task) for task in kinds),
        theirs,
    )
    return [
        Result(
            measure="worker-drain",
            engine=engine,
            description=f"no-op {task} tasks, {how}, vs Huey on SQLite",
            figures=f"{rate(median(found))} vs {rate(median(peer))}",
            value=paired_ratio(found, peer),
            unit="×",
            at_least=bound,
        )
        for how, task, found, bound in (
            ("defaults: done jobs kept", "coroutine", by_default, KEPT_BOUND),
            *(
                ("none kept", task, found, BOUNDS[engine, task])
                for task, found in zip(kinds, rates, strict=True)
            ),
        )
    ]


@measure("worker-concurrency", "sqlite", "memory", "redis", "slatedb")
async def worker_concurrency(run: Run, engine: str) -> list[Result]:
    """Throughput of one worker on no-op tasks at the default concurrency, against the best one."""
    jobs = run.size(50_000, 8000)

    def at(concurrency: int) -> Callable[[], Awaitable[float]]:
        async def drain() -> float:
            return run_child(_DRAINS, "drain", run.url(engine), jobs, "coroutine", concurrency)["rate"]

        return drain

    default, *others = await run.in_turn(
        f"worker-concurrency · {engine}", run.size(7, 3), *map(at, CONCURRENCIES)
    )
    best = max(range(len(others)), key=lambda index: median(others[index]))
    return [
        Result(
            measure="worker-concurrency",
            engine=engine,
            description=f"no-op tasks, none kept, the default concurrency of {CONCURRENCIES[0]} vs "
            f"{CONCURRENCIES[1 + best]:,}",
            figures=f"{rate(median(default))} vs {rate(median(others[best]))}",
            value=paired_ratio(default, others[best]),
            unit="×",
            at_least=0.9,
        )
    ]


@measure("worker-observed", "sqlite")
async def worker_observed(run: Run, engine: str) -> list[Result]:
    """Throughput of a worker with metrics and tracing, against one without."""
    with run.progress.stage(f"worker-observed · {engine}", 1) as advance:
        found = run_child(_DRAINS, "observed", run.url(engine), run.size(150_000, 30_000))
        advance(1)
    return [
        Result(
            measure="worker-observed",
            engine=engine,
            description="no-op jobs with metrics and 1 % of traces vs without",
            figures=f"{rate(found['observed'])} vs {rate(found['plain'])}",
            value=found["observed"] / found["plain"],
            unit="×",
            at_least=0.85,
        )
    ]


@measure("worker-latency", "sqlite", "memory")
async def worker_latency(run: Run, engine: str) -> list[Result]:
    """Latency from enqueue to start on an idle worker in the same process."""
    jobs = run.size(200, 60)
    found = run_child(_DRAINS, "latency", run.url(engine), jobs)
    if engine == "memory":
        value, most = found["p50"] * 1000, 1.0
    else:
        value, most = found["p50"] / found["commit"], 2.0
    return [
        Result(
            measure="worker-latency",
            engine=engine,
            description="enqueue to start, same process" + ("" if engine == "memory" else ", in enqueues"),
            figures=f"p50 {millis(found['p50'])}, one enqueue {millis(found['commit'])}",
            value=value,
            unit="ms" if engine == "memory" else "×",
            at_most=most,
        )
    ]


@measure("worker-memory", "sqlite")
async def worker_memory(run: Run, engine: str) -> list[Result]:
    """Memory growth of a worker over 100,000 jobs."""
    jobs = run.size(100_000, 20_000)
    grown = run_child(_DRAINS, "growth", run.url(engine), jobs)["mib"]
    return [
        Result(
            measure="worker-memory", engine=engine,
            description=f"growth after the first tenth of {jobs:,} jobs",
            figures=f"{grown:.1f} MiB", value=grown, unit="MiB", at_most=20,
        )
    ]  # fmt: skip
