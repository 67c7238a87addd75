"""The gain of batches and group commit over single calls."""

from __future__ import annotations

import asyncio
from statistics import median

from benchmarks.results import Result, paired_ratio, rate
from benchmarks.run import Run, measure
from benchmarks.workloads import BATCH, PAYLOAD, QUEUE, drain, drain_one_by_one, enqueue, timed
from dayjob import Broker


@measure("group-commit", "sqlite", "slatedb")
async def group_commit(run: Run, engine: str) -> list[Result]:
    """Concurrent single enqueues, which share commits, against sequential ones."""
    calls = run.size(1000, 300)
    async with Broker(run.url(engine)) as broker:

        async def together() -> float:
            async def all_of_them() -> None:
                await asyncio.gather(*(broker.enqueue(QUEUE, PAYLOAD) for _ in range(calls)))

            return calls / await timed(all_of_them())

        async def one_by_one() -> float:
            async def all_of_them() -> None:
                for _ in range(calls):
                    await broker.enqueue(QUEUE, PAYLOAD)

            return calls / await timed(all_of_them())

        fast, slow = await run.in_turn(
            f"group-commit · {engine} · {calls:,} enqueues", run.size(7, 3), together, one_by_one
        )
    return [
        Result(
            measure="group-commit",
            engine=engine,
            description=f"{calls:,} concurrent enqueues vs one by one",
            figures=f"{rate(median(fast))} vs {rate(median(slow))}",
            value=paired_ratio(fast, slow),
            unit="×",
            at_least=10,
        )
    ]


@measure("batch-claim", "sqlite", "slatedb")
async def batch_claim(run: Run, engine: str) -> list[Result]:
    """Claim and ack in batches of 100, against one at a time."""
    batches, singles = run.size(30, 10), run.size(300, 100)
    async with Broker(run.url(engine)) as broker:

        async def in_batches() -> float:
            await enqueue(broker, batches * BATCH)
            return batches * BATCH / await timed(drain(broker, batches))

        async def one_by_one() -> float:
            await enqueue(broker, singles)
            return singles / await timed(drain_one_by_one(broker, singles))

        fast, slow = await run.in_turn(f"batch-claim · {engine}", run.size(9, 5), in_batches, one_by_one)
    return [
        Result(
            measure="batch-claim",
            engine=engine,
            description=f"claim+ack in batches of {BATCH} vs one by one",
            figures=f"{rate(median(fast))} vs {rate(median(slow))}",
            value=paired_ratio(fast, slow),
            unit="×",
            at_least=10,
        )
    ]


@measure("memory-vs-sqlite", "memory")
async def memory_vs_sqlite(run: Run, engine: str) -> list[Result]:
    """The memory engine against SQLite, in batches."""
    jobs = run.size(5000, 2000)
    async with Broker(run.url("memory")) as memory, Broker(run.url("sqlite")) as sqlite:

        async def cycle(broker: Broker) -> float:
            async def all_of_it() -> None:
                await enqueue(broker, jobs)
                await drain(broker, jobs // BATCH)

            return jobs / await timed(all_of_it())

        on_memory, on_sqlite = await run.in_turn(
            "memory-vs-sqlite", run.size(9, 5), lambda: cycle(memory), lambda: cycle(sqlite)
        )
    return [
        Result(
            measure="memory-vs-sqlite",
            engine=engine,
            description="enqueue+claim+ack in batches, memory vs SQLite",
            figures=f"{rate(median(on_memory))} vs {rate(median(on_sqlite))}",
            value=paired_ratio(on_memory, on_sqlite),
            unit="×",
            at_least=1,
        )
    ]
