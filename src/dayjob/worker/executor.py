"""The executor: finds a job's task, decodes its arguments, calls it under its timeout, returns a settlement.

It stores nothing. Any exception of a handler, including ``SystemExit``, fails that job only.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dayjob.app import App
from dayjob.context import CURRENT, Context
from dayjob.errors import BadPayload
from dayjob.model.codec import OtherVersion, encode, explained
from dayjob.model.handler_exceptions import DeadLetter, JobCancelled, RetryLater, Snooze
from dayjob.model.job import ATTEMPTS_HEADER, Job
from dayjob.model.lifecycle import ACK, NACK, Transition
from dayjob.model.names import clean_error
from dayjob.model.retry import Retry
from dayjob.model.settlement import Settlement
from dayjob.runtime import entropy, process
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.stop_signal import Reason
from dayjob.task import Task, is_coroutine_function
from dayjob.worker.forked_process import end_forked
from dayjob.worker.thread_pool import ThreadPool
from dayjob.worker.unknown_tasks import UnknownTasks

if TYPE_CHECKING:
    from dayjob.metrics.meter import Series
    from dayjob.worker.process_pool import ProcessPool


class Run(Struct, eq=False):
    """A claimed job, from its claim to its settlement. Changed on the worker's event loop.

    A thread that takes a run sets its times.
    """

    job: Job
    context: Context
    task: Task[Any, Any, Any] | None
    accepted_at: float
    """The time when the worker got the job, on the clock's ``elapsed``, as the two below."""
    renew_at: float
    """The time of half the lease."""
    started_at: float = 0.0
    """The time when the run began. 0: it waits for a slot, or for a place in its pool."""
    worker_task: asyncio.Task[Any] | None = None
    interrupted: Reason | None = None
    """The reason why the worker cancelled the handler. None: a ``CancelledError`` is the handler's own."""
    lost: bool = False
    seconds: float = 0.0
    """The duration, set at the end."""
    meter: Series | None = None
    abandoned: bool = False
    """Whether the run was settled though its handler did not end."""
    outcome: Settlement | None = None
    """The settlement to store, from the end of the run on."""
    abandon: Callable[[Run], None] | None = None
    """Settles the run without its thread. Set while a thread of ``ThreadRuns`` performs it."""
    _timer: asyncio.TimerHandle | None = None

    def cancel_requested(self) -> None:
        """Set the cancel flag and signal, and interrupt the handler if its task is configured so."""
        self.job.cancel_requested = True
        self.context.cancelled.set("cancel")
        if self.task is not None and self.task.config.cancel == "interrupt" and self.task.pool != "thread":
            self.interrupt("cancel")

    def lose(self) -> None:
        """Mark the claim as lost: the outcome of this run no longer counts."""
        self.lost = True
        self.context.cancelled.set("lost")
        if self.task is None or self.task.pool != "thread":
            self.interrupt("lost")

    def interrupt(self, reason: Reason) -> None:
        """Stop the handler: cancel a coroutine, kill a process, abandon a thread."""
        if self.interrupted is None:
            self.interrupted = reason
            self.context.cancelled.set(reason)
            if self.worker_task is not None:
                self.worker_task.cancel()
            elif self.abandon is not None:
                self.abandon(self)

    def start_timer(self, seconds: float | None) -> None:
        """Interrupt the run after this many seconds."""
        self.stop_timer()
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.interrupt, "timeout")

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


OnUnknown = Literal["release", "dead"]

UNKNOWN_TRIES = 100
"""How often in a row a job of an unknown task or call is snoozed before it is dead: about 1.5 hours."""

_TRIES = re.compile(r"(UnknownTask|UnknownParameter|MissingArgument): try (\d+) of ")
"""The last error of such a job contains the number of tries. The next worker parses it."""


class ChildFailed(Exception):
    """A run in a child process did not succeed. Carries the settlement that the child returned."""

    def __init__(self, settlement: Settlement) -> None:
        super().__init__(settlement.error or settlement.transition.value)
        self.settlement = settlement


class NotEncodable:
    """The result of a run whose child could not encode it."""


class Executor:
    """Runs the jobs of one worker. ``host_cancels`` returns whether all tasks of the loop are cancelled."""

    def __init__(
        self,
        app: App,
        threads: ThreadPool,
        processes: ProcessPool,
        host_cancels: Callable[[], bool] = lambda: False,
        *,
        job_timeout: float | None = None,
        on_unknown: OnUnknown = "release",
    ) -> None:
        self._app = app
        self._threads = threads
        self._processes = processes
        self._host_cancels = host_cancels
        self._job_timeout = job_timeout
        self._on_unknown = on_unknown
        self._unknown_tasks = UnknownTasks(app)
        self._async_middleware = any(map(is_coroutine_function, app.middleware))
        self._pid = process.pid

    def timeout(self, run: Run) -> float | None:
        timeout = None if run.task is None else run.task.timeout
        return self._job_timeout if timeout is None else timeout

    def needs_loop(self, run: Run) -> bool:
        """Return whether a part of the run happens on the event loop, though its handler needs a thread."""
        app = self._app
        scoped = app.tenant_scope is not None and run.job.tenant is not None
        return scoped or self._async_middleware or app.tracing is not None

    def call(self, run: Run) -> Any:
        """Call the handler of a run that does not need the event loop, in a thread."""
        context = run.context
        CURRENT.set(context)
        assert run.task is not None
        call = handler_call(run.task, context)
        if self._app.middleware:
            call = self._app.wrapped(context, call, on_loop=False)
        return call()

    def outcome(self, run: Run, result: Any, error: BaseException | None) -> Settlement | None:
        """Return the settlement for the result or the error of ``call``, or None if the claim was lost."""
        task = run.task
        assert task is not None
        if run.lost:
            return None
        if error is None and run.interrupted is not None:
            error = asyncio.CancelledError()
        if error is not None:
            settlement = self._failure(task, run, error, self.timeout(run))
        else:
            try:
                settlement = succeeded(task, run.context, result)
            except BaseException as raised:
                settlement = self._failure(task, run, raised, self.timeout(run))
        return self._completed(task, run, settlement)

    async def execute(
        self, run: Run, worker_task: asyncio.Task[Any], result: Awaitable[Any] | None = None
    ) -> Settlement | None:
        """Return the settlement of the run, or None if the claim was lost. Call it in ``worker_task``.

        The handler may have been called already, and have returned an awaitable ``result``.
        """
        task, context = run.task, run.context
        if run.lost:
            return None
        if task is None:
            missing = f"task {run.job.task!r}" if run.job.task else f"handler for queue {run.job.queue!r}"
            return self._unknown(run.job, "UnknownTask", f"no {missing} is registered")
        timeout = task.timeout if task.timeout is not None else self._job_timeout  # As ``timeout``.
        CURRENT.set(context)
        tracing = self._app.tracing
        unrecorded = None if tracing is None else tracing.enter(context.job)
        run.worker_task = worker_task
        try:
            if run.interrupted is not None:
                raise asyncio.CancelledError
            if result is None:
                call = self._call(task, run, timeout)
                if tracing is not None and unrecorded is None:
                    call = partial(tracing.run, context, call)
                result = call()
            elif timeout is not None:
                run.start_timer(run.started_at + timeout - SYSTEM.elapsed())
            returned = await result
            if run.interrupted is not None:  # The handler suppressed its cancellation, and is not done.
                raise asyncio.CancelledError
            settlement = succeeded(task, context, returned)
        except BaseException as error:
            settlement = self._failure(task, run, error, timeout)
        finally:
            if process.pid != self._pid:
                end_forked(None)
            if run._timer is not None:
                run.stop_timer()
            run.worker_task = None
            if tracing is not None and unrecorded is not None:
                tracing.leave(unrecorded)
        return self._completed(task, run, settlement)

    def _completed(self, task: AnyTask, run: Run, settlement: Settlement) -> Settlement | None:
        if settlement.transition is NACK and ATTEMPTS_HEADER in run.job.headers:
            attempts = task.max_attempts or self._app.config.queue(run.job.queue).max_attempts
            settlement = replace(settlement, max_attempts=attempts)
        if run.context.charges is not None:
            settlement = replace(settlement, charges=run.context.charges)
        return None if run.lost else settlement

    def _unknown(self, job: Job, kind: str, reason: str) -> Settlement:
        settlement = unknown(job, kind, reason, self._on_unknown)
        if settlement.transition is Transition.SNOOZE:
            self._unknown_tasks.warn(job, f"{kind}: {reason}")
        return settlement

    def _call(self, task: AnyTask, run: Run, timeout: float | None) -> Callable[[], Awaitable[Any]]:
        """Return the handler's call, wrapped in tenant scope and middleware. The timeout starts here."""
        app, context = self._app, run.context
        call: Callable[[], Awaitable[Any]]
        if task.pool == "process":
            call = partial(self._in_child, task, context, partial(run.start_timer, timeout))
        else:
            if timeout is not None:
                run.start_timer(timeout)
            call = handler_call(task, context)
            if task.pool == "thread":
                if app.middleware:
                    call = app.wrapped(context, call, on_loop=False)
                call = partial(self._in_thread, call)
            if app.tenant_scope is not None and context.job.tenant is not None:
                call = partial(in_scope, app.tenant_scope(context.job.tenant), call)
        return app.wrapped(context, call, on_loop=True) if app.middleware else call

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        """Call a plain function in a thread. Await its result if it wraps a coroutine function."""
        result = await self._threads.run(function)
        return await result if inspect.isawaitable(result) else result

    async def _in_child(self, task: AnyTask, context: Context, on_start: Callable[[], None]) -> Any:
        """Return the result from a child process. The timeout starts when a child calls the handler."""
        outcome = await self._processes.run(task, context, on_start)
        if outcome.transition is not Transition.ACK:
            raise ChildFailed(outcome)
        context.then(*outcome.enqueue, kv=outcome.kv)
        return msgspec.json.decode(outcome.result) if outcome.result else NotEncodable()

    def _failure(self, task: AnyTask, run: Run, error: BaseException, timeout: float | None) -> Settlement:
        if process.pid != self._pid:
            end_forked(error)
        job = run.job
        if isinstance(error, ChildFailed):
            settlement = error.settlement
            if settlement.transition is Transition.SNOOZE and settlement.error is not None:
                self._unknown_tasks.warn(job, str(settlement.error))  # No other snooze has a reason.
            return settlement
        if isinstance(error, OtherVersion):
            return self._unknown(job, type(error).__name__, str(error))
        if isinstance(error, BadPayload):
            text = f"BadPayload: {error}"
            return Settlement(job, Transition.DEAD_LETTER, text, retention=task.config.retention)
        if isinstance(error, asyncio.CancelledError):
            current = asyncio.current_task()
            reason = run.interrupted
            ending = run.context.shutting_down or self._host_cancels()
            if reason is None and ending and current is not None and current.cancelling():
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
        return failed(task, job, error)


async def in_scope(scope: AbstractAsyncContextManager[Any], call: Callable[[], Awaitable[Any]]) -> Any:
    async with scope:
        return await call()


def unknown(job: Job, kind: str, reason: str, on_unknown: OnUnknown) -> Settlement:
    """Snooze a job of an unknown task or call: another worker may have it. Dead after ``UNKNOWN_TRIES``."""
    if on_unknown == "dead":
        return Settlement.dead_letter(job, f"{kind}: {reason} in this worker")
    earlier = _TRIES.match(job.last_error or "")
    tries = int(earlier[2]) + 1 if earlier else 1
    error = f"{kind}: try {tries} of {UNKNOWN_TRIES}: {reason} in this worker"
    if tries >= UNKNOWN_TRIES:
        return Settlement.dead_letter(job, error)
    return Settlement.snooze(job, min(2.0 ** min(tries - 1, 6), 60.0), reason=error)


def is_misfit(settlement: Settlement) -> bool:
    """Return whether the worker has the task and puts the job back, because the call has other parameters."""
    found = _TRIES.match(str(settlement.error or ""))
    return found is not None and found[1] != "UnknownTask"


def handler_call(task: Task[Any, Any, Any], context: Context) -> Callable[[], Any]:
    """Return the task's function with the job's arguments, or with the job for a raw handler."""
    args: Sequence[Any] = (context.job,)
    kwargs: dict[str, Any] = {}
    if task.arguments is not None:
        args, kwargs = task.arguments.decode(context.job.payload)
    if task.wants_context:
        return partial(task.function, context, *args, **kwargs)
    return partial(task.function, *args, **kwargs)


SURVIVED = "snoozed: the run after a crash has ended"
"""The error of a suspect that snoozed: it is suspect no longer. On its last attempt a crash must count."""

UNENCODABLE = b""
"""Marks a result that could not be stored. No JSON text is empty."""

_NULL = b"null"

AnyTask = Task[Any, Any, Any]


def succeeded(task: AnyTask, context: Context, result: Any) -> Settlement:
    """Return the settlement of a handler that returned."""
    return Settlement(
        context.job,
        ACK,
        result=_NULL if result is None else _encoded(context, result, task.app.config.max_payload),
        enqueue=context.follow_ups,
        kv=context.kv,
        retention=task.config.retention,
    )


def _encoded(context: Context, result: Any, max_result: int) -> bytes:
    """Return the result as JSON. A result that can't be stored is logged: the job is done, not retried."""
    try:
        encoded = encode(result)
    except Exception as error:
        kind = type(result).__name__
        context.log.warning("the result, a %s, can't be stored: %s", kind, explained(error))
        return UNENCODABLE
    if len(encoded) > max_result:
        context.log.warning(
            "the result has %d bytes and can't be stored: the limit is %d", len(encoded), max_result
        )
        return UNENCODABLE
    return encoded


def failed(task: AnyTask, job: Job, error: BaseException) -> Settlement:
    """Return the settlement of a handler that raised, by the retry policy of its task or its queue."""
    retention = task.config.retention
    if isinstance(error, DeadLetter):
        return Settlement(job, Transition.DEAD_LETTER, error=str(error.reason), retention=retention)
    if isinstance(error, RetryLater):
        return Settlement(
            job, Transition.NACK, error=str(error.reason), delay=error.delay, retention=retention
        )
    if isinstance(error, Snooze):
        cleared = SURVIVED if job.suspect and job.attempts < job.max_attempts else None
        return Settlement(job, Transition.SNOOZE, error=cleared, delay=error.delay, retention=retention)
    if isinstance(error, JobCancelled) and job.cancel_requested:
        return Settlement(job, Transition.MARK_CANCELLED, retention=retention)
    text = describe(error)
    policy = task.config.retry or task.app.config.queue(job.queue).policy
    try:
        delay = policy.after(job.attempts, error, entropy.fraction())
    except BaseException as fault:
        text = f"{text}\n\nThe retry policy failed too: {describe(fault)}"
        delay = Retry().delay(job.attempts)
    if delay is None:
        return Settlement(job, Transition.DEAD_LETTER, error=text, retention=retention)
    return Settlement(job, Transition.NACK, error=text, delay=delay, retention=retention)


def describe(error: BaseException) -> str:
    """Return the error in one line, then its traceback: bounded, and storable by every engine."""
    first = "".join(traceback.format_exception_only(error)).strip()
    trace = _without_dayjob(error.__traceback__)
    if trace is None and error.__cause__ is None:
        return clean_error(first)
    return clean_error(
        f"{first}\n\n{''.join(traceback.format_exception(type(error), error, trace)).rstrip()}"
    )


def _without_dayjob(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame of the handler's own code."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("dayjob."):
        trace = trace.tb_next
    return trace
