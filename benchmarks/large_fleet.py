"""Hundreds of workers on one server: their cost while idle, their looks for a job, and outages."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from statistics import median
from typing import Any
from urllib.parse import parse_qs, urlsplit

from benchmarks.fleet_members import STOP
from benchmarks.processes import Child, start_child
from benchmarks.results import Result, millis, number, paired_ratio, percentile, rate
from benchmarks.run import Run, measure
from benchmarks.server import connection, query_sql
from dayjob import App
from tests.support.servers.redis import client

_MEMBERS = "benchmarks.fleet_members"
_PROCESSES = 4
_LEADER = 10.0
"""Transactions a second that the leader may send for its duties."""

_PERIOD = 90
"""Seconds in which each interval of an idle worker ends a whole number of times: all begin together."""

_SETTLED = 65.0
"""Seconds until the connections of the start are closed, and each worker has read the lead."""


@contextmanager
def _fleet(run: Run, url: str, size: int) -> Iterator[list[Child]]:
    """Run that many workers in few processes."""
    each = size // _PROCESSES
    with ExitStack() as stack:
        children = [
            stack.enter_context(start_child(_MEMBERS, "workers", url, each, process * each))
            for process in range(_PROCESSES)
        ]
        for child in children:
            child.wait_until_ready()
        yield children
        for child in children:
            child.send(STOP)
        for child in children:
            child.answer()


class _Load:
    """The work of a server for its clients so far."""

    def __init__(self, engine: str, url: str) -> None:
        self.at = time.perf_counter()
        if engine == "postgres":
            count = "SELECT count(*)::int FROM pg_stat_activity WHERE application_name LIKE 'dayjob%'"
            total = (
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            )
            self.connections = query_sql(url, f"{count} AND datname = current_database()")
            self.transactions = query_sql(url, total)
        else:
            with client(url) as connection:
                names = [each["name"] for each in connection.client_list()]
                self.connections = names.count("dayjob")
                self.transactions = connection.info("stats")["total_commands_processed"]


@measure("fleet-idle", "postgres", "redis")
async def fleet_idle(run: Run, engine: str) -> list[Result]:
    """The cost of idle workers for their server, the leader and its duties included.

    PostgreSQL also counts transactions of its own: of autovacuum, after which each idle session reads the
    invalidated entries of its caches again.
    """
    size, seconds = run.size(300, 40), run.size(_PERIOD, 30)
    url = run.url(engine)
    with run.progress.stage(f"fleet-idle · {engine} · {size} workers", 1), _fleet(run, url, size):
        await asyncio.sleep(_SETTLED)
        before = _Load(engine, url)
        await asyncio.sleep(seconds)
        after = _Load(engine, url)
    transactions = (after.transactions - before.transactions) / (after.at - before.at) / size
    connections = after.connections / size
    unit = "transactions" if engine == "postgres" else "commands"
    return [
        Result(
            measure="fleet-idle", engine=engine, description=f"connections of an idle worker, of {size}",
            figures=f"{after.connections} in all", value=connections, unit="", at_most=2 + _LEADER / size,
        ),
        Result(
            measure="fleet-idle", engine=engine, description=f"{unit} a second of an idle worker, of {size}",
            figures=f"{transactions * size:.0f}/s in all", value=transactions, unit="",
            at_most=0.3 + _LEADER / size if engine == "postgres" else None,
        ),
    ]  # fmt: skip


@contextmanager
def _tree(url: str, size: int) -> Iterator[None]:
    """Run ``dayjob worker`` with that many processes."""
    command = [sys.executable, "-m", "dayjob", "worker", "benchmarks.idle_app:app", "--processes", str(size)]
    environment = os.environ | {"BENCHMARK_URL": url}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@measure("fleet-tree", "postgres", "redis")
async def fleet_tree(run: Run, engine: str) -> list[Result]:
    """The cost of one idle process tree, whose workers share a heartbeat. It includes the leader."""
    size, seconds = run.size(16, 8), run.size(_PERIOD, 30)
    url = run.url(engine)
    with run.progress.stage(f"fleet-tree · {engine} · {size} processes", 1), _tree(url, size):
        await asyncio.sleep(_SETTLED)
        before = _Load(engine, url)
        await asyncio.sleep(seconds)
        after = _Load(engine, url)
    calls = (after.transactions - before.transactions) / (after.at - before.at)
    unit = "transactions" if engine == "postgres" else "commands"
    return [
        Result(
            measure="fleet-tree", engine=engine,
            description=f"{unit} a second of an idle tree of {size} processes",
            figures=f"{after.connections} connections", value=calls, unit="/s",
            at_most=5 + 0.15 * size if engine == "postgres" else None,
        )
    ]  # fmt: skip


def _answers(children: list[Child]) -> tuple[float, list[float]]:
    """Return the looks so far, and the waits of the jobs."""
    for child in children:
        child.send("count")
    answers: list[Any] = [child.receive() for child in children]
    return sum(each["claims"] for each in answers), [wait for each in answers for wait in each["waits"]]


async def _commit_rate(app: App, seconds: float) -> float:
    """Return the jobs per second of a producer that awaits each enqueue, into a queue without workers."""
    task = app.tasks["noop"].using(queue="none")
    await task.aenqueue(0)
    count, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds:
        await task.aenqueue(0)
        count += 1
    return count / (time.perf_counter() - begun)


@asynccontextmanager
async def _producer(url: str) -> AsyncIterator[App]:
    app = App(url)

    async def noop(number: int) -> None: ...

    async def wait(stamp: float) -> None: ...

    app.task(name="noop")(noop)
    app.task(name="wait")(wait)
    async with app:
        yield app


@measure("fleet-wake", "postgres", "redis")
async def fleet_wake(run: Run, engine: str) -> list[Result]:
    """Looks of an idle fleet for each single job, and the latency of these jobs."""
    size, jobs = run.size(300, 40), run.size(40, 20)
    url = run.url(engine)
    text = f"fleet-wake · {engine} · {size} workers · {jobs} jobs"
    async with _producer(url) as app:
        with run.progress.stage(text, 1), _fleet(run, url, size) as children:
            await asyncio.sleep(_SETTLED)
            first, _ = _answers(children)
            begun = time.perf_counter()
            await asyncio.sleep(10)
            looks, _ = _answers(children)
            idle = (looks - first) / (time.perf_counter() - begun)
            begun = time.perf_counter()
            for _ in range(jobs):
                await app.tasks["wait"].aenqueue(time.perf_counter())
                await asyncio.sleep(0.3)
            await asyncio.sleep(0.5)
            after, waits = _answers(children)
            per_job = (after - looks - idle * (time.perf_counter() - begun)) / jobs
    return [
        Result(
            measure="fleet-wake", engine=engine, description=f"looks of {size} workers for a single job",
            figures=f"{jobs} jobs, latency p50 {millis(median(waits))}, p99 {millis(percentile(waits, 99))}",
            value=per_job, unit="", at_most=25,
        )
    ]  # fmt: skip


@asynccontextmanager
async def _listeners(url: str, count: int) -> AsyncIterator[None]:
    """Open sessions that listen, as those of workers on other machines: their reading takes no time here."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            session = await stack.enter_async_context(connection(url))
            await session.execute("SET application_name = 'dayjob listener'")
            await session.execute('LISTEN "dayjob dayjob"')
            session._transport.pause_reading()
            stack.callback(session._transport.resume_reading)
        yield


@measure("fleet-notify", "postgres")
async def fleet_notify(run: Run, engine: str) -> list[Result]:
    """A producer that awaits each enqueue, beside hundreds of listening sessions, and alone."""
    count, seconds = run.size(400, 100), run.size(5, 2)
    url = run.url(engine)
    async with _producer(url) as app:

        async def alone() -> float:
            return await _commit_rate(app, seconds)

        async def beside() -> float:
            async with _listeners(url, count), _producer(url) as other:
                for _ in range(50):  # The listeners are counted.
                    await other.tasks["noop"].using(queue="none").aenqueue(0)
                return await _commit_rate(other, seconds)

        ones, others = await run.in_turn(f"fleet-notify · {count} listeners", run.size(3, 1), beside, alone)
    return [
        Result(
            measure="fleet-notify", engine=engine,
            description=f"a producer beside {count} listeners, and alone",
            figures=f"{rate(median(ones))}, {rate(median(others))}",
            value=paired_ratio(ones, others), unit="×", at_least=0.5,
        )
    ]  # fmt: skip


def _socket_of(run: Run, engine: str) -> str:
    if engine == "redis":
        return str(run.redis().socket)
    return f"{parse_qs(urlsplit(run.server.url).query)['host'][0]}/.s.PGSQL.5432"


class _Gateway:
    """Forwards connections to the server, or counts the attempts and closes them."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self.attempts = 0
        self.outage = False
        self._writers: set[asyncio.StreamWriter] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.outage:
            self.attempts += 1
            writer.transport.abort()
            return
        there, to_server = await asyncio.open_unix_connection(self._socket)
        self._writers |= {writer, to_server}
        await asyncio.gather(_copy(reader, to_server), _copy(there, writer))

    def begin_outage(self) -> None:
        self.outage = True
        for writer in self._writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except OSError:
        pass
    writer.close()


@measure("fleet-outage", "postgres", "redis")
async def fleet_outage(run: Run, engine: str) -> list[Result]:
    """Connection attempts of worker processes while their server is gone."""
    seconds = run.size(30, 15)
    gateway = _Gateway(_socket_of(run, engine))
    url = run.url(engine)
    server = await asyncio.start_server(gateway.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    parts = urlsplit(url)
    if engine == "redis":
        through = f"redis://127.0.0.1:{port}/0?{parts.query}"
    else:
        through = f"postgresql://{parts.username}:x@127.0.0.1:{port}{parts.path}?sslmode=disable"
    with run.progress.stage(f"fleet-outage · {engine}", 1), ExitStack() as stack:
        children = [
            stack.enter_context(start_child(_MEMBERS, "workers", through, 1, process))
            for process in range(_PROCESSES)
        ]
        for child in children:
            await asyncio.to_thread(child.wait_until_ready)
        gateway.begin_outage()
        await asyncio.sleep(5)
        gateway.attempts, begun = 0, time.perf_counter()
        await asyncio.sleep(seconds)
        attempts = gateway.attempts / (time.perf_counter() - begun) / _PROCESSES
        server.close()
    return [
        Result(
            measure="fleet-outage", engine=engine,
            description="connection attempts a second of a worker process in an outage",
            figures=f"{number(gateway.attempts)} of {_PROCESSES} processes in {seconds} s",
            value=attempts, unit="/s", at_most=1.0,
        )
    ]  # fmt: skip
