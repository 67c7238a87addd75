"""Calls between threads and event loops, and calls in threads of their own.

These also work after the main thread's end, when thread pools refuse calls.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar
from weakref import WeakSet

from dayjob.errors import InvalidState

Answer = TypeVar("Answer")


class CallThreads(ThreadPoolExecutor):
    """Runs each call in a new daemon thread. A subclass, since event loops take no other default executor."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: WeakSet[Thread] = WeakSet()

    def submit(self, fn: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        future: Future[Answer] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        thread = Thread(target=run, name="dayjob-call", daemon=True)
        thread.start()
        self._calls.add(thread)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        for thread in list(self._calls) if wait else ():
            thread.join()


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    """Call back on the loop, from any thread. A closed loop calls nothing: no task of it waits."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


async def joined(thread: Thread) -> None:
    """Wait for the thread's end, also if this is cancelled. Stuck calls may occupy the default executor."""
    with CallThreads() as waiter:
        await asyncio.get_running_loop().run_in_executor(waiter, thread.join)


def refuse_green_threads(need: str) -> None:
    """Raise if threads are greenlets: all event loops would run in one thread. ``need`` has the remedy."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        library = "gevent"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        library = "eventlet"
    else:
        return
    raise InvalidState(f"{library} has replaced the threads of this process, and {need}")
