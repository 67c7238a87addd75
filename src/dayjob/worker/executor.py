"""The executor: finds a job's task, decodes its arguments, calls it under its timeout, returns a settlement.

It stores nothing. Any exception of a handler, including ``SystemExit``, fails that job only.
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
from dayjob.worker.handler_call import handler_call
from dayjob.worker.outcome import AnyTask, failed, succeeded
from dayjob.worker.run import Run
from dayjob.worker.thread_pool import ThreadPool

OnUnknown = Literal["release", "dead"]

UNKNOWN_TRIES = 100
"""How often in a row a job with an unknown task is released before it is dead: about an hour and a half."""

_TRIES = re.compile(r"UnknownTask: try (\d+) of ")
"""The last error of such a job holds the number of tries, for people and for the next worker."""


class ProcessRunner(Protocol):
    """Runs a job in a child process. ``on_start`` is called when a child has started it."""

    async def run(
        self, task: AnyTask, context: Context, on_start: Callable[[], None] | None = None
    ) -> Settlement: ...


class ChildFailed(Exception):
    """A run in a child process did not succeed. Carries the settlement that the child returned."""

    def __init__(self, settlement: Settlement) -> None:
        super().__init__(settlement.error or settlement.transition.value)
        self.settlement = settlement


class NotEncodable:
    """The result of a run whose child could not encode it."""


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
        """Return the settlement of the run, or None if the claim was lost. Call it in ``worker_task``."""
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
            run.stop_timer()
            run.worker_task = None
            if tracing is not None and unrecorded is not None:
                tracing.leave(unrecorded)
        return None if run.lost else settlement

    def _call(self, task: AnyTask, run: Run, timeout: float | None) -> Callable[[], Awaitable[Any]]:
        """Return the handler's call, wrapped in tenant scope and middleware. The timeout starts here."""
        app, context = self._app, run.context
        call: Callable[[], Awaitable[Any]]
        if task.config.pool == "process":
            call = partial(self._in_child, task, context, partial(run.start_timer, timeout))
        else:
            if timeout is not None:
                run.start_timer(timeout)
            call = handler_call(task, context)
            if not task.is_async:
                call = partial(self._in_thread, call)
            if app.tenant_scope is not None and context.job.tenant is not None:
                call = partial(self._in_scope, app.tenant_scope(context.job.tenant), call)
        for middleware in reversed(app.middleware):
            call = partial(middleware, context, call)
        return call

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        """Call a plain function in a thread. Await its result if it wraps a coroutine function."""
        result = await self._threads.run(function)
        return await result if inspect.isawaitable(result) else result

    async def _in_child(self, task: AnyTask, context: Context, on_start: Callable[[], None]) -> Any:
        """Return the result from a child process. The timeout starts when a child has started the job."""
        outcome = await self._processes.run(task, context, on_start)
        if outcome.transition is not Transition.ACK:
            raise ChildFailed(outcome)
        context.then(*outcome.enqueue, kv=outcome.kv)
        return msgspec.json.decode(outcome.result) if outcome.result else NotEncodable()

    async def _in_scope(
        self, scope: AbstractAsyncContextManager[Any], call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Run the call inside the tenant's scope."""
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
        """Snooze a job with an unknown task: another worker may have it. Dead after ``UNKNOWN_TRIES``."""
        missing = f"task {job.task!r}" if job.task else f"handler for queue {job.queue!r}"
        if self._on_unknown == "dead":
            return Settlement.dead_letter(job, f"UnknownTask: no {missing} is registered in this worker")
        earlier = _TRIES.match(job.last_error or "")
        tries = int(earlier[1]) + 1 if earlier else 1
        error = f"UnknownTask: try {tries} of {UNKNOWN_TRIES}: no {missing} is registered in this worker"
        if tries >= UNKNOWN_TRIES:
            return Settlement.dead_letter(job, error)
        return Settlement.snooze(job, min(2.0 ** min(tries - 1, 6), 60.0), reason=error)
