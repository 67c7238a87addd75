"""The gain of a second worker process on a machine that it shares with the PostgreSQL server."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import ExitStack
from statistics import median

from benchmarks.machine import busy_seconds
from benchmarks.processes import Child, run_child, start_child
from benchmarks.results import Result, paired_ratio, rate
from benchmarks.run import Run, measure
from benchmarks.server import query_sql, run_sql

_FLEET = "benchmarks.fleet"
_WINDOWED_WORKER = "benchmarks.windowed_worker"

_TASKS = {"tasks of some 50 µs": (3500, 1.3), "no-op tasks": (0, 1.15)}
"""How many numbers each kind of task adds up, and the required ratio.

On two cores the second worker shares them with the server and the first worker. With no-op tasks the server
uses about half of the processors, so a second worker can add less than a third.
"""

_START_UP = 0.3
"""Seconds before a window, in which the workers start."""

_MAX_RATE = 90_000
"""More jobs per second than the workers can start."""

_PENDING = "SELECT coalesce(sum(pending), 0)::bigint FROM dayjob.counters"


class WorkerGroup:
    """Worker processes that run together in time windows, on a backlog that groups share."""

    def __init__(self, url: str, seconds: float, *workers: Child) -> None:
        self._url = url
        self._seconds = seconds
        self._workers = workers
        self.used: list[float] = []
        """Percent of the machine's processors that were busy in each window; 0 if unknown."""
        self.own: list[float] = []
        """Percent of that used by the workers. The server used nearly all of the rest."""

    async def run_window(self) -> float:
        """Return the jobs per second that the workers start together."""
        self._fill()
        begin = time.perf_counter() + _START_UP
        end = begin + self._seconds
        for worker in self._workers:
            worker.send(f"{begin} {end}")
        await asyncio.sleep(begin - time.perf_counter())
        before = busy_seconds()
        await asyncio.sleep(end - time.perf_counter())
        busy = busy_seconds() - before
        answers = [worker.receive() for worker in self._workers]
        self.used.append(100 * busy / (self._seconds * (os.cpu_count() or 1)))
        self.own.append(100 * sum(answer["busy"] for answer in answers) / busy if busy else 0.0)
        return sum(answer["jobs"] for answer in answers) / self._seconds

    def _fill(self) -> None:
        """Refill the backlog, and clean up the dead rows of earlier windows."""
        needed = int(_MAX_RATE * (_START_UP + self._seconds))
        if query_sql(self._url, _PENDING) < needed:
            run_child(_FLEET, "fill", self._url, 3 * needed)
        run_sql(self._url, "VACUUM dayjob.jobs", "CHECKPOINT")


@measure("two-workers", "postgres")
async def two_workers(run: Run, engine: str) -> list[Result]:
    """Throughput of two worker processes on one backlog, against one.

    The server shares the machine with them. The second result shows how much of the processors was left for
    the second worker.
    """
    run.close_stores()
    seconds, rounds = run.size(8, 4) / 10, run.size(20, 6)
    results = []
    for tasks, (numbers, bound) in _TASKS.items():
        with run.server.database() as url, ExitStack() as stack:
            run_child(_FLEET, "fill", url, 1)
            workers = [
                stack.enter_context(start_child(_WINDOWED_WORKER, "work", url, numbers)) for _ in range(2)
            ]
            for worker in workers:
                worker.wait_until_ready()
            two, one = WorkerGroup(url, seconds, *workers), WorkerGroup(url, seconds, workers[0])
            text = f"two-workers · {engine} · {tasks}"
            rates = await run.in_turn(text, rounds, two.run_window, one.run_window)
        results += [
            Result(
                measure="two-workers",
                engine=engine,
                description=f"{tasks}, two worker processes vs one",
                figures=f"{rate(median(rates[0]))} vs {rate(median(rates[1]))}",
                value=paired_ratio(*rates),
                unit="×",
                at_least=bound,
            ),
            Result(
                measure="two-workers",
                engine=engine,
                description=f"{tasks}, processors used by two workers and the server",
                figures=f"{100 - median(two.own):.0f} % by the server; with one: {median(one.used):.0f} %",
                value=median(two.used),
                unit="%",
            ),
        ]
    return results
