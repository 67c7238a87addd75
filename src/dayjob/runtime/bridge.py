"""The bridge from synchronous code to the async core: one event loop in a daemon thread.

Usable from any number of threads. After a fork the child starts its own loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import weakref
from collections.abc import Callable, Coroutine
from threading import Lock, Thread
from typing import Any, TypeVar

Answer = TypeVar("Answer")

_bridges: weakref.WeakSet[Bridge] = weakref.WeakSet()


class Bridge:
    """Runs coroutines for threads that have no event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()
        _bridges.add(self)

    def reset(self) -> None:
        """Reset in a forked child: the thread, which may hold the lock, exists in the parent only."""
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def is_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether this is the bridge's loop."""
        return loop is self._loop

    def run(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Run the coroutine on the bridge's loop and wait for it in this thread."""
        future = asyncio.run_coroutine_threadsafe(work(), self.start())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self, timeout: float | None = None) -> None:
        """End the loop and wait for its thread, up to the timeout. The next ``run`` starts them again."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout)

    def start(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started if it is not running in this process."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _after_fork() -> None:
    for bridge in _bridges:
        bridge.reset()


def _at_exit() -> None:
    for bridge in list(_bridges):
        bridge.stop(timeout=1)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
