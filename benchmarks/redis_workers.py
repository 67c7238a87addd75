"""The Redis engine against its peers on the same server in the same run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.processes import run_child
from benchmarks.results import Result, millis, paired_ratio, rate
from benchmarks.run import Run, measure
from dayjob import Broker, BrokerConfig, NewJob
from tests.support.servers.redis import client

_PEERS = "benchmarks.redis_peers"

PYTHON_PEERS = ("dramatiq", "taskiq")
"""The peers that acknowledge a job after its run."""


@measure("redis-drain", "redis")
async def redis_drain(run: Run, engine: str) -> list[Result]:
    """Throughput of one worker on no-op tasks, against Dramatiq, TaskIQ's stream broker and BullMQ."""
    if any(find_spec(peer) is None for peer in PYTHON_PEERS):
        raise SystemExit("redis-drain compares with Dramatiq and TaskIQ: run  make bench")
    jobs = run.size(20_000, 4000)

    def ours(kind: str) -> Callable[[], Awaitable[float]]:
        async def drain() -> float:
            return run_child("benchmarks.drains", kind, run.url(engine), jobs, "coroutine")["rate"]

        return drain

    def peer(name: str) -> Callable[[], Awaitable[float]]:
        async def drain() -> float:
            with client(run.redis().url) as connection:
                connection.flushall()
            return run_child(_PEERS, name, run.redis().url, jobs // 4)["rate"]

        return drain

    with TemporaryDirectory(prefix="dayjob-bullmq-") as folder:
        node = bullmq(run, Path(folder), "drain", jobs // 2)
        by_default, found, *peers = await run.in_turn(
            "redis-drain",
            run.size(5, 3),
            ours("drain-default"),
            ours("drain"),
            *map(peer, PYTHON_PEERS),
            *([node] if node else []),
        )
    names = [*PYTHON_PEERS, *(["bullmq"] if node else [])]
    best = max(range(len(PYTHON_PEERS)), key=lambda index: median(peers[index]))
    bounds = {names[best]: 5.0, "bullmq": 1.2}
    return [
        Result(
            measure="redis-drain",
            engine=engine,
            description=f"no-op coroutine tasks, {how}, vs {name}",
            figures=f"{rate(median(mine))} vs {rate(median(theirs))}",
            value=paired_ratio(mine, theirs),
            unit="×",
            at_least=bounds.get(name),
        )
        for how, mine in (("defaults: done jobs kept", by_default), ("none kept", found))
        for name, theirs in zip(names, peers, strict=True)
    ]


def bullmq(run: Run, folder: Path, kind: str, jobs: int) -> Callable[[], Awaitable[float]] | None:
    """Return the variant for BullMQ, or None without node or the npm package."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    installed = subprocess.run(
        [npm, "install", "--silent", "bullmq", "ioredis"], cwd=folder, capture_output=True
    )
    if installed.returncode:
        return None
    program = folder / "bullmq.mjs"
    program.write_bytes((Path(__file__).parent / "bullmq.mjs").read_bytes())

    async def measured() -> float:
        with client(run.redis().url) as connection:
            connection.flushall()
        return _node(node, str(program), kind, str(run.redis().socket), str(jobs))

    return measured


def _node(*command: str) -> float:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return float(ran.stdout)


@measure("redis-latency", "redis")
async def redis_latency(run: Run, engine: str) -> list[Result]:
    """Latency from an enqueue in another process to the start on an idle worker, against TaskIQ."""
    samples = run.size(100, 50)

    async def ours() -> float:
        return run_child(_PEERS, "dayjob-latency", run.url(engine), samples)["p50"]

    async def theirs() -> float:
        return run_child(_PEERS, "taskiq-latency", run.redis().url, samples)["p50"]

    found, peer = await run.in_turn("redis-latency", run.size(15, 5), ours, theirs)
    return [
        Result(
            measure="redis-latency",
            engine=engine,
            description="enqueue to start from another process, p50 vs TaskIQ's",
            figures=f"{millis(median(found))} vs {millis(median(peer))}",
            value=paired_ratio(found, peer),
            unit="×",
            at_most=0.9,
        )
    ]


@measure("redis-memory", "redis")
async def redis_memory(run: Run, engine: str) -> list[Result]:
    """Server memory per pending no-op job."""
    jobs = run.size(100_000, 20_000)
    with client(run.redis().url) as connection:
        async with Broker(run.url(engine), config=BrokerConfig(duties=False)) as broker:
            before = connection.info("memory")["used_memory"]
            for _ in range(0, jobs, 10_000):
                await broker.enqueue_many([NewJob("default", b"[]", task="tasks.noop")] * 10_000)
            used = (connection.info("memory")["used_memory"] - before) / jobs
    return [
        Result(
            measure="redis-memory", engine=engine, description=f"bytes per pending job, {jobs:,} jobs",
            figures=f"{used:.0f} bytes", value=used, unit="bytes", at_most=600,
        )
    ]  # fmt: skip
