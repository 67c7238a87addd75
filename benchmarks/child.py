"""The child's end of a measure's processes: start times of handlers, and the answer.

A child prints its answer as the last line, in JSON. ``wait_for_go`` reports that the child is ready and waits
for the parent, so that the start-up is not measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

from benchmarks.server import connection

Answer = dict[str, float]
Kind = Callable[..., Coroutine[Any, Any, Answer]]

READY = "ready"

WARM_UP = 20
"""How many calls or jobs are not counted at the start."""

starts: list[float] = []
"""The start of each handler, by a clock that all processes of the machine share."""

waits: list[float] = []
"""The time from the enqueue of each job to its start."""


async def wait_for_go() -> None:
    print(READY, flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def wait_until(condition: Callable[[], bool]) -> None:
    """Poll the condition. An event set by the handlers would add cost to each of them."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def drain_rate(jobs: int) -> Answer:
    """Return the rate from the first start of a handler to the last."""
    if len(starts) != jobs:
        raise RuntimeError(f"{len(starts)} of {jobs} jobs ran")
    return {"rate": (jobs - 1) / (max(starts) - min(starts))}


async def settled_rate(url: str, jobs: int, unsettled: str) -> Answer:
    """Wait until all handlers have started and no job is left of a query on PostgreSQL.

    Return the rate from the first start to this time: a job counts when its settlement is committed.
    """
    await wait_until(lambda: len(starts) >= jobs)
    async with connection(url) as database:
        while await database.fetchval(f"SELECT EXISTS ({unsettled})"):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    ended = time.perf_counter()
    if len(starts) != jobs:
        raise RuntimeError(f"{len(starts)} of {jobs} jobs ran")
    return {"rate": jobs / (ended - min(starts))}


def record_wait(stamp: float) -> None:
    """Record the time since a job was enqueued."""
    waits.append(time.perf_counter() - stamp)


def median_wait() -> Answer:
    """Return the median wait without the first jobs, which met a starting worker."""
    return {"p50": median(waits[WARM_UP:])}


async def one_by_one(calls: int, call: Callable[[int], Coroutine[Any, Any, object]]) -> Answer:
    """Return calls per second, each awaited before the next."""
    for number in range(WARM_UP):
        await call(number)
    start = time.perf_counter()
    for number in range(calls):
        await call(number)
    return {"rate": calls / (time.perf_counter() - start)}


async def call_at_intervals(calls: int, call: Callable[[float], Coroutine[Any, Any, object]]) -> Answer:
    """Call with the current time, at intervals in which a worker becomes idle.

    The intervals vary, so that they never align with a poll at fixed intervals.
    """
    for number in range(calls):
        await asyncio.sleep(0.02 + 0.037 * number % 0.02)
        await call(time.perf_counter())
    return {}


def run(kinds: Mapping[str, Kind], arguments: list[str]) -> None:
    """Run ``KIND STORE NUMBER [OPTION ...]`` and print its answer. Uses uvloop if installed."""
    kind, store, number, *options = arguments
    factory = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        print(json.dumps(runner.run(kinds[kind](store, int(number), *options))))
