"""A worker that runs in time windows: ``python -m benchmarks.windowed_worker work URL NUMBER``.

Each line of input gives the begin and end of a window, by a clock that all processes share. The worker runs
until the end, and answers with the jobs that it started in the window and the CPU seconds that it used. The
variants of a comparison can therefore alternate within seconds on one backlog, without start-up time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from benchmarks.child import READY, Answer, run, starts
from benchmarks.fleet import make_app, working
from dayjob.worker.process_memory import collect_less_often


async def work(url: str, numbers: int) -> Answer:
    """Run tasks that each add up that many numbers."""

    async def add_up(number: int) -> None:
        starts.append(time.perf_counter())
        sum(range(numbers))

    async with make_app(url, handler=add_up) as app:
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
