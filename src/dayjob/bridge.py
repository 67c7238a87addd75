"""The way from synchronous code to the async core: one event loop in a daemon thread.

Usable from any number of threads. After a fork the child gets a loop of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from threading import Lock, Thread
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Bridge:
    """Runs coroutines for threads that have no event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def run(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Run the coroutine on the bridge's loop and wait for it in this thread."""
        future = asyncio.run_coroutine_threadsafe(work(), self.start())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and its thread; the next ``run`` starts them again."""
        with self._fork_safe_lock():
            loop = self._loop if self._pid == os.getpid() else None
            thread = self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def start(self) -> asyncio.AbstractEventLoop:
        """The loop, started if it isn't running in this process."""
        with self._fork_safe_lock():
            if self._loop is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True)
                self._pid = os.getpid()
                self._thread.start()
            return self._loop

    def _fork_safe_lock(self) -> Lock:
        """The lock, made anew in a child: it may have been held by a thread that did not come along."""
        if self._pid not in (0, os.getpid()):
            self._lock = Lock()
        return self._lock

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
