"""What a second worker process gains on a PostgreSQL server that shares the machine with both."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.findings import Finding, paired_ratio, rate
from benchmarks.processes import Child, ask, python
from benchmarks.run import Run, measure
from benchmarks.server import query_sql, run_sql

_FLEET = "benchmarks.fleet"
_SHIFTS = "benchmarks.shifts"

_TASKS = {"tasks of some 50 µs": 3500, "no-op tasks": 0}
"""How many numbers each kind of task adds up."""

_START_UP = 0.3
"""Seconds before the first moment that counts, for the workers to get going."""

_MOST = 90_000
"""Jobs in a second, at the most."""

_PENDING = "SELECT coalesce(sum(pending), 0)::bigint FROM dayjob.counters"


class Crew:
    """Worker processes that work off a backlog in shifts, which other crews share."""

    def __init__(self, url: str, seconds: float, *workers: Child) -> None:
        self._url = url
        self._seconds = seconds
        self._workers = workers
        self.used: list[float] = []
        """Percent of the machine's processors that were busy in each shift; 0 where that is not told."""
        self.own: list[float] = []
        """Percent of that which the workers had; the rest was the server's, nearly all of it."""

    async def shift(self) -> float:
        """Jobs per second that they start together."""
        self._fill()
        begin = time.perf_counter() + _START_UP
        end = begin + self._seconds
        for worker in self._workers:
            worker.tell(f"{begin} {end}")
        await asyncio.sleep(begin - time.perf_counter())
        before = _busy_seconds()
        await asyncio.sleep(end - time.perf_counter())
        busy = _busy_seconds() - before
        answers = [worker.hear() for worker in self._workers]
        self.used.append(100 * busy / (self._seconds * (os.cpu_count() or 1)))
        self.own.append(100 * sum(answer["busy"] for answer in answers) / busy if busy else 0.0)
        return sum(answer["jobs"] for answer in answers) / self._seconds

    def _fill(self) -> None:
        """See to it that no crew runs out of jobs, or pays for what those before it left behind."""
        wanted = int(_MOST * (_START_UP + self._seconds))
        if query_sql(self._url, _PENDING) < wanted:
            ask(_FLEET, "fill", self._url, 3 * wanted)
        run_sql(self._url, "VACUUM dayjob.jobs", "CHECKPOINT")


@measure("two-workers", "postgres")
async def two_workers(run: Run, engine: str) -> list[Finding]:
    """Two worker processes on one backlog, against one.

    The server shares the machine with them: how much of the processors is used with one and with two tells
    what was left for the second.
    """
    run.close_sides()
    seconds, rounds = run.size(8, 4) / 10, run.size(20, 6)
    findings = []
    for what, numbers in _TASKS.items():
        with run.server.database() as url, ExitStack() as stack:
            ask(_FLEET, "fill", url, 1)
            workers = [stack.enter_context(python(_SHIFTS, "work", url, numbers)) for _ in range(2)]
            for worker in workers:
                worker.wait_until_ready()
            two, one = Crew(url, seconds, *workers), Crew(url, seconds, workers[0])
            text = f"two-workers · {engine} · {what}"
            rates = await run.in_turn(text, rounds, two.shift, one.shift)
        findings += [
            Finding(
                measure="two-workers",
                engine=engine,
                what=f"{what}, two worker processes vs one",
                figures=f"{rate(median(rates[0]))} vs {rate(median(rates[1]))}",
                value=paired_ratio(*rates),
                unit="×",
                at_least=1.3,
            ),
            Finding(
                measure="two-workers",
                engine=engine,
                what=f"{what}, processors used by two workers and the server",
                figures=f"{100 - median(two.own):.0f} % the server's, {median(one.used):.0f} % with one",
                value=median(two.used),
                unit="%",
            ),
        ]
    return findings


def _busy_seconds() -> float:
    """For how long the machine's processors were busy since it started, together; where that is told."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, *rest = map(int, stat.read_text().splitlines()[0].split()[1:])
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")
