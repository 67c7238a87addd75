"""The peers on Redis, and latency across processes: ``python -m benchmarks.redis_peers KIND URL COUNT``.

Prints a line of JSON. A rate is measured from the first start of a handler to the last. A latency is measured
from just before the enqueue, in a separate producer process, to the handler's start in this idle one.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from threading import Event
from typing import Any, NoReturn

from dayjob import App, BrokerConfig, Retention, Worker

starts: list[float] = []
waits: list[float] = []
started = asyncio.Event()

WARM_UP = 20


def dramatiq(url: str, jobs: int) -> dict[str, float]:
    """Drain with Dramatiq's default number of threads; it acknowledges after the run."""
    module: Any = import_module("dramatiq")
    broker = import_module("dramatiq.brokers.redis").RedisBroker(url=url)
    done = Event()

    def job(number: int) -> None:
        starts.append(time.perf_counter())
        if len(starts) == jobs:
            done.set()

    actor = module.actor(broker=broker)(job)
    for number in range(jobs):
        actor.send(number)
    worker = import_module("dramatiq.worker").Worker(broker, worker_threads=8)
    worker.start()
    done.wait(300)
    worker.stop()
    return {"rate": _rate(jobs)}


def _taskiq(url: str, handler: Callable[[float], Awaitable[None]]) -> tuple[Any, Any]:
    broker = import_module("taskiq_redis").RedisStreamBroker(url, consumer_id="0")
    return broker, broker.task(task_name="noop")(handler)


def _exit(found: dict[str, float]) -> NoReturn:
    """Print the answer and exit, without waiting for a receiver that may not stop while it is busy."""
    print(json.dumps(found), flush=True)
    os._exit(0)


async def taskiq(url: str, jobs: int) -> None:
    """Drain with the stream broker and its receiver in this process; it acknowledges after the run."""
    done = asyncio.Event()

    async def job(number: float) -> None:
        starts.append(time.perf_counter())
        if len(starts) == jobs:
            done.set()

    broker, task = _taskiq(url, job)
    await broker.startup()
    for number in range(jobs):
        await task.kiq(number)
    receiving = asyncio.ensure_future(_receive(broker))
    async with asyncio.timeout(120):
        await asyncio.wait({receiving, asyncio.ensure_future(done.wait())}, return_when="FIRST_COMPLETED")
    _exit({"rate": _rate(jobs)})


async def _receive(broker: Any) -> None:
    broker.is_worker_process = True
    await import_module("taskiq.api").run_receiver_task(broker, max_async_tasks=100)


# Latency.


async def record_wait(stamp: float) -> None:
    waits.append(time.perf_counter() - stamp)
    started.set()


async def taskiq_latency(url: str, samples: int) -> None:
    broker, _ = _taskiq(url, record_wait)
    await broker.startup()
    receiving = asyncio.ensure_future(_receive(broker))
    found = await _measure_latency("taskiq-producer", url, samples)
    receiving.cancel()
    _exit(found)


async def taskiq_producer(url: str, _: int) -> None:
    broker, task = _taskiq(url, record_wait)
    await broker.startup()
    while await _requested():
        await task.kiq(time.perf_counter())
    await broker.shutdown()


def _app(url: str) -> App:
    app = App(url, config=BrokerConfig(retention=Retention(done=0)))
    app.task(name="noop")(record_wait)
    return app


async def dayjob_latency(url: str, samples: int) -> dict[str, float]:
    async with _app(url) as app:
        worker = Worker(app)
        running = asyncio.ensure_future(worker.run())
        found = await _measure_latency("dayjob-producer", url, samples)
        worker.stop()
        await running
    return found


async def dayjob_producer(url: str, _: int) -> None:
    async with _app(url) as app:
        while await _requested():
            await app.tasks["noop"].aenqueue(time.perf_counter())


async def _requested() -> bool:
    return bool(await asyncio.to_thread(sys.stdin.buffer.readline))


async def _measure_latency(kind: str, url: str, samples: int) -> dict[str, float]:
    """Request one job after the other from a producer. Return the median time to its start."""
    producer = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.redis_peers", kind, url, "0", stdin=subprocess.PIPE
    )
    assert producer.stdin is not None
    for _ in range(samples + WARM_UP):
        producer.stdin.write(b"\n")
        async with asyncio.timeout(30):
            await started.wait()
        started.clear()
        await asyncio.sleep(0.01)
    producer.stdin.close()
    await producer.wait()
    return {"p50": sorted(waits[WARM_UP:])[samples // 2]}


def _rate(jobs: int) -> float:
    if len(starts) != jobs:
        raise RuntimeError(f"{len(starts)} of {jobs} jobs ran")
    return (jobs - 1) / (max(starts) - min(starts))


KINDS: dict[str, Callable[[str, int], Any]] = {
    "taskiq": taskiq,
    "taskiq-latency": taskiq_latency,
    "taskiq-producer": taskiq_producer,
    "dayjob-latency": dayjob_latency,
    "dayjob-producer": dayjob_producer,
}


def main(kind: str, url: str, count: int) -> object:
    if kind == "dramatiq":
        return dramatiq(url, count)
    factory = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(KINDS[kind](url, count))


if __name__ == "__main__":
    _kind, _url, _count = sys.argv[1:]
    print(json.dumps(main(_kind, _url, int(_count))))
