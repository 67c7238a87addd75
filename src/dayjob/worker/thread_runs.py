"""Runs whose whole work is done by a thread: each thread takes one waiting run after the other.

Such a run needs no task of the event loop. The threads share one queue, so a run waits only while all
threads with a place are busy. The event loop gets the ends of all runs since its last turn at once. So a
short run costs no switch between threads.

The event loop grants places to threads. One thread is woken. It wakes the next when it takes a run and leaves
others. While runs are short, one thread takes them all. While they are long, all granted places are in use.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context as Variables
from typing import Any

from dayjob.runtime import process
from dayjob.runtime.clock import SYSTEM
from dayjob.worker.executor import Executor, Run
from dayjob.worker.forked_process import end_forked
from dayjob.worker.pool_limit import PoolLimit
from dayjob.worker.thread_pool import ThreadPool

_log = logging.getLogger("dayjob.worker")

_MAX_PER_TURN = 250
"""The reports that are taken in one turn of the event loop, so that it serves others too."""

_Report = tuple[Run, bool, Any, BaseException | None]
"""A run, whether it has ended, its result and its error."""


class ThreadRuns:
    """The threads that take runs from a pool's limit. Used on one event loop.

    ``fresh`` returns the context variables of a run. ``gives_way`` returns whether a slot is needed for an
    older run. ``on_end`` gets a run with its result or error. ``on_change`` is called after runs have ended,
    and ``on_awaitable`` with a run whose function returned an awaitable. It keeps the place, which is no
    longer granted.
    """

    def __init__(
        self,
        limit: PoolLimit,
        threads: ThreadPool,
        executor: Executor,
        stopping: asyncio.Event,
        *,
        fresh: Callable[[], Variables],
        gives_way: Callable[[Run], bool],
        observed: Callable[[], bool],
        on_start: Callable[[Run], None],
        on_end: Callable[[Run, Any, BaseException | None], None],
        on_awaitable: Callable[[Run, Awaitable[Any]], None],
        on_change: Callable[[], None],
    ) -> None:
        self._limit = limit
        self._threads = threads
        self._executor = executor
        self._stopping = stopping
        self._fresh = fresh
        self._gives_way = gives_way
        self._observed = observed
        self._on_start = on_start
        self._on_end = on_end
        self._on_awaitable = on_awaitable
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._pid = process.pid
        self._waking = False
        """Whether a thread was woken that has not looked for a run yet."""
        self._reports: deque[_Report] = deque()
        self._reporting = False
        """Whether the event loop will take the reports."""

    # On the event loop.

    def grant(self, slots: int) -> None:
        """Grant places to threads for the waiting runs, up to this number of slots."""
        limit = self._limit
        with limit.lock:
            if self._can_take():
                more = min(slots, limit.size - limit.used, len(limit.waiting) - limit.granted + limit.active)
                if more > 0:
                    limit.granted += more
                    limit.used += more
            wake = self._start_waking()
        if wake:
            self._wake()

    def could_use_slot(self) -> bool:
        """Return whether a run waits for a slot only."""
        limit = self._limit
        with limit.lock:
            return (
                limit.used < limit.size
                and len(limit.waiting) > limit.granted - limit.active
                and self._can_take()
            )

    def withdraw(self) -> None:
        """Withdraw the granted places without runs."""
        limit = self._limit
        with limit.lock:
            unused = limit.granted - limit.active
            limit.granted -= unused
        for _ in range(unused):
            limit.leave()

    def abandon(self, run: Run) -> None:
        """Settle a run that was interrupted, without its thread, which keeps its place."""
        limit = self._limit
        with limit.lock:
            if run.abandon is None:
                return  # It has ended, and its report is under way.
            run.abandon = None
            limit.active -= 1
            limit.granted -= 1
        limit.abandoned += 1
        run.seconds = SYSTEM.elapsed() - run.started_at
        self._on_end(run, None, asyncio.CancelledError())
        run.abandoned = True
        self._on_change()

    def _take_reports(self) -> None:
        self._reporting = False
        for _ in range(min(len(self._reports), _MAX_PER_TURN)):
            self._take_report(*self._reports.popleft())
        if self._reports:
            self._schedule_reports(self._loop.call_soon)
        self.withdraw()
        self._on_change()

    def _take_report(self, run: Run, ended: bool, result: Any, error: BaseException | None) -> None:
        if not ended:
            if not run.abandoned:
                self._on_start(run)
            if not run.seconds and run.abandon is not None:
                timeout = self._executor.timeout(run)
                if timeout is not None:
                    run.start_timer(run.started_at + timeout - SYSTEM.elapsed())
        elif run.abandoned:
            self._limit.end_abandoned()
        elif result is not None and inspect.isawaitable(result):
            with self._limit.lock:
                self._limit.active -= 1
                self._limit.granted -= 1
            self._on_awaitable(run, result)
        else:
            run.stop_timer()
            self._on_end(run, result, error)

    # In the threads.

    def _work(self) -> None:
        run = self._next(None)
        if run is None:
            self._schedule_reports(self._loop.call_soon_threadsafe)  # Its place may be withdrawn.
        while run is not None:
            report = self._perform(run)
            keeps_place = report[2] is not None and inspect.isawaitable(report[2])
            run = self._next(run, keeps_place=keeps_place)
            self._report(report)  # Now, so that the event loop finds the place that this thread has left.
            del report

    def _next(self, ended: Run | None, *, keeps_place: bool = False) -> Run | None:
        """Return the next run for this thread. None: it has no place any more, and is idle."""
        limit = self._limit
        with limit.lock:
            if ended is None:
                self._waking = False
                has_place = limit.active < limit.granted
            else:
                has_place = ended.abandon is not None and not keeps_place
                ended.abandon = None
            run = self._take() if has_place else None
            if has_place:
                limit.active += (run is not None) - (ended is not None)
            wake = run is not None and self._start_waking()
            for_loop = run is not None and bool(limit.waiting) and limit.needs_loop(limit.waiting[0])
        if run is None:
            self._threads.idle()
        elif wake:
            self._wake()
        if for_loop:
            self._schedule_reports(self._loop.call_soon_threadsafe)
        return run

    def _perform(self, run: Run) -> _Report:
        result, error = None, None
        if run.lost or run.interrupted is not None:
            return run, True, None, asyncio.CancelledError()
        if self._observed() or self._executor.timeout(run) is not None:
            self._report((run, False, None, None))
        try:
            result = self._fresh().run(self._executor.call, run)
        except BaseException as raised:
            error = raised
        if process.pid != self._pid:
            end_forked(error)
        if run.abandon is not None:
            run.seconds = SYSTEM.elapsed() - run.started_at
        try:
            return run, True, result, error
        finally:
            del error  # Its traceback refers to this frame: only the garbage collector would free the cycle.

    def _report(self, report: _Report) -> None:
        self._reports.append(report)
        self._schedule_reports(self._loop.call_soon_threadsafe)

    # Anywhere.

    def _schedule_reports(self, call_soon: Callable[[Callable[[], None]], Any]) -> None:
        """Let the event loop take the reports, unless it will."""
        if not self._reporting:
            self._reporting = True
            with suppress(RuntimeError):  # The loop is closed, so the worker has stopped.
                call_soon(self._take_reports)

    def _can_take(self) -> bool:
        """Return whether a thread may take the next run. Call it with the lock."""
        waiting = self._limit.waiting
        return bool(waiting) and not self._limit.needs_loop(waiting[0]) and not self._stopping.is_set()

    def _take(self) -> Run | None:
        waiting = self._limit.waiting
        if not self._can_take() or self._gives_way(waiting[0]):
            return None
        run = waiting.popleft()
        run.started_at = SYSTEM.elapsed()
        run.abandon = self.abandon
        return run

    def _start_waking(self) -> bool:
        """Return whether to wake a thread: there is a run and a place, and none is awake for it."""
        limit = self._limit
        if self._waking or limit.active >= limit.granted or not self._can_take():
            return False
        self._waking = True
        return True

    def _wake(self) -> None:
        try:
            self._threads.submit(self._work)
        except RuntimeError as error:  # The runs are given back if no other thread takes them.
            self._waking = False
            _log.error("a thread could not be started: %s", error)
