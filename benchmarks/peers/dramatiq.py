"""Dramatiq on Redis, with its default number of threads. It acknowledges after the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks.open_loop import Put


def _dramatiq(url: str, handler: Callable[[float], None]) -> tuple[Any, Any]:
    broker = import_module("dramatiq.brokers.redis").RedisBroker(url=url)
    return broker, import_module("dramatiq").actor(handler, actor_name="wait", broker=broker)


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[Put]:
    """Yield an enqueue that runs in a thread, as in a web server of threads."""
    _, actor = _dramatiq(url, lambda stamp: None)
    with ThreadPoolExecutor(100) as threads:
        yield partial(asyncio.get_running_loop().run_in_executor, threads, actor.send)


@asynccontextmanager
async def working(url: str, started: Callable[[float], None], _: object) -> AsyncIterator[None]:
    broker, _actor = _dramatiq(url, started)
    worker = import_module("dramatiq.worker").Worker(broker, worker_threads=8)
    worker.start()
    yield
    worker.stop()
