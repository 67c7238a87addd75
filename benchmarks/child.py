"""What the processes that a measure starts have in common: when handlers started, and how to answer.

A child prints its answer as the last line, in JSON. One that is asked to ``hold`` says when it is ready,
and goes on when it is told to, so that what it needs to start up is not part of what is measured.
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

Answer = dict[str, float]
Kind = Callable[..., Coroutine[Any, Any, Answer]]

READY = "ready"

WARM_UP = 20
"""How many calls or jobs go before those that count."""

starts: list[float] = []
"""When each handler started. The clock is the machine's: the times of two processes can be compared."""

waits: list[float] = []
"""How long each job waited for its start."""


async def hold() -> None:
    print(READY, flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def until(condition: Callable[[], bool]) -> None:
    """Look now and then: to be told by the handlers would cost each of them."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def drained(jobs: int) -> Answer:
    """The rate from the first handler's start to the last's."""
    if len(starts) != jobs:
        raise RuntimeError(f"{len(starts)} of {jobs} jobs ran")
    return {"rate": (jobs - 1) / (max(starts) - min(starts))}


def waited(stamp: float) -> None:
    """Note how long ago a job was asked for."""
    waits.append(time.perf_counter() - stamp)


def median_wait() -> Answer:
    """Without the first jobs, which found the worker starting up."""
    return {"p50": median(waits[WARM_UP:])}


async def one_by_one(calls: int, call: Callable[[int], Coroutine[Any, Any, object]]) -> Answer:
    """Calls per second, each awaited before the next is made."""
    for number in range(WARM_UP):
        await call(number)
    start = time.perf_counter()
    for number in range(calls):
        await call(number)
    return {"rate": calls / (time.perf_counter() - start)}


async def now_and_then(calls: int, call: Callable[[float], Coroutine[Any, Any, object]]) -> Answer:
    """Calls with the time at which each is made, far enough apart for a worker to fall idle between them.

    The pauses differ, so that they never keep step with anything that looks at fixed intervals.
    """
    for number in range(calls):
        await asyncio.sleep(0.02 + 0.037 * number % 0.02)
        await call(time.perf_counter())
    return {}


def run(kinds: Mapping[str, Kind], arguments: list[str]) -> None:
    """Answer ``KIND STORE NUMBER [OPTION ...]``, on uvloop where it is installed."""
    kind, store, number, *options = arguments
    factory = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        print(json.dumps(runner.run(kinds[kind](store, int(number), *options))))
