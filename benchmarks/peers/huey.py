"""Huey on SQLite: one thread, and a poll every 10 ms, the shortest that its documentation recommends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks.open_loop import Put


def _huey(path: str, handler: Callable[[float], None]) -> tuple[Any, Any]:
    queue = import_module("huey").SqliteHuey("bench", results=False, filename=path)

    def wait(stamp: float) -> None:  # its module is a part of the name of the task
        handler(stamp)

    return queue, queue.task(name="wait")(wait)


@asynccontextmanager
async def producing(path: str) -> AsyncIterator[Put]:
    """Yield an enqueue that runs in a thread, as in a web server of threads."""
    _, task = _huey(path, lambda stamp: None)
    with ThreadPoolExecutor(100) as threads:
        yield partial(asyncio.get_running_loop().run_in_executor, threads, task)


@asynccontextmanager
async def working(path: str, started: Callable[[float], None], _: object) -> AsyncIterator[None]:
    queue, _task = _huey(path, started)
    consumer = queue.create_consumer(workers=1, periodic=False, initial_delay=0.01, max_delay=0.01)
    consumer.start()
    yield
    consumer.stop(graceful=True)
