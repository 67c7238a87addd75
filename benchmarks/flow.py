"""The cost of limits and fair queues: jobs with room, blocked jobs, and a quiet tenant behind a flood."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from statistics import median, quantiles

from benchmarks.processes import run_child
from benchmarks.results import Result, millis, paired_ratio, rate
from benchmarks.run import Run, measure
from benchmarks.workloads import BATCH, PAYLOAD, QUEUE, drain, enqueue
from dayjob import Broker, BrokerConfig, Limit, NewJob, QueueConfig

_DRAINS = "benchmarks.drains"
_QUIET = BrokerConfig(duties=False)
_FAIR = BrokerConfig(duties=False, default=QueueConfig(fair="tenant"))


async def _compare(run: Run, engine: str, measure: str, task: str, jobs: int, bound: float) -> list[Result]:
    def variant(task: str) -> Callable[[], Awaitable[float]]:
        async def drain() -> float:
            return run_child(_DRAINS, "drain", run.url(engine), jobs, task)["rate"]

        return drain

    ours, plain = await run.in_turn(
        f"{measure} · {engine}", run.size(5, 3), variant(task), variant("coroutine")
    )
    return [
        Result(
            measure=measure,
            engine=engine,
            description=f"no-op {task} tasks vs unlimited ones",
            figures=f"{rate(median(ours))} vs {rate(median(plain))}",
            value=paired_ratio(ours, plain),
            unit="×",
            at_least=bound,
        )
    ]


@measure("limited-drain", "sqlite", "postgres", "redis", "memory", "slatedb")
async def limited_drain(run: Run, engine: str) -> list[Result]:
    """Throughput of one worker on tasks of a limit with room, against tasks without limits."""
    return await _compare(run, engine, "limited-drain", "limited", run.size(20_000, 4000), 0.8)


@measure("keyed-drain", "sqlite", "postgres", "redis", "memory", "slatedb")
async def keyed_drain(run: Run, engine: str) -> list[Result]:
    """Throughput of one worker on tasks with a limit of one for each of 10,000 keys."""
    return await _compare(run, engine, "keyed-drain", "keyed", run.size(10_000, 4000), 0.5)


@measure("blocked-head", "sqlite", "postgres", "redis", "memory", "slatedb")
async def blocked_head(run: Run, engine: str) -> list[Result]:
    """Claims and acks on a queue with 100,000 limited jobs at its head, against an empty one."""
    batches, blocked = run.size(100, 20), run.size(100_000, 20_000)

    def variant(blocked: int) -> Callable[[], Awaitable[float]]:
        async def drained() -> float:
            async with Broker(run.url(engine), config=_QUIET) as broker:
                await broker.set_limit("one", Limit(running=1))
                await broker.enqueue("other", limits=["one"])
                await broker.claim("other")
                for _ in range(0, blocked, 1000):
                    await broker.enqueue_many([NewJob(QUEUE, PAYLOAD, limits=["one"])] * 1000)
                while (await broker.stats(QUEUE)).pending:
                    await broker.claim(QUEUE, limit=BATCH)
                await enqueue(broker, batches * BATCH)
                start = time.perf_counter()
                await drain(broker, batches)
                return batches * BATCH / (time.perf_counter() - start)

        return drained

    ours, free = await run.in_turn(f"blocked-head · {engine}", run.size(5, 3), variant(blocked), variant(0))
    return [
        Result(
            measure="blocked-head",
            engine=engine,
            description=f"claims behind {blocked:,} limited jobs vs behind none",
            figures=f"{rate(median(ours))} vs {rate(median(free))}",
            value=paired_ratio(ours, free),
            unit="×",
            at_least=0.9,
        )
    ]


@measure("fair-share", "sqlite", "postgres", "redis", "memory", "slatedb")
async def fair_share(run: Run, engine: str) -> list[Result]:
    """The p99 wait of a quiet tenant behind a flood of 100,000 jobs of another, against its wait alone."""
    flood, jobs = run.size(100_000, 20_000), run.size(500, 100)

    async def wait(broker: Broker) -> float:
        enqueued = await broker.enqueue(QUEUE, tenant="quiet")
        start = time.perf_counter()
        while True:
            (job,) = await broker.claim(QUEUE)
            await broker.ack(job)
            if job.id == enqueued.id:
                return time.perf_counter() - start

    async def p99(flood: int) -> float:
        async with Broker(run.url(engine), config=_FAIR) as broker:
            for _ in range(0, flood, 1000):
                await broker.enqueue_many([NewJob(QUEUE, PAYLOAD, tenant="flood")] * 1000)
            return quantiles([await wait(broker) for _ in range(jobs)], n=100)[-1]

    ours, alone = await run.in_turn(
        f"fair-share · {engine}", run.size(3, 1), lambda: p99(flood), lambda: p99(0)
    )
    return [
        Result(
            measure="fair-share",
            engine=engine,
            description=f"p99 wait of a quiet tenant behind {flood:,} jobs vs alone",
            figures=f"{millis(median(ours))} vs {millis(median(alone))}",
            value=paired_ratio(ours, alone),
            unit="×",
            at_most=10.0,
        )
    ]
