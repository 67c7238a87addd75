"""The PostgreSQL engine against its peers on the same server, and the gain of concurrent producers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median

from benchmarks.peers.node import Missing
from benchmarks.processes import run_child, start_child
from benchmarks.results import Result, millis, paired_ratio, rate
from benchmarks.run import Run, measure

_FLEET = "benchmarks.fleet"
_AWA = "benchmarks.peers.awa"
_PGQUEUER = "benchmarks.peers.pgqueuer"
_PROCRASTINATE = "benchmarks.peers.procrastinate"

_CONCURRENCIES = (100, 500, 1000, 2000)
_BATCH_SIZES = (100, 500, 1000, 2000)
_LOCAL_QUEUES = (500, 2000)
_AWA_WORKERS = (100, 1024)
"""The options that set the claim size of dayjob, PgQueuer, graphile-worker and awa. Each runs with its best.

dayjob's default is the first. PgQueuer's default of 10 drains a third as fast. graphile-worker advises 500,
and awa 1,024.
"""

_PROCRASTINATE_CONCURRENCY = 10
"""It fetches jobs one by one, so a higher concurrency only adds contention."""

Variant = Callable[[], Awaitable[float]]


def _need(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise SystemExit(
                f"this measure compares with {package}: run  make bench, or  pip install {package}"
            )


def _rate(run: Run, module: str, kind: str, *arguments: object) -> Variant:
    """Return a variant that measures a rate in its own process, on a new database each time."""

    async def turn() -> float:
        with run.server.database() as url:
            return run_child(module, kind, url, *arguments)["rate"]

    return turn


@measure("peer-drain", "postgres")
async def peer_drain(run: Run, engine: str) -> list[Result]:
    """Throughput of one worker on no-op tasks, against Procrastinate, PgQueuer, awa and graphile-worker."""
    _need("awa", "pgqueuer", "procrastinate")
    run.close_stores()
    jobs, few = run.size(50_000, 10_000), run.size(20_000, 5000)

    def ours(jobs: int, concurrency: int) -> Variant:
        return _rate(run, _FLEET, "drain", jobs, concurrency)

    def pgqueuer(jobs: int, batch: int) -> Variant:
        return _rate(run, _PGQUEUER, "drain", jobs, batch)

    def awa(jobs: int, workers: int) -> Variant:
        return _rate(run, _AWA, "drain", jobs, workers)

    concurrency = await _best(run, "dayjob's concurrency", ours, few, _CONCURRENCIES)
    batch = await _best(run, "PgQueuer's batch size", pgqueuer, few, _BATCH_SIZES)
    workers = await _best(run, "awa's workers", awa, few // 4, _AWA_WORKERS)
    procrastinate = _rate(run, _PROCRASTINATE, "drain", run.size(1500, 300), _PROCRASTINATE_CONCURRENCY)
    peers: dict[str, tuple[float | None, Variant]] = {
        f"Procrastinate {version('procrastinate')}": (50.0, procrastinate),
        f"PgQueuer {version('pgqueuer')}, batches of {batch:,}": (2.0, pgqueuer(jobs, batch)),
        f"awa {version('awa-pg')}, {workers:,} workers": (None, awa(jobs // 4, workers)),
    }
    try:
        node = run.node()
    except Missing as reason:
        run.progress.print(f"peer-drain · {engine} · without graphile-worker: {reason}")
    else:

        def graphile_worker(jobs: int, size: int) -> Variant:
            async def turn() -> float:
                with run.server.database() as url:
                    return node.graphile_drain(url, jobs, size)["rate"]

            return turn

        size = await _best(run, "graphile-worker's local queue", graphile_worker, few, _LOCAL_QUEUES)
        name = f"graphile-worker {node.version('graphile-worker')}, local queue of {size:,}"
        peers[name] = (1.2, graphile_worker(jobs, size))
    default = _CONCURRENCIES[0]
    by_default, unkept, found, *others = await run.in_turn(
        f"peer-drain · {engine} · {jobs:,} jobs",
        run.size(5, 3),
        _rate(run, _FLEET, "drain-default", jobs),
        ours(jobs, default),
        ours(jobs, concurrency),
        *(turn for _, turn in peers.values()),
    )
    results = [
        Result(
            measure="peer-drain",
            engine=engine,
            description=f"no-op tasks, {how}, vs {name}",
            figures=f"{rate(median(mine))} vs {rate(median(other))}",
            value=paired_ratio(mine, other),
            unit="×",
            at_least=wanted,
        )
        for how, mine in (
            (f"defaults: concurrency {default}, done jobs kept", by_default),
            (f"concurrency {concurrency:,}, none kept", found),
        )
        for (name, (wanted, _)), other in zip(peers.items(), others, strict=True)
    ]
    of_default = Result(
        measure="peer-drain",
        engine=engine,
        description=f"no-op tasks, none kept, the default concurrency of {default} vs {concurrency:,}",
        figures=f"{rate(median(unkept))} vs {rate(median(found))}",
        value=paired_ratio(unkept, found),
        unit="×",
        at_least=0.9,
    )
    return [*results, of_default]


@measure("peer-fill", "postgres")
async def peer_fill(run: Run, engine: str) -> list[Result]:
    """One producer that awaits batches of a thousand jobs, against PgQueuer, awa and graphile-worker."""
    _need("awa", "pgqueuer")
    run.close_stores()
    jobs = run.size(50_000, 10_000)
    peers = {
        f"PgQueuer {version('pgqueuer')}": _rate(run, _PGQUEUER, "fill-rate", jobs),
        f"awa {version('awa-pg')}": _rate(run, _AWA, "fill-rate", jobs),
    }
    try:
        node = run.node()
    except Missing as reason:
        run.progress.print(f"peer-fill · {engine} · without graphile-worker: {reason}")
    else:

        async def graphile_worker() -> float:
            with run.server.database() as url:
                return node.graphile_drain(url, jobs, _LOCAL_QUEUES[-1])["fill-rate"]

        peers[f"graphile-worker {node.version('graphile-worker')}"] = graphile_worker
    ours = _rate(run, _FLEET, "fill-rate", jobs)
    found, *others = await run.in_turn(
        f"peer-fill · {engine} · {jobs:,} jobs", run.size(5, 3), ours, *peers.values()
    )
    return [
        Result(
            measure="peer-fill",
            engine=engine,
            description=f"enqueues in batches of 1,000, one producer, vs {name}",
            figures=f"{rate(median(found))} vs {rate(median(other))}",
            value=paired_ratio(found, other),
            unit="×",
            at_least=1.2,
        )
        for name, other in zip(peers, others, strict=True)
    ]


async def _best(
    run: Run, option_name: str, make: Callable[[int, int], Variant], jobs: int, options: Sequence[int]
) -> int:
    """Return the fastest option. Noise only slows down, so the best rate of each counts."""
    turns = [make(jobs, option) for option in options]
    found = await run.in_turn(f"peer-drain · choosing {option_name}", run.size(2, 1), *turns)
    speeds = {option: max(rates) for option, rates in zip(options, found, strict=True)}
    return max(speeds, key=speeds.__getitem__)


@measure("peer-enqueue", "postgres")
async def peer_enqueue(run: Run, engine: str) -> list[Result]:
    """Awaited single enqueues of one producer, against Procrastinate."""
    _need("procrastinate")
    run.close_stores()
    calls = run.size(1000, 300)
    ours, theirs = await run.in_turn(
        f"peer-enqueue · {engine} · {calls:,} calls",
        run.size(7, 3),
        _rate(run, _FLEET, "enqueue", calls),
        _rate(run, _PROCRASTINATE, "enqueue", calls),
    )
    return [
        Result(
            measure="peer-enqueue",
            engine=engine,
            description=f"awaited enqueues, one producer, vs Procrastinate {version('procrastinate')}",
            figures=f"{rate(median(ours))} vs {rate(median(theirs))}",
            value=paired_ratio(ours, theirs),
            unit="×",
            at_least=1.5,
        )
    ]


@measure("producers", "postgres")
async def producers(run: Run, engine: str) -> list[Result]:
    """A hundred producers in one process, which share commits, against one."""
    run.close_stores()
    calls, count = run.size(1000, 300), 100
    together, alone = await run.in_turn(
        f"producers · {engine}",
        run.size(7, 3),
        _rate(run, _FLEET, "producers", run.size(300, 100), count),
        _rate(run, _FLEET, "enqueue", calls),
    )
    return [
        Result(
            measure="producers",
            engine=engine,
            description=f"awaited enqueues, {count} producers in one process vs one",
            figures=f"{rate(median(together))} vs {rate(median(alone))}",
            value=paired_ratio(together, alone),
            unit="×",
            at_least=10,
        )
    ]


@measure("peer-latency", "postgres")
async def peer_latency(run: Run, engine: str) -> list[Result]:
    """Latency from enqueue to start on an idle worker in another process, against PgQueuer."""
    _need("pgqueuer")
    run.close_stores()
    jobs = run.size(100, 50)

    def wait(module: str) -> Variant:
        async def turn() -> float:
            with (
                run.server.database() as url,
                start_child(module, "listen", url, jobs) as worker,
            ):
                worker.wait_until_ready()
                with start_child(module, "call", url, jobs) as producer:
                    producer.wait_until_ready()
                    worker.go()
                    producer.go()
                    producer.answer()
                return worker.answer()["p50"]

        return turn

    ours, theirs = await run.in_turn(
        f"peer-latency · {engine} · {jobs} jobs", run.size(5, 3), wait(_FLEET), wait(_PGQUEUER)
    )
    return [
        Result(
            measure="peer-latency",
            engine=engine,
            description=f"enqueue to start, another process, p50, vs PgQueuer {version('pgqueuer')}",
            figures=f"{millis(median(ours))} vs {millis(median(theirs))}",
            value=paired_ratio(ours, theirs),
            unit="×",
            at_most=1,
        )
    ]
