"""An open-loop producer and the latencies that it causes.

The producer calls at given times, whether earlier calls have returned or not. Each job carries the time at
which it was due, and a latency is measured from there. A queue that stalls its producer is thus charged for
every job that waited behind the stall (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate

from benchmarks.results import percentile

Put = Callable[[float], Awaitable[object]]
"""Enqueues a job whose argument is this time."""

TIMER = 0.002
"""Seconds that a timer of an event loop may be late. They are not charged to the queue."""

GRACE = 2.0
"""Seconds after the last due time in which a job may still pass."""

Passed = tuple[float, float]
"""The stamp of a job, and the moment at which it reached a point such as the start of its handler."""


def arrivals(rate: int, seconds: int) -> list[float]:
    """Return the times of independent arrivals (a Poisson process), the same in each call."""
    gaps = random.Random(20)
    return list(accumulate(gaps.expovariate(rate) for _ in range(rate * seconds)))


async def produce_at(put: Put, due: Sequence[float], grace: float = GRACE) -> list[float]:
    """Call at each due time without waiting for earlier calls. Return the seconds until each call returned.

    A call that has not returned ``grace`` seconds after the last one is cancelled, and took infinitely long.
    """
    took: list[float] = []

    async def call(stamp: float) -> None:
        await put(stamp)
        took.append(time.perf_counter() - stamp)

    calls: list[asyncio.Task[None]] = []
    for moment in due:
        if (ahead := moment - time.perf_counter()) > 0:
            await asyncio.sleep(ahead)
        calls.append(asyncio.create_task(call(stamp_of(moment, time.perf_counter()))))
    returned, late = await asyncio.wait(calls, timeout=grace)
    for task in late:
        task.cancel()
    for task in returned:
        task.result()
    return took + [math.inf] * len(late)


def stamp_of(due: float, now: float) -> float:
    """Return the time from which a call counts: now, if only the timer can be late, else the due time."""
    return now if now - due <= TIMER else due


def since(begin: float, offered: int, passed: Sequence[Passed]) -> list[float]:
    """Return the latencies of the jobs that were due since then. A job of the offered ones that is missing
    has an infinite latency.
    """
    found = [moment - stamp for stamp, moment in passed if stamp >= begin]
    return found + [math.inf] * (offered - len(found))


def window_p99s(begin: float, passed: Sequence[Passed]) -> list[float]:
    """Return the p99 of the jobs that were due in each second since then."""
    windows: dict[int, list[float]] = {}
    for stamp, moment in passed:
        if stamp >= begin:
            windows.setdefault(int(stamp - begin), []).append(moment - stamp)
    return [percentile(windows[number], 99) for number in sorted(windows)]
