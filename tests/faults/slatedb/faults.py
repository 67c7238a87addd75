"""Faults of a bucket, and brokers that give up early."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from dayjob import Broker
from dayjob.engines.slatedb.store_thread import StoreThread
from tests.engines.slatedb.damage import open_thread
from tests.engines.slatedb.s3 import Proxy

LOG_WRITE: Callable[[str, str], bool] = lambda method, path: method == "PUT" and "/wal/" in path  # noqa: E731


def refuse_once(proxy: Proxy, status: bytes) -> None:
    """Refuse the next write to the log of the database."""
    left = [status]

    def fails(method: str, path: str) -> bool:
        return LOG_WRITE(method, path) and "/trial-" not in path and bool(left) and bool(left.pop())

    proxy.failing, proxy.fails = status, fails


def limit(broker: Broker, url: str, seconds: float) -> None:
    """Reduce the time limit of an open broker. Opening may take longer."""
    thread = open_thread(url)
    thread.settings = thread._database.settings = replace(thread.settings, timeout=seconds)
    broker._engine.timeout = seconds


def on_thread(thread: StoreThread, work: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
    """Run the work on the event loop of the thread."""
    assert thread._loop is not None
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, thread._loop))
