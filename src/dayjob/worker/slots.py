"""The slots of a worker: up to ``size`` asyncio tasks, each of which performs waiting runs in turn.

A run in a thread or a child process also needs a place in its pool.

A run that waits for nothing ends within the first step of its task, and the task takes the next run. Most
short runs therefore need no separate task. A run that was suspended is the last one of its task: libraries
keep state by the current task, such as a scoped session.

Every run starts with the context variables that the worker was started with. If a run changed them, its task
ends, and no other run sees the change.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any

from dayjob.context import CURRENT, enter
from dayjob.model.settlement import Settlement
from dayjob.runtime.clock import SYSTEM
from dayjob.task import Pool
from dayjob.worker.executor import Executor, Run, describe
from dayjob.worker.pool_limit import PoolLimit
from dayjob.worker.run_rate import RunRate


class Isolation:
    """The context variables of one worker."""

    def __init__(self) -> None:
        self._variables = copy_context()
        self._variables.run(enter, None)
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

_MAX_RUNS_PER_TASK = 32
"""A task ends after this many runs, so that the event loop serves others too."""


class Slots:
    """Performs runs until ``stopping`` is set. Used on one event loop."""

    def __init__(
        self,
        size: int,
        limits: Mapping[Pool, PoolLimit],
        executor: Executor,
        stopping: asyncio.Event,
        *,
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
        self.waiting: deque[Run] = deque()
        """The runs that begin in the next free slots. Those that need a place in a pool have one."""
        self.tasks: set[asyncio.Task[None]] = set()
        """The tasks of the slots in use."""
        self.rate = RunRate()
        for limit in limits.values():
            limit.ready = self._begin_next

    def add(self, run: Run) -> bool:
        """Let the run begin in a free slot. Return False if its pool has no place for it soon."""
        task = run.task
        if task is not None and task.pool is not None:
            limit = self._limits[task.pool]
            if not limit.admit(run):
                return len(limit.waiting) <= limit.rate.ahead()
        self.waiting.append(run)
        return True

    def _begin_next(self, run: Run) -> None:
        self.waiting.appendleft(run)
        self._start_more()

    @property
    def waiting_for_pools(self) -> int:
        """The number of runs that wait for a place in their pool."""
        return sum(len(limit.waiting) for limit in self._limits.values())

    def full_queues(self) -> set[str]:
        """Return the queues of the runs that wait for a full pool."""
        return {
            run.job.queue for limit in self._limits.values() if limit.is_full for run in list(limit.waiting)
        }

    @property
    def oldest(self) -> float | None:
        """The time when the oldest run that has not begun was accepted."""
        times: list[float] = []
        for waiting in self._all_waiting():
            with suppress(IndexError):  # Another thread may take the run.
                times.append(waiting[0].accepted_at)
        return min(times, default=None)

    def take_waiting(self, accepted_by: float = float("inf")) -> list[Run]:
        """Remove and return the runs that were accepted by then and have not begun.

        Callable from any thread.
        """
        without_places: list[Run] = []
        for limit in self._limits.values():
            without_places += _take(limit.waiting, accepted_by)
        others = _take(self.waiting, accepted_by)
        if others:
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._leave_pools, others)
        return without_places + others

    def _all_waiting(self) -> list[deque[Run]]:
        return [*(limit.waiting for limit in self._limits.values()), self.waiting]

    def _leave_pools(self, runs: list[Run]) -> None:
        for run in runs:
            if run.task is not None and run.task.pool is not None:
                self._limits[run.task.pool].leave()

    def start(self) -> None:
        """Start tasks for the waiting runs: one, and twice as many in each later turn of the loop."""
        self._starting = False
        free = self._size - len(self.tasks)
        for _ in range(min(len(self.waiting), free, max(len(self.tasks), 1))):
            self.tasks.add(self._loop.create_task(self._serve(), context=self._isolation.fresh()))
        self._start_more()

    def _start_more(self) -> None:
        """Call ``start`` in the next turn, if a run is waiting and a slot may be free."""
        if (
            self.waiting
            and not self._starting
            and not self._stopping.is_set()
            and len(self.tasks) < self._size
        ):
            self._starting = True
            self._loop.call_soon(self.start)

    async def _serve(self) -> None:
        """Perform waiting runs one after the other, in one step, while the task's context is unchanged."""
        task = asyncio.current_task()
        assert task is not None
        first_step = True

        def end_first_step() -> None:
            nonlocal first_step
            first_step = False

        self._loop.call_soon(end_first_step)
        for _ in range(_MAX_RUNS_PER_TASK):
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
                if self._closed or self._loop.is_closed():
                    raise
                _log.exception("Job %s: the executor failed", run.job.id)
                settlement = Settlement.nack(run.job, describe(error))
            ended_at = SYSTEM.elapsed()
            run.seconds = ended_at - run.started_at
            self.rate.record(run.seconds, ended_at)
            if run.task is not None and run.task.pool is not None:
                limit = self._limits[run.task.pool]
                limit.rate.record(run.seconds, ended_at)
                limit.leave()
            if not run.abandoned:
                self._on_end(run, settlement)
            if not first_step or not self._isolation.unchanged_by(run, task):
                break
        self.tasks.discard(task)
        self._start_more()
        self._on_free()

    def close(self) -> None:
        """Raise exceptions in abandoned tasks from now on: their runs are no longer settled."""
        self._closed = True

    async def wait(self, seconds: float, or_until: asyncio.Event | None = None) -> None:
        """Wait until all tasks have ended, for this many seconds at most, or until the event is set."""
        deadline = SYSTEM.elapsed() + seconds
        interrupt = asyncio.ensure_future(or_until.wait()) if or_until is not None else None
        try:
            while self.tasks and (left := deadline - SYSTEM.elapsed()) > 0:
                if interrupt is not None and interrupt.done():
                    return
                pending: set[asyncio.Future[Any]] = {*self.tasks}
                if interrupt is not None:
                    pending.add(interrupt)
                await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if interrupt is not None:
                interrupt.cancel()


def _take(waiting: deque[Run], accepted_by: float) -> list[Run]:
    taken: list[Run] = []
    with suppress(IndexError):  # Another thread may take the last one.
        while waiting[0].accepted_at <= accepted_by:
            taken.append(waiting.popleft())
    return taken
