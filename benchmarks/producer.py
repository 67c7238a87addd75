"""One producer, and the latency that it sees: ``python -m benchmarks.producer KIND STORE NUMBER``.

Prints a line of JSON. A rate is that of a producer that awaits each enqueue. A latency is measured from just
before the enqueue, in a separate process, to the handler's start in this one, which is idle.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any

from benchmarks.child import (
    WARM_UP,
    Answer,
    call_at_intervals,
    median_wait,
    one_by_one,
    record_wait,
    run,
    wait_for_go,
    wait_until,
    waits,
)
from benchmarks.processes import start_child
from dayjob import App, Worker


async def handle(stamp: float) -> None:
    record_wait(stamp)


def dayjob_app(url: str) -> App:
    app = App(url)
    app.task(name="noop")(handle)
    return app


async def dayjob(url: str, jobs: int) -> Answer:
    async with dayjob_app(url) as app:
        return await one_by_one(jobs, lambda number: app.tasks["noop"].aenqueue(float(number)))


async def dayjob_producer(url: str, jobs: int) -> Answer:
    async with dayjob_app(url) as app:
        await wait_for_go()
        return await call_at_intervals(jobs, lambda stamp: app.tasks["noop"].aenqueue(stamp))


async def dayjob_latency(url: str, jobs: int) -> Answer:
    async with dayjob_app(url) as app, Worker(app):
        return await _measured("dayjob-producer", url, jobs)


def _huey(path: str) -> tuple[Any, Any]:
    """Return Huey on SQLite and a task. It syncs as SQLite's build does, or never if the path has ``off``."""
    fsync = False if "huey-off" in path else None
    queue = import_module("huey").SqliteHuey("bench", results=False, filename=path, fsync=fsync)
    return queue, queue.task(name="noop")(record_wait)


async def huey(path: str, jobs: int) -> Answer:
    _, task = _huey(path)

    async def enqueue(number: int) -> None:
        task(number)

    return await one_by_one(jobs, enqueue)


async def huey_producer(path: str, jobs: int) -> Answer:
    _, task = _huey(path)

    async def enqueue(stamp: float) -> None:
        task(stamp)

    await wait_for_go()
    return await call_at_intervals(jobs, enqueue)


async def huey_latency(path: str, jobs: int) -> Answer:
    """One thread and a poll every 10 ms, the shortest that Huey's documentation recommends."""
    queue, _ = _huey(path)
    consumer = queue.create_consumer(workers=1, periodic=False, initial_delay=0.01, max_delay=0.01)
    consumer.start()
    found = await _measured("huey-producer", path, jobs)
    consumer.stop(graceful=True)
    return found


async def dramatiq(url: str, jobs: int) -> Answer:
    broker = import_module("dramatiq.brokers.redis").RedisBroker(url=url)
    actor: Any = import_module("dramatiq").actor(record_wait, broker=broker)

    async def enqueue(number: int) -> None:
        actor.send(number)

    return await one_by_one(jobs, enqueue)


async def _measured(producer: str, store: str, jobs: int) -> Answer:
    jobs += WARM_UP
    with start_child("benchmarks.producer", producer, store, jobs) as child:
        await asyncio.to_thread(child.wait_until_ready)
        child.go()
        await wait_until(lambda: len(waits) == jobs)
    return median_wait()


KINDS = {
    "dayjob": dayjob, "dayjob-producer": dayjob_producer, "dayjob-latency": dayjob_latency,
    "huey": huey, "huey-producer": huey_producer, "huey-latency": huey_latency, "dramatiq": dramatiq,
}  # fmt: skip

if __name__ == "__main__":
    run(KINDS, sys.argv[1:])
