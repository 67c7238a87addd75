"""Latency at offered loads, the cost of a job there, and a hundred producers, against the peers."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from benchmarks.open_loop import GRACE, arrivals, since, window_p99s
from benchmarks.peers.node import Missing
from benchmarks.processes import Child, start_child
from benchmarks.results import Result, millis, number, paired_ratio, percentile, rate
from benchmarks.run import ENGINES, Run, measure
from benchmarks.server import query_sql, run_sql
from tests.engines.slatedb.s3 import BUCKET, CREDENTIALS, Server
from tests.support.servers.redis import client

LOADS = (100, 500, 2000)
COSTED = 500
"""The load at which the cost of a job is measured."""

WARM_UP = 1
"""Seconds of the load that are not counted."""

_PYTHON_PEERS = {
    "postgres": ("awa", "pgqueuer", "procrastinate"),
    "redis": ("dramatiq", "taskiq"),
    "sqlite": ("huey",),
}
_NODE_PEERS = {"postgres": "graphile-worker", "redis": "bullmq"}
_NAMES = {
    "dayjob": "defaults", "dayjob-tuned": "tuned", "awa": "awa", "bullmq": "BullMQ", "dramatiq": "Dramatiq",
    "graphile-worker": "graphile-worker", "huey": "Huey", "pgqueuer": "PgQueuer",
    "procrastinate": "Procrastinate", "taskiq": "TaskIQ",
}  # fmt: skip
_PACKAGES = {"awa": "awa-pg"}
_STATEMENT = re.compile(rb"LOG:  (?:statement|execute [^:]*):")


class Library(Struct, frozen=True):
    """A library on an engine: how one side of its load is started."""

    name: str
    start: Callable[[str, str, int], Child]
    """Start a process by the kind, the URL and the number of ``benchmarks.load``."""


def _libraries(run: Run, engine: str) -> list[Library]:
    """Return dayjob with its defaults, dayjob tuned, then the peers of the engine."""
    names = ["dayjob"]
    if engine in _PYTHON_PEERS:
        names += ["dayjob-tuned", *_PYTHON_PEERS[engine]]
    for peer in names[2:]:
        if find_spec(peer) is None:
            raise SystemExit(f"this measure compares with {_NAMES[peer]}: run  make bench")

    def python(library: str) -> Library:
        peer = "" if library.startswith("dayjob") else f" {version(_PACKAGES.get(library, library))}"
        start = lambda kind, url, number: start_child("benchmarks.load", kind, url, number, library)  # noqa: E731
        return Library(_NAMES[library] + peer, start)

    found = [python(name) for name in names]
    if library := _NODE_PEERS.get(engine):
        try:
            node = run.node()
        except Missing as reason:
            run.progress.print(f"{engine} · without {_NAMES[library]}: {reason}")
        else:
            name = f"{_NAMES[library]} {node.version(library)}"
            found.append(Library(name, partial(_start_node, node.load, library)))
    return found


def _start_node(load: Callable[..., Child], library: str, kind: str, url: str, number: int) -> Child:
    return load(kind, url, number, library)


@contextmanager
def _store(run: Run, engine: str, library: Library) -> Iterator[str]:
    """Create an empty store for one turn, and yield its URL for the library."""
    if engine == "postgres":
        with run.server.database() as url:
            yield url
    elif engine == "redis":
        with client(run.redis().url) as connection:
            connection.flushall()
        yield str(run.redis().socket) if library.name.startswith("BullMQ") else run.redis().url
    elif library.name.startswith("Huey"):
        yield run.file("huey")
    elif engine == "sqlite" and library.name == "tuned":
        yield run.url(engine) + "?synchronous=normal"
    else:
        yield run.url(engine)


@contextmanager
def _bucket() -> Iterator[str]:
    """Run an S3 server, and yield the URL of an empty store on it."""
    os.environ.update(CREDENTIALS)
    server = Server()
    try:
        server.make_bucket()
        yield f"s3://{BUCKET}/load?endpoint=http://127.0.0.1:{server.port}"
    finally:
        server.close()


class Load(Struct, frozen=True):
    """The latencies of a load, in seconds, and the memory of both sides."""

    start: Sequence[float]
    settled: Sequence[float]
    windows: Sequence[float]
    """The p99 from enqueue to start in each second."""
    sides: dict[str, float]
    """The latency of the enqueues and the memory of producer and worker."""
    jobs: int
    """All jobs, those of the warm-up included."""
    rate: float
    """Jobs per second that were started."""

    @property
    def falls_behind(self) -> bool:
        return math.isinf(percentile(self.start, 99))


def offer(library: Library, url: str, load: int, seconds: int, before: Callable[[], None]) -> Load:
    """Offer a load to a worker. Producer and worker are two processes, or one if only one can open the store.

    ``before`` is called when both have started.
    """
    due = arrivals(load, WARM_UP + seconds)
    single = url.startswith(("memory:", "file:", "s3:"))
    with library.start("both" if single else "work", url, len(due)) as worker:
        worker.wait_until_ready()
        with _producer(None if single else library, worker, url) as producer:
            before()
            begin = time.perf_counter() + 0.3
            stamps = [begin + moment for moment in due]
            if not single:
                worker.send(f"{stamps[-1] + GRACE}")
            producer.send(" ".join(map(str, stamps)))
            found: dict[str, Any] = {} if single else {**producer.answer()}
        found |= worker.answer()
    counted = begin + WARM_UP
    offered = sum(stamp >= counted for stamp in stamps)
    started, settled = found.pop("started"), found.pop("settled")
    return Load(
        start=since(counted, offered, started),
        settled=since(counted, offered, settled) if settled else [],
        windows=window_p99s(counted, started),
        sides=found,
        jobs=len(due),
        rate=len(started) / (max((moment for _, moment in started), default=math.inf) - begin),
    )


@contextmanager
def _producer(library: Library | None, worker: Child, url: str) -> Iterator[Child]:
    """Start a producer, or yield the worker, which produces by itself."""
    if library is None:
        yield worker
        return
    with library.start("produce", url, 0) as producer:
        producer.wait_until_ready()
        yield producer


def _p50_p99(values: Sequence[float]) -> str:
    return f"p50 {millis(percentile(values, 50))}, p99 {millis(percentile(values, 99))}"


def latency_result(measure: str, engine: str, described: str, found: Load) -> Result:
    """Return the p99 from enqueue to start, or the rate of a worker that falls behind the load."""
    if found.falls_behind:
        return Result(
            measure=measure, engine=engine, description=f"{described}: falls behind, started",
            figures="", value=found.rate, unit="/s",
        )  # fmt: skip
    figures = [f"p50 {millis(percentile(found.start, 50))}"]
    if found.settled:
        figures.append(f"settled {_p50_p99(found.settled)}")
    figures.append(f"enqueued p50 {millis(found.sides['enqueue-p50'])}")
    return Result(
        measure=measure, engine=engine, description=f"{described}: enqueue to start, p99",
        figures="; ".join(figures), value=percentile(found.start, 99) * 1000, unit="ms",
    )  # fmt: skip


@measure("offered-load", *ENGINES)
async def offered_load(run: Run, engine: str) -> list[Result]:
    """Latency at loads of 100, 500 and 2,000 jobs/s, the cost of a job, and memory, against the peers."""
    run.close_stores()
    seconds = run.size(4, 2)
    results: list[Result] = []
    stores: list[tuple[str, Library, Callable[[], AbstractContextManager[str]]]] = [
        ("", library, partial(_store, run, engine, library)) for library in _libraries(run, engine)
    ]
    if engine == "slatedb":
        stores = [("folder, ", *stores[0][1:]), ("S3 (moto), ", stores[0][1], _bucket)]
    with run.progress.stage(f"offered-load · {engine}", len(stores) * len(LOADS)) as advance:
        for where, library, store in stores:
            for load in LOADS:
                with store() as url:
                    cost = _cost(run, engine, url, load)
                    found = offer(library, url, load, seconds, cost.begin)
                    described = f"{where}{library.name}, {load:,}/s"
                    results.append(latency_result("offered-load", engine, described, found))
                    if load == COSTED and not found.falls_behind:
                        results += cost.results(where + library.name, found.jobs)
                        results.append(_memory(engine, where + library.name, found.sides))
                advance(1)
    return results


def _memory(engine: str, name: str, sides: dict[str, float]) -> Result:
    producer = (
        f"{number(sides['producer-mib'])} MiB of the producer"
        if "producer-mib" in sides
        else "with the producer"
    )
    return Result(
        measure="offered-load", engine=engine, description=f"{name}, {COSTED:,}/s: memory of the worker",
        figures=producer, value=sides["worker-mib"], unit="MiB",
    )  # fmt: skip


class Cost:
    """The cost of a load on a server without counters: none."""

    def begin(self) -> None:
        """Read the counters before the load."""

    def results(self, name: str, jobs: int) -> list[Result]:
        """Return the growth of the counters per job."""
        return []


class PostgresCost(Cost):
    """WAL, commits and statements per job. Those of idle processes are included."""

    def __init__(self, url: str, log: Path | None) -> None:
        self._url = url
        self._log = log
        if log is not None:  # it counts the statements; sessions that start from now on write to it
            run_sql(url, f"ALTER DATABASE {urlsplit(url).path[1:]} SET log_statement = 'all'")

    def begin(self) -> None:
        self._before = self._read()

    def _read(self) -> tuple[float, float, int]:
        wal, commits = query_sql(
            self._url,
            """SELECT ARRAY[pg_current_wal_lsn() - '0/0', xact_commit]::float8[]
            FROM pg_stat_database WHERE datname = current_database()""",
        )
        return wal, commits, len(_STATEMENT.findall(self._log.read_bytes())) if self._log else 0

    def results(self, name: str, jobs: int) -> list[Result]:
        after = self._read()
        wal, commits, statements = ((new - old) / jobs for new, old in zip(after, self._before, strict=True))
        counted = f"{number(commits)} commits" + (f", {number(statements)} statements" if self._log else "")
        return [
            Result(
                measure="offered-load", engine="postgres", description=f"{name}, {COSTED:,}/s: WAL per job",
                figures=counted, value=wal, unit="bytes",
            )
        ]  # fmt: skip


class RedisCost(Cost):
    """Commands per job, those of scripts included, and reads: requests that came together count once."""

    def __init__(self, url: str) -> None:
        self._url = url

    def begin(self) -> None:
        self._before = self._read()

    def _read(self) -> tuple[int, int]:
        with client(self._url) as connection:
            stats = connection.info("stats")
        return stats["total_commands_processed"], stats["total_reads_processed"]

    def results(self, name: str, jobs: int) -> list[Result]:
        commands, reads = ((new - old) / jobs for new, old in zip(self._read(), self._before, strict=True))
        return [
            Result(
                measure="offered-load", engine="redis",
                description=f"{name}, {COSTED:,}/s: commands per job",
                figures=f"{number(reads)} reads from a socket", value=commands, unit="",
            )
        ]  # fmt: skip


def _cost(run: Run, engine: str, url: str, load: int) -> Cost:
    if load == COSTED and engine == "postgres":
        return PostgresCost(url, run.server.log)
    if load == COSTED and engine == "redis":
        return RedisCost(run.redis().url)
    return Cost()


@measure("steady-load", "postgres")
async def steady_load(run: Run, engine: str) -> list[Result]:
    """The worst second within a minute at 500 jobs/s, in which autovacuum runs several times."""
    run.close_stores()
    seconds = run.size(70, 15)
    (library, *_) = _libraries(run, engine)
    with run.progress.stage(f"steady-load · {engine} · {seconds} s", 1), run.server.database() as url:
        cost = PostgresCost(url, run.server.log)
        found = offer(library, url, COSTED, seconds, cost.begin)
        costs = cost.results(library.name, found.jobs)
        vacuums = query_sql(
            url, "SELECT sum(autovacuum_count)::int FROM pg_stat_user_tables WHERE relname = 'jobs'"
        )
    slow = sum(value > 0.1 for value in found.windows)
    return [
        latency_result("steady-load", engine, f"{library.name}, {COSTED:,}/s", found),
        Result(
            measure="steady-load", engine=engine,
            description=f"{library.name}, {COSTED:,}/s: highest p99 of a second",
            figures=f"{slow} of {len(found.windows)} above 100 ms; {vacuums} autovacuums of the jobs' table",
            value=max(found.windows) * 1000, unit="ms", at_most=100,
        ),
        *(
            Result(
                measure="steady-load", engine=engine, description=each.description, figures=each.figures,
                value=each.value, unit=each.unit,
            )
            for each in costs
        ),
    ]  # fmt: skip


@measure("many-producers", "sqlite", "postgres", "redis", "slatedb")
async def many_producers(run: Run, engine: str) -> list[Result]:
    """Enqueues of a hundred producers in one process that each await, against the peers."""
    run.close_stores()
    seconds = run.size(2, 1)
    # The tuned settings concern the worker, except on SQLite.
    libraries = [each for each in _libraries(run, engine) if engine == "sqlite" or each.name != "tuned"]
    calls: dict[str, list[dict[str, float]]] = {library.name: [] for library in libraries}

    def turn(library: Library) -> Callable[[], Any]:
        async def produce() -> float:
            with _store(run, engine, library) as url, library.start("producers", url, seconds) as child:
                found = child.answer()
            calls[library.name].append(found)
            return found["rate"]

        return produce

    rates = await run.in_turn(f"many-producers · {engine}", run.size(2, 1), *map(turn, libraries))

    def timed(library: Library) -> str:
        found = calls[library.name][1:]  # the first warmed up
        return ", ".join(f"{name} {millis(median(each[name] for each in found))}" for name in ("p50", "p99"))

    ours, *others = zip(libraries, rates, strict=True)
    results = [
        Result(
            measure="many-producers", engine=engine,
            description="100 producers that each await, defaults",
            figures=timed(ours[0]), value=median(ours[1]), unit="/s",
        )
    ]  # fmt: skip
    return results + [
        Result(
            measure="many-producers", engine=engine,
            description=f"100 producers that each await, defaults vs {library.name}",
            figures=f"{rate(median(ours[1]))} vs {rate(median(theirs))}, {timed(library)}",
            value=paired_ratio(ours[1], theirs), unit="×",
        )
        for library, theirs in others
    ]  # fmt: skip
