"""One side of a soak: ``python -m benchmarks.soak_load KIND URL 0``, as in ``benchmarks.load``, in windows.

Each line of input is a window, and gets a line of JSON as its answer. ``produce`` enqueues jobs at the times
that the line lists. ``work`` waits until they have passed: its line has their number, and the last time.
``both`` does both in one process, and takes the times. The process forgets a window once it has answered, so
that its memory is that of dayjob.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.child import READY, Answer, run
from benchmarks.load import Dayjob, Recorder, line
from benchmarks.open_loop import Put, produce_at, since
from benchmarks.results import percentile
from dayjob import BrokerConfig, Retention
from dayjob.runtime.process import MEBIBYTE, rss
from dayjob.worker.process_memory import collect_less_often, limit_heaps

RETENTION = 30
"""Seconds for which done jobs are kept. The sweep has work, and the number of rows is soon constant."""

GRACE = 60.0
"""Seconds after a window in which its jobs may still pass. A backlog shows in the latencies."""

_CONFIG = BrokerConfig(retention=Retention(done=RETENTION), sweep_interval=5)


async def _answer_lines(answer: Callable[[list[float]], Awaitable[Answer]]) -> dict[str, Any]:
    print(READY, flush=True)
    while due := await line():
        print(json.dumps(await answer(due) | {"mib": rss() / MEBIBYTE}), flush=True)
    return {}


async def _passed(recorder: Recorder, jobs: int, last: float) -> Answer:
    """Wait until the jobs of a window have passed. Return their number and their latencies."""
    await recorder.until_passed(jobs, last + GRACE)
    found = recorder.take()
    start, settled = (since(0, jobs, found[name]) for name in ("started", "settled"))
    return {
        "done": len(found["settled"]),
        "start-p50": percentile(start, 50),
        "start-p99": percentile(start, 99),
        "settled-p99": percentile(settled, 99),
    }


async def work(url: str, _: int) -> dict[str, Any]:
    recorder = Recorder()
    async with Dayjob(_CONFIG).working(url, recorder.started, recorder.settled):
        return await _answer_lines(lambda window: _passed(recorder, int(window[0]), window[1]))


async def _produced(put: Put, due: list[float]) -> Answer:
    took = await produce_at(put, due, GRACE)
    return {"enqueue-p99": percentile(took, 99)}


async def produce(url: str, _: int) -> dict[str, Any]:
    async with Dayjob(_CONFIG).producing(url) as put:
        return await _answer_lines(lambda due: _produced(put, due))


async def both(url: str, _: int, recorder: Recorder | None = None) -> dict[str, Any]:
    recorder = recorder or Recorder()

    async def answer(due: list[float]) -> Answer:
        return await _produced(put, due) | await _passed(recorder, len(due), due[-1])

    async with Dayjob(_CONFIG).working(url, recorder.started, recorder.settled) as put:
        return await _answer_lines(answer)


if __name__ == "__main__":
    if sys.argv[1] != "produce":
        collect_less_often()  # As ``dayjob worker`` does.
        limit_heaps()
    run({"work": work, "produce": produce, "both": both}, sys.argv[1:])
