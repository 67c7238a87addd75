"""A worker that works in shifts: ``python -m benchmarks.shifts work URL NUMBER``.

Each line that it is told names two moments, by the machine's clock: it works from now until the second, and
answers how many jobs it started between them, and for how long it had a processor. So the sides of a
comparison take turns within seconds, on one backlog, and nobody starts up while he is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from benchmarks.child import READY, Answer, run, starts
from benchmarks.fleet import make_app, working
from dayjob.worker.garbage import collect_less_often


async def work(url: str, numbers: int) -> Answer:
    """Its tasks add up that many numbers each."""

    async def add_up(number: int) -> None:
        starts.append(time.perf_counter())
        sum(range(numbers))

    async with make_app(url, note=add_up) as app:
        await app.broker.stats("default")
        print(READY, flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            begin, end = map(float, line.split())
            starts.clear()
            async with working(app):
                await asyncio.sleep(begin - time.perf_counter())
                before = time.process_time()
                await asyncio.sleep(end - time.perf_counter())
                busy = time.process_time() - before
            jobs = sum(begin <= moment < end for moment in starts)
            print(json.dumps({"jobs": jobs, "busy": busy}), flush=True)
    return {}


if __name__ == "__main__":
    collect_less_often()  # As ``dayjob worker`` does.
    run({"work": work}, sys.argv[1:])
