"""The bridge from synchronous code to the async core: one event loop in a daemon thread.

Usable from any number of threads. After a fork the child starts its own loop.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from threading import RLock, Thread, main_thread
from typing import Any, TypeVar

from dayjob.errors import Closed, InvalidState
from dayjob.runtime.threads import CallThreads, refuse_green_threads

Answer = TypeVar("Answer")
Work = Callable[[], Coroutine[Any, Any, Answer]]
Wait = Callable[[Future[Answer]], Answer]

_log = logging.getLogger("dayjob.bridge")
_bridges: weakref.WeakSet[Bridge] = weakref.WeakSet()


class Bridge:
    """Runs coroutines for threads that have no event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()
        _bridges.add(self)

    def reset(self) -> None:
        """Reset in a forked child: the thread, which may hold the lock, exists in the parent only."""
        self._lock = RLock()  # A signal handler may enqueue while its thread holds the lock.
        self._users = 0
        self._close: Work[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def run(self, work: Work[Answer], keep_open: bool = True, wait: Wait[Answer] | None = None) -> Answer:
        """Run the coroutine on the bridge's loop and wait for it in this thread, or in ``wait``.

        The call is a use, unless ``keep_open`` is false: then it raises ``Closed`` when the last user leaves.
        """
        if not keep_open:
            return self._run(work, wait)
        self.enter()
        try:
            return self._run(work, wait)
        finally:
            try:
                self.leave()
            except Exception:
                _log.exception("%s: the app could not be closed", self._name)

    def _run(self, work: Work[Answer], wait: Wait[Answer] | None) -> Answer:
        loop: asyncio.AbstractEventLoop | None = None
        try:
            with self._lock:  # The loop, if it ends, ends after this call has begun on it.
                loop = self.start()
                future = asyncio.run_coroutine_threadsafe(work(), loop)
            return _result(future) if wait is None else wait(future)
        except CancelledError:
            if loop is self._loop:
                raise
            raise Closed(f"{self._name}: the app was closed during the call: call again to open it") from None
        except RuntimeError as error:
            if main_thread().is_alive() or "shutdown" not in str(error):
                raise
            raise InvalidState(
                "the interpreter is ending and starts no more threads, so the app can't open and nothing was "
                "stored: enqueue before the program ends, or open the app before"
            ) from error

    def enter(self) -> None:
        """Begin a use. The loop runs until the last user has left."""
        with self._lock:
            self._users += 1

    def leave(self, close: Work[None] | None = None) -> None:
        """End a use. The last user runs the ``close`` that any user passed, and ends the loop."""
        with self._lock:
            self._users = max(self._users - 1, 0)  # A forked child leaves a use that its parent began.
            self._close = close or self._close
            if self._users or self._close is None:
                return
            close, self._close = self._close, None
            loop, thread = self._take()
        if loop is not None:
            try:
                _result(asyncio.run_coroutine_threadsafe(close(), loop))
            finally:
                _end(loop, thread)

    def stop(self, timeout: float | None = None) -> None:
        """End the loop and wait for its thread, up to the timeout. The next ``run`` starts them again."""
        with self._lock:
            loop, thread = self._take()
        if loop is not None:
            _end(loop, thread, timeout)

    def start(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started if it is not running in this process."""
        with self._lock:
            if self._loop is None:
                need_real_threads()
                loop = asyncio.new_event_loop()
                thread = Thread(target=_serve, args=(loop,), name=self._name, daemon=True)
                try:
                    thread.start()
                except BaseException:
                    loop.close()
                    raise
                self._loop, self._thread = loop, thread
            return self._loop

    def _take(self) -> tuple[asyncio.AbstractEventLoop | None, Thread | None]:
        taken = self._loop, self._thread
        self._loop = self._thread = None
        return taken


def _result(future: Future[Answer]) -> Answer:
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.set_default_executor(CallThreads())
    while True:
        try:
            loop.run_forever()
            break
        except (SystemExit, KeyboardInterrupt):
            continue  # Raised by a coroutine. Its caller gets it; the loop serves the others.
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _end(loop: asyncio.AbstractEventLoop, thread: Thread | None, timeout: float | None = None) -> None:
    loop.call_soon_threadsafe(loop.stop)
    if thread is not None:
        thread.join(timeout)


def need_real_threads() -> None:
    """Raise if threads are greenlets: the loop would then run in the thread of all its callers."""
    refuse_green_threads(
        "synchronous calls need a real one, so nothing was stored: serve with threads (such as "
        "gunicorn -k gthread), or enqueue in another process"
    )


def _after_fork() -> None:
    for bridge in _bridges:
        bridge.reset()


def _at_exit() -> None:
    for bridge in list(_bridges):
        bridge.stop(timeout=1)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
