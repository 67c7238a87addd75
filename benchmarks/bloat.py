"""What a busy queue's dead rows cost: time, while a foreign snapshot keeps them all, and space."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.findings import Finding, rate
from benchmarks.fleet import BACKLOG
from benchmarks.processes import ask, python
from benchmarks.run import Run, measure
from benchmarks.server import connection

_FLEET = "benchmarks.fleet"

_FASTEST = 25_000
"""Jobs per second that the backlog must last for; a faster worker is measured until it runs out."""

_GROWTH = 3.0
"""Tables that are never cleaned up grow with the number of jobs: to ten times their size between the first
100,000 and 1,000,000. Those that are hold what dies between two visits of autovacuum and during one, however
many jobs there were; how much that is when the first size is taken is chance, hence the room."""


@asynccontextmanager
async def _snapshot(url: str) -> AsyncIterator[None]:
    """A foreign transaction that sees the database as it is now, and forbids to remove what it sees."""
    async with connection(url) as database:
        await database.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await database.execute("SELECT count(*) FROM pg_class")
        yield
        await database.execute("ROLLBACK")


@measure("foreign-snapshot", "postgres")
async def foreign_snapshot(run: Run, engine: str) -> list[Finding]:
    """A worker while a foreign transaction stays open."""
    run.close_sides()
    seconds = run.size(60, 10)
    trend = {}

    async def drain(*, under_snapshot: bool) -> float:
        with run.server.database() as url:
            ask(_FLEET, "fill", url, seconds * _FASTEST)
            with python(_FLEET, "drain-for", url, seconds) as worker:
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

    with run.screen.stage(f"foreign-snapshot · {engine} · {seconds} s each", 3) as advance:
        before = await drain(under_snapshot=False)
        advance(1)
        under = await drain(under_snapshot=True)
        advance(1)
        after = await drain(under_snapshot=False)
        advance(1)
    without = (before + after) / 2
    return [
        Finding(
            measure="foreign-snapshot",
            engine=engine,
            what=f"a {seconds} s drain while a foreign snapshot is open vs without",
            figures=f"{rate(under)} vs {rate(before)} before and {rate(after)} after",
            value=under / without,
            unit="×",
            at_least=0.5,
        ),
        Finding(
            measure="foreign-snapshot",
            engine=engine,
            what="its last sixth vs its first, the snapshot open",
            figures=f"{trend[False]:.2f}× without",
            value=trend[True],
            unit="×",
        ),
    ]


@measure("bloat", "postgres")
async def bloat(run: Run, engine: str) -> list[Finding]:
    """The size of tables and indexes while jobs pass through a steady backlog."""
    run.close_sides()
    jobs, first = run.size(1_000_000, 300_000), run.size(100_000, 50_000)
    with (
        run.server.database() as url,
        run.screen.stage(f"bloat · {engine} · {jobs:,} jobs through a backlog of {BACKLOG:,}", 1),
    ):
        found = ask(_FLEET, "churn", url, jobs, first)
    return [
        Finding(
            measure="bloat",
            engine=engine,
            what=f"tables and indexes after {jobs:,} jobs vs after {first:,}",
            figures=f"{found['all']:.1f} MiB vs {found['first']:.1f} MiB, {rate(found['rate'])}",
            value=found["all"] / found["first"],
            unit="×",
            at_most=_GROWTH,
        )
    ]
