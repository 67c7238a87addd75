"""Running jobs in a test: on a separate store, on demand, or at enqueue."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any

from msgspec import Struct

from dayjob.app import App
from dayjob.context import CALLING_THREAD, Context
from dayjob.errors import JobFailed
from dayjob.model.durations import SECOND
from dayjob.model.lifecycle import Transition
from dayjob.model.settlement import Settlement, SettleResult
from dayjob.runtime.bridge import Bridge
from dayjob.runtime.ids import new_key
from dayjob.testing.clock import ManualClock
from dayjob.testing.transactions import HeldJobs
from dayjob.worker import Worker
from dayjob.worker.executor import ChildFailed, is_misfit
from dayjob.worker.pool_limit import PoolLimit
from dayjob.worker.settler import Batch
from dayjob.worker.thread_pool import ThreadPool

Calls = SimpleQueue[Callable[[], None] | None]
"""The calls for a thread. None ends it."""

_draining: ContextVar[bool] = ContextVar("dayjob_testing_draining", default=False)


@contextmanager
def sandbox(app: App, clock: ManualClock | None = None) -> Iterator[App]:
    """Run the block with the app on a new memory store, and on the clock if one is given.

    A job with ``using(connection=...)`` exists when the transaction of that connection commits. The app's own
    brokers are restored afterwards, so an app made for production can be tested as it is.
    """
    before = app.url, app.clock, app._brokers, app._bridge, app.before_use
    held = HeldJobs()
    app.url = f"memory://sandbox-{new_key().hex()}"
    app.clock = clock
    app.before_use = held.before_use
    app._brokers = {}
    app._bridge = bridge = Bridge(f"{app.name}-sandbox")
    try:
        yield app
    finally:
        if app._brokers:
            bridge.run(app.close)
        bridge.stop()
        held.close()
        app.url, app.clock, app._brokers, app._bridge, app.before_use = before


async def adrain(
    app: App, *, queues: Sequence[str] = (), scheduled: bool = False, raises: bool = True
) -> int:
    """Run the app's jobs until none is claimable. Return the number of runs.

    If the last run of a job failed, raise the exception of its task, unless ``raises`` is false.
    ``scheduled=True`` also runs the jobs that are due later, including retries: it advances the app's
    ``ManualClock`` to each due time.
    """
    return await _drain(app, queues, scheduled, raises, None)


def drain(app: App, *, queues: Sequence[str] = (), scheduled: bool = False, raises: bool = True) -> int:
    """``adrain`` for synchronous tests. Jobs run one by one, and plain functions in the calling thread."""
    calls: Calls = SimpleQueue()

    def serve(future: Future[int]) -> int:
        future.add_done_callback(lambda _: calls.put(None))
        try:
            while (call := calls.get()) is not None:
                call()
        except BaseException:
            future.cancel()
            raise
        return future.result()

    return app.call(lambda: _drain(app, queues, scheduled, raises, calls), wait=serve)


async def _drain(app: App, queues: Sequence[str], scheduled: bool, raises: bool, calls: Calls | None) -> int:
    failures = Failures()
    token = _draining.set(True)
    if calls is not None:
        CALLING_THREAD.set(QueuedCalls(calls))
    middleware, app.middleware = app.middleware, (failures.observe, *app.middleware)
    runs = 0
    try:
        while True:
            worker = DrainingWorker(app, queues, failures, calls)
            await worker.run_until_idle()
            runs += worker.done
            due = await (await app.opened()).next_due() if scheduled else None
            if due is None:
                break
            if not isinstance(app.clock, ManualClock):
                raise TypeError("scheduled=True advances the clock: use sandbox(app, clock=ManualClock())")
            app.clock.advance(due / SECOND)
    finally:
        app.middleware = middleware
        _draining.reset(token)
    if raises:
        failures.check()
    return runs


@contextmanager
def eager(app: App, *, raises: bool = True) -> Iterator[App]:
    """In the block each job runs when it is enqueued, before ``enqueue`` returns, as by ``drain``.

    If it fails, ``enqueue`` raises the exception of the task, unless ``raises`` is false. Jobs that a handler
    enqueues run in the same call. Jobs scheduled for later stay.
    """
    before, app.runner = app.runner, EagerRunner(app, raises)
    try:
        yield app
    finally:
        app.runner = before


class EagerRunner(Struct):
    """Drains an app after each enqueue, except for those of handlers: the drain under way runs their jobs."""

    _app: App
    _raises: bool

    def run(self) -> None:
        if not _draining.get():
            drain(self._app, raises=self._raises)

    async def arun(self) -> None:
        if not _draining.get():
            await adrain(self._app, raises=self._raises)


class Failures:
    """The exceptions of failed runs by job. A later run of the job that does not fail removes it."""

    def __init__(self) -> None:
        self._raised: dict[bytes, BaseException] = {}
        self._failed: dict[bytes, BaseException] = {}

    async def observe(self, context: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """The outermost middleware."""
        try:
            return await call_next()
        except BaseException as error:
            self._raised[context.job.key] = error
            raise

    def settled(self, settlement: Settlement) -> None:
        job = settlement.job
        error = self._raised.pop(job.key, None)
        if settlement.transition not in (Transition.NACK, Transition.DEAD_LETTER) and not is_misfit(
            settlement
        ):
            self._failed.pop(job.key, None)
            return
        if error is None or isinstance(error, CancelledError | ChildFailed):
            error = JobFailed(str(settlement.error))  # A timeout, a child process, or a bad payload.
        error.add_note(
            f"Raised by job {job.id}, task {job.task!r}, run {job.attempts} of {job.max_attempts}. "
            "With raises=False only the job has the error."
        )
        self._failed[job.key] = error

    def check(self) -> None:
        """Raise the first exception. A note has the number of the others."""
        if self._failed:
            first, *others = self._failed.values()
            if others:
                first.add_note(f"Of the other jobs {len(others)} failed: {', '.join(map(repr, others[:5]))}")
            raise first


class DrainingWorker(Worker):
    """A worker that collects failures. With ``calls``, plain functions run in the thread that makes these."""

    def __init__(self, app: App, queues: Sequence[str], failures: Failures, calls: Calls | None) -> None:
        super().__init__(app, queues, concurrency=100 if calls is None else 1)
        self._failures = failures
        self._calls = calls

    def _new_threads(self, limit: PoolLimit) -> ThreadPool:
        return super()._new_threads(limit) if self._calls is None else CallingThread(self._calls, limit)

    def _settled(self, batch: Batch, results: Sequence[SettleResult]) -> None:
        for _, settlement in batch:
            self._failures.settled(settlement)
        super()._settled(batch, results)


class QueuedCalls(Executor):
    """Runs functions in the thread that drains the app."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def call() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(call)
        return future


class CallingThread(ThreadPool):
    """A pool without threads of its own: the thread that drains the app makes the calls."""

    def __init__(self, calls: Calls, limit: PoolLimit) -> None:
        super().__init__("", limit)
        self._served = calls

    def submit(self, work: Callable[[], None]) -> None:
        self._served.put(work)
