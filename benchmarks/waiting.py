"""Waiting for a job: how soon it is noticed, and what the waiting costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from statistics import median

from benchmarks.findings import Finding, millis, percentile
from benchmarks.run import ENGINES, Run, measure
from benchmarks.side import Side
from benchmarks.workloads import enqueue_stamped, wait_idly
from dayjob import Broker

_QUEUE = "wake"


async def _wake_ups(run: Run, text: str, broker: Broker, cause: Callable[[], Awaitable[None]]) -> list[float]:
    """Seconds from the moment a job is asked for to the moment its claim returns.

    The pauses differ, so that they never keep step with a watch that looks at fixed intervals.
    """

    async def claim() -> float:
        (job,) = await broker.claim(_QUEUE, wait=30)
        now = time.perf_counter_ns()
        await broker.ack(job)
        return (now - int(job.payload)) / 1e9

    took = []
    samples = run.size(100, 30)
    with run.screen.stage(text, samples) as advance:
        for sample in range(samples):
            claiming = asyncio.create_task(claim())
            await asyncio.sleep(0.02 + 0.037 * sample % 0.02)
            await cause()
            took.append(await claiming)
            advance(1)
    return took


def _finding(engine: str, what: str, took: list[float], at_most: float | None = None) -> Finding:
    return Finding(
        measure="wake-up",
        engine=engine,
        what=f"{what}, p50",
        figures=f"p99 {millis(percentile(took, 99))}",
        value=median(took) * 1000,
        unit="ms",
        at_most=at_most,
        must=False,
    )


@measure("wake-up", *ENGINES)
async def wake_up(run: Run, engine: str) -> list[Finding]:
    """From an enqueue to the return of a claim that waits for it."""
    url = run.url(engine)
    async with Broker(url) as broker:

        async def here() -> None:
            await broker.enqueue(_QUEUE, str(time.perf_counter_ns()).encode())

        took = await _wake_ups(run, f"wake-up · {engine} · within the process", broker, here)
        findings = [_finding(engine, "enqueue to claim within the process", took)]
        if broker.capabilities.multi_process:
            with closing(Side(url)) as producer:

                async def elsewhere() -> None:
                    await asyncio.to_thread(producer.ask, enqueue_stamped, _QUEUE)

                took = await _wake_ups(run, f"wake-up · {engine} · from another process", broker, elsewhere)
            findings.append(_finding(engine, "enqueue to claim from another process", took, at_most=50))
    return findings


@measure("idle", *ENGINES)
async def idle(run: Run, engine: str) -> list[Finding]:
    """What a claim costs while it waits in vain."""
    seconds = run.size(5, 2)
    with closing(Side(run.url(engine))) as side, run.screen.stage(f"idle · {engine} · {seconds} s", 1):
        share = side.ask(wait_idly, seconds)
    return [
        Finding(
            measure="idle",
            engine=engine,
            what="CPU of a waiting claim, duties included",
            figures=f"of a core, over {seconds} s",
            value=share * 100,
            unit="%",
            at_most=1,
            must=False,
        )
    ]
