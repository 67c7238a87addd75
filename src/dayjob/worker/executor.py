"""Running a job: resolve its task, decode, call under its timeout, turn what came of it into a settlement.

The executor stores nothing. Any exception of a handler, ``SystemExit`` and its like included, is that
job's failure and nobody else's.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Literal, Protocol

import msgspec

from dayjob.app import App
from dayjob.context import Context, enter
from dayjob.errors import BadPayload
from dayjob.model.job import Job
from dayjob.model.lifecycle import Transition
from dayjob.model.settlement import Settlement
from dayjob.worker.call import bound
from dayjob.worker.outcome import AnyTask, failed, succeeded
from dayjob.worker.run import Run
from dayjob.worker.threads import ThreadPool

OnUnknown = Literal["release", "dead"]

UNKNOWN_TRIES = 100
"""How often in a row a job whose task nobody knew is put back before it is dead: about an hour and a half."""

_TRIES = re.compile(r"UnknownTask: try (\d+) of ")
"""The last error of such a job says how often it was tried, to people and to the next worker."""


class ProcessRunner(Protocol):
    """Runs a job in a child process; ``begun`` is called when a child has taken it."""

    async def run(
        self, task: AnyTask, context: Context, begun: Callable[[], None] | None = None
    ) -> Settlement: ...


class ChildFailed(Exception):
    """A run in a child process did not succeed; what it came to is settled as the child said."""

    def __init__(self, settlement: Settlement) -> None:
        super().__init__(settlement.error or settlement.transition.value)
        self.settlement = settlement


class NotEncodable:
    """Stands for a result that the child could not encode."""


class Executor:
    """Runs the jobs of one worker."""

    def __init__(
        self,
        app: App,
        threads: ThreadPool,
        processes: ProcessRunner,
        *,
        job_timeout: float | None = None,
        on_unknown: OnUnknown = "release",
    ) -> None:
        self._app = app
        self._threads = threads
        self._processes = processes
        self._job_timeout = job_timeout
        self._on_unknown = on_unknown

    async def execute(self, run: Run, worker_task: asyncio.Task[Any]) -> Settlement | None:
        """The settlement of the run, or None if the claim was lost. To be awaited in that task, its own."""
        task, context = run.task, run.context
        if run.lost:
            return None
        if task is None:
            return self._unknown(run.job)
        timeout = task.timeout if task.timeout is not None else self._job_timeout
        enter(context)
        tracing = self._app.tracing
        unrecorded = None if tracing is None else tracing.enter(context.job)
        run.worker_task = worker_task
        try:
            if run.interrupted is not None:
                raise asyncio.CancelledError
            call = self._call(task, run, timeout)
            if tracing is not None and unrecorded is None:
                call = partial(tracing.run, context, call)
            result = await call()
            settlement = succeeded(task, context, result, self._app.config.max_payload)
        except ChildFailed as error:
            settlement = error.settlement
        except BadPayload as error:
            reason = f"BadPayload: {error}"
            settlement = Settlement(run.job, Transition.DEAD_LETTER, reason, retention=task.config.retention)
        except BaseException as error:
            settlement = self._failure(task, run, error, timeout)
        finally:
            run.stop_alarm()
            run.worker_task = None
            if tracing is not None and unrecorded is not None:
                tracing.leave(unrecorded)
        return None if run.lost else settlement

    def _call(self, task: AnyTask, run: Run, timeout: float | None) -> Callable[[], Awaitable[Any]]:
        """The handler with its arguments, in what the app puts around it; its time counts from here."""
        app, context = self._app, run.context
        call: Callable[[], Awaitable[Any]]
        if task.config.pool == "process":
            call = partial(self._in_child, task, context, partial(run.start_alarm, timeout))
        else:
            if timeout is not None:
                run.start_alarm(timeout)
            call = bound(task, context)
            if not task.is_async:
                call = partial(self._in_thread, call)
            if app.tenant_scope is not None and context.job.tenant is not None:
                call = partial(self._in_scope, app.tenant_scope(context.job.tenant), call)
        for middleware in reversed(app.middleware):
            call = partial(middleware, context, call)
        return call

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        """A plain function's result; a wrapper around a coroutine function returns what is to be awaited."""
        result = await self._threads.run(function)
        return await result if inspect.isawaitable(result) else result

    async def _in_child(self, task: AnyTask, context: Context, begun: Callable[[], None]) -> Any:
        """The result from a child process; the time that the job may take counts from when it has one."""
        outcome = await self._processes.run(task, context, begun)
        if outcome.transition is not Transition.ACK:
            raise ChildFailed(outcome)
        context.then(*outcome.enqueue, kv=outcome.kv)
        return msgspec.json.decode(outcome.result) if outcome.result else NotEncodable()

    async def _in_scope(
        self, scope: AbstractAsyncContextManager[Any], call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """The call within the tenant's scope."""
        async with scope:
            return await call()

    def _failure(self, task: AnyTask, run: Run, error: BaseException, timeout: float | None) -> Settlement:
        job = run.job
        if isinstance(error, asyncio.CancelledError):
            current = asyncio.current_task()
            reason = run.interrupted
            if reason is None and run.context.shutting_down and current is not None and current.cancelling():
                reason = "shutdown"
            if reason is not None and current is not None:
                current.uncancel()
            if reason == "shutdown":
                return Settlement(job, Transition.RELEASE)
            if reason == "cancel":
                return Settlement(job, Transition.MARK_CANCELLED, retention=task.config.retention)
            if reason == "timeout":
                trace = error.__traceback__
                error = TimeoutError(f"timed out after {timeout:g} s").with_traceback(trace)
        policy = task.config.retry or self._app.config.queue(job.queue).policy
        return failed(task, job, error, policy)

    def _unknown(self, job: Job) -> Settlement:
        """No task of that name here: others may know it, so put it back, for a while."""
        missing = f"task {job.task!r}" if job.task else f"handler for queue {job.queue!r}"
        if self._on_unknown == "dead":
            return Settlement.dead_letter(job, f"UnknownTask: no {missing} is registered in this worker")
        said = _TRIES.match(job.last_error or "")
        tries = int(said[1]) + 1 if said else 1
        error = f"UnknownTask: try {tries} of {UNKNOWN_TRIES}: no {missing} is registered in this worker"
        if tries >= UNKNOWN_TRIES:
            return Settlement.dead_letter(job, error)
        return Settlement.snooze(job, min(2.0 ** min(tries - 1, 6), 60.0), reason=error)
