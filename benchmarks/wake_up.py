"""Waiting claims: their wake-up latency, and their cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from statistics import median

from benchmarks.results import Result, millis, percentile
from benchmarks.run import ENGINES, Run, measure
from benchmarks.store_process import StoreProcess
from benchmarks.workloads import enqueue_stamped, wait_idly
from dayjob import Broker

_QUEUE = "wake"


async def _wake_ups(
    run: Run, text: str, broker: Broker, enqueue: Callable[[], Awaitable[None]]
) -> list[float]:
    """Return the seconds from the enqueue of each job to the return of its claim.

    The intervals vary, so that they never align with a poll at fixed intervals.
    """

    async def claim() -> float:
        (job,) = await broker.claim(_QUEUE, wait=30)
        now = time.perf_counter_ns()
        await broker.ack(job)
        return (now - int(job.payload)) / 1e9

    took = []
    samples = run.size(100, 30)
    with run.progress.stage(text, samples) as advance:
        for sample in range(samples):
            claiming = asyncio.create_task(claim())
            await asyncio.sleep(0.02 + 0.037 * sample % 0.02)
            await enqueue()
            took.append(await claiming)
            advance(1)
    return took


def _result(engine: str, description: str, took: list[float], at_most: float | None = None) -> Result:
    return Result(
        measure="wake-up",
        engine=engine,
        description=f"{description}, p50",
        figures=f"p99 {millis(percentile(took, 99))}",
        value=median(took) * 1000,
        unit="ms",
        at_most=at_most,
        required=False,
    )


@measure("wake-up", *ENGINES)
async def wake_up(run: Run, engine: str) -> list[Result]:
    """Latency from an enqueue to the return of a waiting claim."""
    url = run.url(engine)
    async with Broker(url) as broker:

        async def here() -> None:
            await broker.enqueue(_QUEUE, str(time.perf_counter_ns()).encode())

        took = await _wake_ups(run, f"wake-up · {engine} · same process", broker, here)
        results = [_result(engine, "enqueue to claim, same process", took)]
        if broker.capabilities.multi_process:
            with closing(StoreProcess(url)) as producer:

                async def elsewhere() -> None:
                    await asyncio.to_thread(producer.run, enqueue_stamped, _QUEUE)

                took = await _wake_ups(run, f"wake-up · {engine} · another process", broker, elsewhere)
            results.append(_result(engine, "enqueue to claim, another process", took, at_most=50))
    return results


@measure("idle", *ENGINES)
async def idle(run: Run, engine: str) -> list[Result]:
    """CPU of a claim that waits without a job."""
    seconds = run.size(5, 2)
    with (
        closing(StoreProcess(run.url(engine))) as store,
        run.progress.stage(f"idle · {engine} · {seconds} s", 1),
    ):
        share = store.run(wait_idly, seconds)
    return [
        Result(
            measure="idle",
            engine=engine,
            description="CPU of a waiting claim, duties included",
            figures=f"of a core, over {seconds} s",
            value=share * 100,
            unit="%",
            at_most=1,
            required=False,
        )
    ]
