"""TaskIQ's stream broker on Redis. It acknowledges after the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.open_loop import Put


def _taskiq(url: str, handler: Callable[[float], None]) -> tuple[Any, Any]:
    broker = import_module("taskiq_redis").RedisStreamBroker(url, consumer_id="0")

    async def wait(stamp: float) -> None:
        handler(stamp)

    return broker, broker.task(task_name="wait")(wait)


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[Put]:
    broker, task = _taskiq(url, lambda stamp: None)
    await broker.startup()
    yield task.kiq
    await broker.shutdown()


@asynccontextmanager
async def working(url: str, started: Callable[[float], None], _: object) -> AsyncIterator[None]:
    broker, _task = _taskiq(url, started)
    broker.is_worker_process = True
    await broker.startup()
    run = import_module("taskiq.api").run_receiver_task(broker, max_async_tasks=100, max_prefetch=100)
    running = asyncio.ensure_future(run)
    yield
    running.cancel()
    await asyncio.wait({running}, timeout=2)
