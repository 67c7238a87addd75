"""The slots of a worker: up to ``size`` asyncio tasks, each of which performs waiting runs in turn.

A run in a thread or a child process also needs a place in its pool. A run that needs a thread but not the
event loop has no task: ``ThreadRuns`` performs it, and each thread that it uses takes a slot.

A run that waits for nothing ends within the first step of its task, and the task takes the next run. Most
short runs therefore need no separate task. A run that was suspended is the last one of its task: libraries
keep state by the current task, such as a scoped session.

Every run starts with the context variables that the worker was started with. If a run changed them, its task
ends, and no other run sees the change.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from asyncio import Task
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any

from dayjob.context import CURRENT
from dayjob.model.settlement import Settlement
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.threads import call_on
from dayjob.task import Pool
from dayjob.worker.executor import Executor, Run, describe
from dayjob.worker.pool_limit import PoolLimit, take
from dayjob.worker.run_rate import RunRate
from dayjob.worker.thread_pool import ThreadPool
from dayjob.worker.thread_runs import ThreadRuns


class Isolation:
    """The context variables of one worker."""

    def __init__(self) -> None:
        self._variables = copy_context()
        self._variables.run(CURRENT.set, None)
        self._values = [item for item in self._variables.items() if item[0] is not CURRENT]
        self._count = len(self._variables)

    def fresh(self) -> Variables:
        """Return the context of a new task."""
        return self._variables.copy()

    def unchanged_by(self, run: Run, task: Task[Any]) -> bool:
        """Return whether the current task, which performed the run, may perform another."""
        if run.interrupted is not None or run.lost or task.cancelling():
            return False  # A cancellation of the task may not be delivered yet.
        variables = copy_context()
        if len(variables) != self._count:
            return False
        for name, value in self._values:  # noqa: SIM110 - a generator is slower
            if variables[name] is not value:
                return False
        return True


_log = logging.getLogger("dayjob.worker")

_RUNS_PER_TASK = 32
_MAX_RUNS_PER_TASK = 128
_TASK_SECONDS = 0.001
"""A task ends after 32 runs, so that the event loop serves others too. In a millisecond, 128 may run."""


class Slots:
    """Performs runs until ``stopping`` is set. Used on one event loop."""

    def __init__(
        self,
        size: int,
        limits: Mapping[Pool, PoolLimit],
        threads: ThreadPool,
        executor: Executor,
        stopping: asyncio.Event,
        *,
        observed: Callable[[], bool],
        on_start: Callable[[Run], None],
        on_end: Callable[[Run, Settlement | None], None],
        on_free: Callable[[], None],
    ) -> None:
        self._size = size
        self._limits = limits
        self._executor = executor
        self._stopping = stopping
        self._on_start = on_start
        self._on_end = on_end
        self._on_free = on_free
        self._loop = asyncio.get_running_loop()
        self._isolation = Isolation()
        self._starting = False
        self._closed = False
        self._thread_ended: asyncio.Future[None] | None = None
        """Set by the next end of a run in a thread, for ``wait``."""
        self.waiting: deque[Run] = deque()
        """The runs that begin in the next free slots. Those that need a place in a pool have one."""
        self.tasks: set[asyncio.Task[None]] = set()
        """The tasks of the slots in use."""
        self.rate = RunRate()
        for limit in limits.values():
            limit.ready = self._begin_next
        self._thread_limit = limits["thread"]
        self._thread_limit.needs_loop = executor.needs_loop
        self._thread_runs = ThreadRuns(
            self._thread_limit, threads, executor, stopping, fresh=self._isolation.fresh,
            gives_way=self._gives_way, observed=observed, on_start=on_start, on_end=self._thread_run_ended,
            on_awaitable=self._await_result, on_change=self._threads_changed,
        )  # fmt: skip

    def add(self, run: Run) -> bool:
        """Let the run begin in a free slot. Return False if its pool has no place for it soon."""
        task = run.task
        if task is not None and task.pool is not None:
            limit = self._limits[task.pool]
            if not limit.needs_loop(run):
                limit.waiting.append(run)
                return limit.unplaced <= limit.rate.ahead()
            if not limit.admit(run):
                return len(limit.waiting) <= limit.rate.ahead()
        self.waiting.append(run)
        return True

    def _begin_next(self, run: Run) -> None:
        self.waiting.appendleft(run)
        self._start_more()

    @property
    def in_use(self) -> int:
        return len(self.tasks) + self._thread_limit.granted

    @property
    def running(self) -> int:
        """The number of runs that have begun and have not ended."""
        return len(self.tasks) + self._thread_limit.active

    @property
    def waiting_for_pools(self) -> int:
        """The number of runs that wait for a place in their pool."""
        return sum(limit.unplaced for limit in self._limits.values())

    def full_queues(self) -> set[str]:
        """Return the queues of the runs that wait for a full pool."""
        return {
            run.job.queue for limit in self._limits.values() if limit.is_full for run in list(limit.waiting)
        }

    @property
    def oldest(self) -> float | None:
        """The time when the oldest run that has not begun was accepted."""
        times: list[float] = []
        for waiting in (*(limit.waiting for limit in self._limits.values()), self.waiting):
            with suppress(IndexError):  # Another thread may take the run.
                times.append(waiting[0].accepted_at)
        return min(times, default=None)

    def take_waiting(self, accepted_by: float = float("inf")) -> list[Run]:
        """Remove and return the runs that were accepted by then and have not begun.

        Callable from any thread.
        """
        without_places: list[Run] = []
        for limit in self._limits.values():
            without_places += limit.take_waiting(accepted_by)
        others = take(self.waiting, accepted_by)
        if without_places or others:
            call_on(self._loop, self._leave_pools, others)
        return without_places + others

    def _leave_pools(self, runs: list[Run]) -> None:
        for run in runs:
            if run.task is not None and run.task.pool is not None:
                self._limits[run.task.pool].leave()
        self._thread_runs.withdraw()  # A place may be granted for a run that was taken.
        self._start_more()

    def start(self) -> None:
        """Start tasks for the waiting runs: one, and twice as many in each later turn of the loop."""
        self._starting = False
        for_threads = self._thread_limit.waiting
        if for_threads and self.waiting and for_threads[0].accepted_at < self.waiting[0].accepted_at:
            self._thread_runs.grant(self._size - self.in_use)
        free = self._size - self.in_use
        for _ in range(min(len(self.waiting), free, max(len(self.tasks), 1))):
            self.tasks.add(self._loop.create_task(self._serve(), context=self._isolation.fresh()))
        if for_threads:
            self._thread_runs.grant(self._size - self.in_use)
        self._start_more()

    def _start_more(self) -> None:
        """Call ``start`` in the next turn, if a run is waiting and a slot may be free."""
        if (
            not self._starting
            and not self._stopping.is_set()
            and self.in_use < self._size
            and (self.waiting or (self._thread_limit.waiting and self._thread_runs.could_use_slot()))
        ):
            self._starting = True
            self._loop.call_soon(self.start)

    def _gives_way(self, run: Run) -> bool:
        """Return whether an older run than this waits for a slot. Callable from any thread."""
        if not self.waiting or self.in_use < self._size:
            return False
        with suppress(IndexError):  # Another thread may take the run.
            return self.waiting[0].accepted_at < run.accepted_at
        return False

    def _threads_changed(self) -> None:
        if self._thread_ended is not None and not self._thread_ended.done():
            self._thread_ended.set_result(None)
        self._thread_limit.place_waiting()
        self._start_more()
        self._on_free()

    def _thread_run_ended(self, run: Run, result: Any, error: BaseException | None) -> None:
        try:
            settlement = self._executor.outcome(run, result, error)
        except BaseException as failure:
            settlement = self._executor_failed(run, failure)
        ended_at = run.started_at + run.seconds
        self.rate.record(run.seconds, ended_at)
        self._thread_limit.rate.record(run.seconds, ended_at)
        self._on_end(run, settlement)

    def _await_result(self, run: Run, result: Awaitable[Any]) -> None:
        """Await the result of a plain function in a task. The run keeps its place until then."""
        awaiting = self._end_in_task(run, result)
        self.tasks.add(self._loop.create_task(awaiting, context=self._isolation.fresh()))

    async def _end_in_task(self, run: Run, result: Awaitable[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            settlement = await self._executor.execute(run, task, result)
        except BaseException as error:
            settlement = self._executor_failed(run, error)
        finally:
            if inspect.iscoroutine(result):
                result.close()  # The run may have been interrupted before this task began.
        self._ended(run, settlement)
        self._end_task(task)

    async def _serve(self) -> None:
        """Perform waiting runs one after the other, in one step, while the task's context is unchanged."""
        task = asyncio.current_task()
        assert task is not None
        first_step = True

        def end_first_step() -> None:
            nonlocal first_step
            first_step = False

        self._loop.call_soon(end_first_step)
        ends_at = SYSTEM.elapsed() + _TASK_SECONDS
        for number in range(_MAX_RUNS_PER_TASK):
            if self._stopping.is_set():
                break
            try:
                run = self.waiting.popleft()
            except IndexError:
                break
            if not self.waiting:
                self._on_free()  # The worker may have put off a claim, and this run may take long.
            self._on_start(run)
            run.started_at = SYSTEM.elapsed()
            try:
                settlement = await self._executor.execute(run, task)
            except BaseException as error:
                settlement = self._executor_failed(run, error)
            ended_at = self._ended(run, settlement)
            if ended_at > ends_at and number >= _RUNS_PER_TASK - 1:
                break
            if not first_step or not self._isolation.unchanged_by(run, task):
                break
        self._end_task(task)

    def _executor_failed(self, run: Run, error: BaseException) -> Settlement:
        if self._closed or self._loop.is_closed():
            raise error
        _log.error("Job %s: the executor failed", run.job.id, exc_info=error)
        return Settlement.nack(run.job, describe(error))

    def _ended(self, run: Run, settlement: Settlement | None) -> float:
        ended_at = SYSTEM.elapsed()
        run.seconds = ended_at - run.started_at
        self.rate.record(run.seconds, ended_at)
        if run.task is not None and run.task.pool is not None:
            limit = self._limits[run.task.pool]
            limit.rate.record(run.seconds, ended_at)
            limit.leave()
        if not run.abandoned:
            self._on_end(run, settlement)
        return ended_at

    def _end_task(self, task: Task[Any]) -> None:
        self.tasks.discard(task)
        self._start_more()
        self._on_free()

    def close(self) -> None:
        """Raise exceptions in abandoned tasks from now on: their runs are no longer settled."""
        self._closed = True

    async def wait(self, seconds: float, or_until: asyncio.Event | None = None) -> None:
        """Wait until all runs have ended, for this many seconds at most, or until the event is set."""
        deadline = SYSTEM.elapsed() + seconds
        interrupt = asyncio.ensure_future(or_until.wait()) if or_until is not None else None
        self._thread_runs.withdraw()
        try:
            while self.in_use and (left := deadline - SYSTEM.elapsed()) > 0:
                if interrupt is not None and interrupt.done():
                    return
                pending: set[asyncio.Future[Any]] = {*self.tasks}
                if interrupt is not None:
                    pending.add(interrupt)
                if self._thread_limit.granted:
                    self._thread_ended = self._loop.create_future()
                    pending.add(self._thread_ended)
                await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if interrupt is not None:
                interrupt.cancel()
