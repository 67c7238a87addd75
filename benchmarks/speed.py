"""Absolute figures of this machine, for orientation. Do not compare them across runs."""

from __future__ import annotations

import time
from statistics import median

from benchmarks.results import Result, millis, percentile, rate
from benchmarks.run import ENGINES, Run, measure
from benchmarks.workloads import BATCH, PAYLOAD, QUEUE, ack_all, enqueue, timed
from dayjob import Broker, Job


@measure("rates", *ENGINES)
async def rates(run: Run, engine: str) -> list[Result]:
    """Jobs per second in batches, by verb."""
    jobs = run.size(10_000, 3000)
    async with Broker(run.url(engine)) as broker:
        claimed: list[list[Job]] = []

        async def enqueue_all() -> float:
            return jobs / await timed(enqueue(broker, jobs))

        async def claim_all() -> float:
            start = time.perf_counter()
            claimed.extend([await broker.claim(QUEUE, limit=BATCH) for _ in range(jobs // BATCH)])
            return jobs / (time.perf_counter() - start)

        async def settle_all() -> float:
            start = time.perf_counter()
            while claimed:
                await ack_all(broker, claimed.pop(), BATCH)
            return jobs / (time.perf_counter() - start)

        verbs = {
            "enqueue_many of 1,000": enqueue_all,
            "claim of 100": claim_all,
            "settle_many of 100": settle_all,
        }
        speeds = await run.in_turn(f"rates · {engine}", run.size(7, 3), *verbs.values())
    return [
        Result(
            measure="rates",
            engine=engine,
            description=f"{verb}, best",
            figures=f"median {rate(median(speed))}",
            value=max(speed),
            unit="/s",
        )
        for verb, speed in zip(verbs, speeds, strict=True)
    ]


@measure("latency", *ENGINES)
async def latency(run: Run, engine: str) -> list[Result]:
    """Latency of one call with its own commit."""
    calls = run.size(500, 100)
    took: dict[str, list[float]] = {"enqueue": [], "claim": [], "ack": []}
    async with Broker(run.url(engine)) as broker:
        with run.progress.stage(f"latency · {engine}", calls) as advance:
            for _ in range(calls):
                took["enqueue"].append(await timed(broker.enqueue(QUEUE, PAYLOAD)))
                start = time.perf_counter()
                (job,) = await broker.claim(QUEUE)
                took["claim"].append(time.perf_counter() - start)
                took["ack"].append(await timed(broker.ack(job)))
                advance(1)
    return [
        Result(
            measure="latency",
            engine=engine,
            description=f"one {verb}, p50",
            figures=f"p99 {millis(percentile(seconds, 99))}",
            value=median(seconds) * 1000,
            unit="ms",
        )
        for verb, seconds in took.items()
    ]
