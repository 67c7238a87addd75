"""Calls in threads of their own, also after the main thread's end, when thread pools refuse calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class CallThreads(ThreadPoolExecutor):
    """Runs each call in a new daemon thread. A subclass, since event loops take no other default executor."""

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

        Thread(target=run, name="dayjob-call", daemon=True).start()
        return future


async def in_thread(function: Callable[[], Answer]) -> Answer:
    """Return the function's result. Calls that never end may occupy the loop's default executor."""
    return await asyncio.get_running_loop().run_in_executor(CallThreads(), function)
