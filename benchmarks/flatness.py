"""Cost must not grow with the backlog, nor with the retained jobs.

Three stores are compared, each in its own process: a small one, one with a large backlog, and one with as
many retained done jobs and a small backlog.
"""

from __future__ import annotations

from statistics import median

from benchmarks.results import Result, millis, paired_ratio, percentile, rate
from benchmarks.run import ENGINES, Run, measure
from benchmarks.store_process import StoreProcess
from benchmarks.workloads import drain_and_refill, fill, time_stats

_FEW = 10_000

_MAX_STATS = {"sqlite": 10.0, "memory": 10.0, "postgres": 50.0}
"""The bound of ``stats`` in milliseconds."""


def _many(run: Run) -> int:
    return run.size(1_000_000, 100_000)


def _store(run: Run, engine: str, pending: int, done: int) -> StoreProcess:
    def make() -> StoreProcess:
        store = StoreProcess(run.url(engine))
        # A disk sync per commit would only slow down the fill.
        options = "?synchronous=normal" if engine == "sqlite" else ""
        text = f"filling · {engine} · {pending:,} pending, {done:,} done"
        with run.progress.stage(text, pending + done) as advance:
            store.run_with_progress(advance, fill, pending, done, options)
        return store

    return run.shared_store(f"{engine} {pending} {done}", make)


async def _compare(
    run: Run,
    name: str,
    engine: str,
    description: str,
    large: StoreProcess,
    *,
    retain: bool,
    slow_calls: bool = False,
) -> list[Result]:
    small = _store(run, engine, _FEW, 0)
    batches = 10
    longest: list[float] = []

    async def on_large() -> float:
        speed, long_call = large.run(drain_and_refill, batches, retain)
        longest.append(long_call)
        return speed

    async def on_small() -> float:
        return small.run(drain_and_refill, batches, retain)[0]

    large_rates, small_rates = await run.in_turn(
        f"{name} · {engine} · {description}", run.size(51, 21), on_large, on_small
    )
    results = [
        Result(
            measure=name,
            engine=engine,
            description=description,
            figures=f"{rate(median(large_rates))} vs {rate(median(small_rates))}",
            value=paired_ratio(large_rates, small_rates),
            unit="×",
            at_least=0.7,
        )
    ]
    if slow_calls:
        results.append(
            Result(
                measure=name,
                engine=engine,
                description="longest claim or ack of 100",
                figures=f"median round {millis(median(longest[1:]))}",
                value=max(longest[1:]) * 1000,
                unit="ms",
            )
        )
    return results


@measure("flat-pending", *ENGINES)
async def flat_pending(run: Run, engine: str) -> list[Result]:
    """Claim and ack with a large backlog."""
    many = _many(run)
    description = f"claim+ack with {many:,} pending vs {_FEW:,}"
    large = _store(run, engine, many, 0)
    return await _compare(run, "flat-pending", engine, description, large, retain=False, slow_calls=True)


@measure("flat-done", *ENGINES)
async def flat_done(run: Run, engine: str) -> list[Result]:
    """Claim and ack with many retained done jobs."""
    many = _many(run)
    large = _store(run, engine, _FEW, many)
    description = f"claim+ack with {many:,} done retained vs none"
    return [
        *await _compare(run, "flat-done", engine, description, large, retain=False, slow_calls=True),
        *await _compare(run, "flat-done", engine, f"{description}, acks retained too", large, retain=True),
    ]


@measure("stats", *ENGINES)
async def stats(run: Run, engine: str) -> list[Result]:
    """``stats`` on a large store."""
    many = _many(run)
    large = _store(run, engine, many, 0)
    results = []
    for every_queue, name in ((False, "stats"), (True, "all_stats, 101 queues")):
        with run.progress.stage(f"stats · {engine} · {name}", 1):
            took = large.run(time_stats, 100, every_queue)
        results.append(
            Result(
                measure="stats",
                engine=engine,
                description=f"{name}, {many:,} jobs",
                figures=f"p50 {millis(median(took))}, p99 {millis(percentile(took, 99))}",
                value=median(took) * 1000,
                unit="ms",
                at_most=_MAX_STATS[engine],
            )
        )
    return results
