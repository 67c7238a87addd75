"""Threads for handlers that are plain functions: started on demand, reused, and abandoned when stuck.

They are daemon threads, so a handler that never returns does not delay the exit of the process. The thread of
an abandoned handler keeps its place in the limit until the handler returns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from msgspec import Struct

from dayjob.runtime import process
from dayjob.worker.forked_process import end_forked
from dayjob.worker.pool_limit import PoolLimit


class Call(Struct, eq=False):
    """One function call for a thread."""

    function: Callable[[], Any]
    future: asyncio.Future[Any]
    variables: Variables


class ThreadPool:
    """As many threads as concurrent calls: callers have a place in the limit. Used on one event loop."""

    def __init__(self, name: str, limit: PoolLimit) -> None:
        self._name = name
        self._limit = limit
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = 0
        self._started = 0
        self._lock = Lock()
        self._results: deque[tuple[Call, Any, BaseException | None]] = deque()
        self._returning = False
        """Whether the event loop will return the results to their callers."""
        self._loop = asyncio.get_running_loop()
        self._pid = process.pid

    async def run(self, function: Callable[[], Any]) -> Any:
        """Return the function's result. If the caller is cancelled, the thread is abandoned."""
        call = Call(function, self._loop.create_future(), copy_context())
        self.submit(partial(self._perform, call))
        try:
            result, error = await call.future
        except asyncio.CancelledError:
            if call.future.cancelled():
                self._limit.abandon()
            raise
        try:
            if error is not None:
                raise error
            return result
        finally:
            del error

    def submit(self, work: Callable[[], None]) -> None:
        """Let an idle thread, or a new one, do the work. It calls ``idle`` at its end.

        Callable from any thread.
        """
        with self._lock:
            start = self._idle == 0
            if start:
                self._started += 1
            else:
                self._idle -= 1
        if start:
            name = f"{self._name}-{self._started}"
            try:
                Thread(target=self._serve, name=name, daemon=True).start()
            except BaseException:
                with self._lock:
                    self._started -= 1
                raise
        self._work.put(work)

    def idle(self) -> None:
        """Let the current thread be reused. Call it before the result of its work is reported."""
        with self._lock:
            self._idle += 1

    def close(self) -> None:
        """End the idle threads. The others end after their calls."""
        for _ in range(self._started):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # An idle thread keeps no arguments and no result alive.

    def _perform(self, call: Call) -> None:
        result, error = None, None
        try:
            result = call.variables.run(call.function)
        except BaseException as raised:
            error = raised
        if process.pid != self._pid:
            end_forked(error)
        self.idle()
        self._results.append((call, result, error))
        error = None  # The traceback refers to this frame: only the garbage collector would free the cycle.
        if not self._returning:
            self._returning = True
            with suppress(RuntimeError):  # The loop is closed, so no caller waits.
                self._loop.call_soon_threadsafe(self._return_results)

    def _return_results(self) -> None:
        self._returning = False
        while self._results:
            call, *returned = self._results.popleft()
            if call.future.cancelled():
                self._limit.end_abandoned()
            else:  # The error is part of the result: SystemExit as an exception would end the event loop.
                call.future.set_result(returned)
