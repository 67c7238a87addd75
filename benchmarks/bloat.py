"""The cost of a busy queue's dead rows: time while another transaction prevents their removal, and space."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.fleet import STEADY_RATE
from benchmarks.processes import run_child, start_child
from benchmarks.results import Result, rate
from benchmarks.run import Run, measure
from benchmarks.server import connection

_FLEET = "benchmarks.fleet"

_FASTEST = 25_000
"""The backlog lasts for this many jobs per second. A faster worker is measured until the backlog ends."""

_GROWTH = 1.5
"""Without vacuum, tables would grow to more than three times their size between the first 300,000 jobs and
1,000,000. With it, they hold the rows that die between and during two vacuums. That amount depends on the
rate, so the rate is steady, and is reached after two or three vacuums, hence the first jobs."""


@asynccontextmanager
async def _snapshot(url: str) -> AsyncIterator[None]:
    """Hold a transaction open whose snapshot prevents the removal of dead rows."""
    async with connection(url) as database:
        await database.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await database.execute("SELECT count(*) FROM pg_class")
        yield
        await database.execute("ROLLBACK")


@measure("foreign-snapshot", "postgres")
async def foreign_snapshot(run: Run, engine: str) -> list[Result]:
    """Throughput of a worker while another transaction holds a snapshot open."""
    run.close_stores()
    seconds = run.size(60, 10)
    trend = {}

    async def drain(*, under_snapshot: bool) -> float:
        with run.server.database() as url:
            run_child(_FLEET, "fill", url, seconds * _FASTEST)
            with start_child(_FLEET, "drain-for", url, seconds) as worker:
                worker.wait_until_ready()
                if under_snapshot:
                    async with _snapshot(url):
                        worker.go()
                        found = worker.answer()
                else:
                    worker.go()
                    found = worker.answer()
        trend[under_snapshot] = found["last"] / found["first"]
        return found["rate"]

    with run.progress.stage(f"foreign-snapshot · {engine} · {seconds} s each", 3) as advance:
        before = await drain(under_snapshot=False)
        advance(1)
        under = await drain(under_snapshot=True)
        advance(1)
        after = await drain(under_snapshot=False)
        advance(1)
    without = (before + after) / 2
    return [
        Result(
            measure="foreign-snapshot",
            engine=engine,
            description=f"a {seconds} s drain with a foreign snapshot vs without",
            figures=f"{rate(under)} vs {rate(before)} before and {rate(after)} after",
            value=under / without,
            unit="×",
            at_least=0.5,
        ),
        Result(
            measure="foreign-snapshot",
            engine=engine,
            description="last sixth vs first sixth, with the snapshot open",
            figures=f"{trend[False]:.2f}× without",
            value=trend[True],
            unit="×",
        ),
    ]


@measure("bloat", "postgres")
async def bloat(run: Run, engine: str) -> list[Result]:
    """Size of tables and indexes while jobs pass through a steady backlog at a steady rate."""
    run.close_stores()
    jobs, first = run.size(1_000_000, 500_000), 300_000
    with (
        run.server.database() as url,
        run.progress.stage(f"bloat · {engine} · {jobs:,} jobs, {STEADY_RATE:,} a second", 1),
    ):
        found = run_child(_FLEET, "churn", url, jobs, first)
    return [
        Result(
            measure="bloat",
            engine=engine,
            description=f"tables and indexes after {jobs:,} jobs vs after {first:,}",
            figures=f"{found['all']:.1f} MiB vs {found['first']:.1f} MiB, {rate(found['rate'])}",
            value=found["all"] / found["first"],
            unit="×",
            at_most=_GROWTH,
        )
    ]
