"""One producer that awaits each enqueue, and latency across processes, against the peers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.processes import run_child
from benchmarks.redis_workers import bullmq
from benchmarks.results import Result, millis, paired_ratio, rate
from benchmarks.run import Run, measure
from tests.support.servers.redis import client

_PRODUCER = "benchmarks.producer"
_NORMAL = "?synchronous=normal"


def _child(kind: str, store: Callable[[], str], number: int, value: str) -> Callable[[], Awaitable[float]]:
    async def run() -> float:
        return run_child(_PRODUCER, kind, store(), number)[value]

    return run


def _enqueues(
    engine: str, description: str, found: list[float], theirs: list[float], least: float | None
) -> Result:
    return Result(
        measure=f"{engine}-enqueue",
        engine=engine,
        description=f"enqueues of one producer that awaits each{description}",
        figures=f"{rate(median(found))} vs {rate(median(theirs))}",
        value=paired_ratio(found, theirs),
        unit="×",
        at_least=least,
    )


@measure("sqlite-enqueue", "sqlite")
async def sqlite_enqueue(run: Run, engine: str) -> list[Result]:
    """Enqueues of one producer that awaits each, synced and not, against Huey."""
    jobs = run.size(1000, 200)
    synced, normal, huey, huey_off = await run.in_turn(
        "sqlite-enqueue",
        run.size(9, 5),
        _child("dayjob", lambda: run.url(engine), jobs, "rate"),
        _child("dayjob", lambda: run.url(engine) + _NORMAL, jobs, "rate"),
        _child("huey", lambda: run.file("huey"), jobs, "rate"),
        _child("huey", lambda: run.file("huey-off"), jobs, "rate"),
    )
    return [
        _enqueues(engine, ", synced, vs Huey", synced, huey, None),
        _enqueues(engine, ", synchronous=normal, vs Huey", normal, huey, 1.0),
        _enqueues(engine, ", synchronous=normal, vs Huey, fsync=False", normal, huey_off, None),
    ]


@measure("sqlite-latency", "sqlite")
async def sqlite_latency(run: Run, engine: str) -> list[Result]:
    """Latency from an enqueue in another process to the start on an idle worker, against Huey."""
    jobs = run.size(100, 50)
    synced, normal, huey, huey_off = await run.in_turn(
        "sqlite-latency",
        run.size(9, 5),
        _child("dayjob-latency", lambda: run.url(engine), jobs, "p50"),
        _child("dayjob-latency", lambda: run.url(engine) + _NORMAL, jobs, "p50"),
        _child("huey-latency", lambda: run.file("huey"), jobs, "p50"),
        _child("huey-latency", lambda: run.file("huey-off"), jobs, "p50"),
    )
    return [
        Result(
            measure="sqlite-latency",
            engine=engine,
            description=f"enqueue to start from another process, {text}, p50 vs Huey's",
            figures=f"{millis(median(found))} vs {millis(median(theirs))}",
            value=paired_ratio(found, theirs),
            unit="×",
            at_most=1.0,
        )
        for text, found, theirs in (
            ("synced", synced, huey),
            ("synchronous=normal", normal, huey_off),
        )
    ]


@measure("redis-enqueue", "redis")
async def redis_enqueue(run: Run, engine: str) -> list[Result]:
    """Enqueues of one producer that awaits each, against Dramatiq and BullMQ."""
    jobs = run.size(3000, 500)

    def empty() -> str:
        with client(run.redis().url) as connection:
            connection.flushall()
        return run.redis().url

    with TemporaryDirectory(prefix="dayjob-bullmq-") as folder:
        node = bullmq(run, Path(folder), "enqueue", jobs)
        found, *peers = await run.in_turn(
            "redis-enqueue",
            run.size(9, 5),
            _child("dayjob", lambda: run.url(engine), jobs, "rate"),
            _child("dramatiq", empty, jobs, "rate"),
            *([node] if node else []),
        )
    return [
        _enqueues(engine, f" vs {name}", found, theirs, 1.0)
        for name, theirs in zip(("Dramatiq", "BullMQ"), peers, strict=False)
    ]
