"""Claim latency while a duty runs: ``python -m benchmarks.claim_latency KIND URL JOBS``.

Claims and the duty share a broker, as in the leading worker. The usual latency is measured before and after
the duty, in the same process.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.child import Answer, Kind, run
from benchmarks.results import percentile
from benchmarks.workloads import FILL, QUEUE, enqueue
from dayjob import Broker, BrokerConfig, NewJob, Retention
from dayjob.model.durations import SECOND, to_datetime
from dayjob.testing import ManualClock
from dayjob.worker.process_memory import collect_less_often

USUAL = 3.0
"""Seconds of claims before the duty, and after it."""

MAX_DURATION = 60.0
"""Seconds after which the duty is stopped."""

_BACKLOG = 2000
_OTHER = "other"
_RETAINING = BrokerConfig(duties=False, retention=Retention(done=1, cancelled=1))
_PLAIN = BrokerConfig(duties=False)


class Claims:
    """Claims and acks at intervals, and records the duration of each claim."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._left = 0

    async def until(self, ended: Callable[[], bool]) -> list[float]:
        took = []
        while not ended():
            if self._left < 10:
                await enqueue(self._broker, _BACKLOG)
                self._left += _BACKLOG
            begun = time.perf_counter()
            (job,) = await self._broker.claim(QUEUE)
            took.append(time.perf_counter() - begun)
            await self._broker.ack(job)
            self._left -= 1
            await asyncio.sleep(0.002)
        return took

    async def seconds(self, seconds: float) -> list[float]:
        end = time.perf_counter() + seconds
        return await self.until(lambda: time.perf_counter() >= end)


async def _measure(broker: Broker, duty: Callable[[], Awaitable[int]]) -> Answer:
    claims = Claims(broker)
    await claims.seconds(0.5)
    usual = await claims.seconds(USUAL)
    begun = time.perf_counter()
    running = asyncio.ensure_future(duty())
    during = await claims.until(lambda: running.done() or time.perf_counter() - begun > MAX_DURATION)
    took = time.perf_counter() - begun
    if not running.done():
        running.cancel()
        await asyncio.wait({running})
    usual += await claims.seconds(USUAL)
    return {
        "usual": percentile(usual, 50),
        "usual_p99": percentile(usual, 99),
        "during": percentile(during, 50),
        "during_p99": percentile(during, 99),
        "longest": max(during),
        "claims": len(during),
        "seconds": took,
    }


async def promotion(url: str, jobs: int) -> Answer:
    """Promote jobs that are due at the same time."""
    async with Broker(url, config=_PLAIN) as broker:
        for start in range(0, jobs, FILL):
            await broker.enqueue_many([NewJob(_OTHER, delay=60)] * min(FILL, jobs - start))
        # A clock in the future makes them due. The fill may take longer than any fixed delay.
        later = ManualClock(to_datetime(time.time_ns() // 1000 + 120 * SECOND))
        engine: Any = broker._engine
        engine._now, engine._clock = later.now, later
        answer = await _measure(broker, broker.promote)
        answer["done"] = (await broker.stats(_OTHER)).pending
    return answer


async def sweep(url: str, jobs: int) -> Answer:
    """Sweep finished jobs whose retention is over."""
    options = "&synchronous=normal" if "?" in url else "?synchronous=normal"
    filling = url + options if url.startswith("sqlite:") else url
    async with Broker(url, config=_PLAIN) as broker:
        async with Broker(filling, config=_RETAINING) as filler:
            for start in range(0, jobs, FILL):
                some = min(FILL, jobs - start)
                added = await filler.enqueue_many([NewJob(_OTHER, delay=3600)] * some)
                await asyncio.gather(*(filler.cancel(each.id) for each in added))
        before = (await broker.stats(_OTHER)).cancelled
        await asyncio.sleep(1.5)
        answer = await _measure(broker, broker.sweep)
        answer["done"] = before - (await broker.stats(_OTHER)).cancelled
    return answer


KINDS: dict[str, Kind] = {"promotion": promotion, "sweep": sweep}

if __name__ == "__main__":
    collect_less_often()
    run(KINDS, sys.argv[1:])
