"""The child's side of ``pool="process"``: takes jobs one by one, runs them, and says what came of them.

A thread reads what the worker says, so that a cancel reaches a handler that is busy. The main thread
runs the handlers; a plain function runs on no event loop, as it would in a thread of the worker. When
the worker goes away, whichever way, the child ends, and with a job under way so does all that it started.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any

from dayjob.app import App, known_apps
from dayjob.context import Context, enter
from dayjob.errors import BadPayload
from dayjob.model.handler_exceptions import DeadLetter
from dayjob.model.lifecycle import Transition
from dayjob.model.names import clean_error
from dayjob.model.settlement import Settlement
from dayjob.runtime.stop_signal import StopSignal
from dayjob.worker.call import bound
from dayjob.worker.messages import (
    Began,
    Cancelled,
    Ended,
    Frames,
    Logged,
    Message,
    Progressed,
    ShuttingDown,
    Start,
    frame,
    from_worker,
    packed,
    unpacked_job,
)  # fmt: skip
from dayjob.worker.outcome import AnyTask, describe, failed, succeeded

GRACE = 2.0
"""Seconds that an idle child has for leaving the app's lifespan when it is no longer needed."""

WORKERS_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Meant for the worker, which decides what becomes of its children; blocked until they are ignored here."""


def serve(connection: socket.socket) -> None:
    """The life of a child."""
    os.setpgid(0, 0)
    _leave_signals_to_the_worker()
    connection.set_inheritable(False)
    Child(Line(connection)).serve()


def _leave_signals_to_the_worker() -> None:
    """Ignore them by a handler: what the job starts must not inherit deaf ears."""
    for number in WORKERS_SIGNALS:
        signal.signal(number, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WORKERS_SIGNALS)
    os.register_at_fork(after_in_child=_restore_signals)


def _ignore(*_: object) -> None:
    return


def _restore_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Line:
    """The connection to the worker; any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._frames = Frames()

    def send(self, message: Message) -> None:
        data = frame(message)
        with self._sending, suppress(OSError):  # The worker is gone: the reading thread sees to it.
            self._connection.sendall(data)

    def read(self, take: Callable[[bytes], None]) -> None:
        """Read until the worker is gone."""
        with suppress(OSError):
            while data := self._connection.recv(1 << 16):
                for message in self._frames.feed(data):
                    take(message)


class Child:
    """Runs the jobs that come over the line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._jobs: SimpleQueue[tuple[Start, Context] | None] = SimpleQueue()
        self._shutting_down = StopSignal()
        self._running: Context | None = None
        self._runner = asyncio.Runner()
        self._lifespans: dict[App, Lifespan] = {}

    def serve(self) -> None:
        _send_logs_to(self._line)
        threading.Thread(target=self._listen, name="dayjob-worker", daemon=True).start()
        with self._runner:
            while (received := self._jobs.get()) is not None:
                self._line.send(Began())
                ended = self._perform(*received)
                self._running = None
                self._line.send(ended)
            self._runner.run(self._close())

    # In the reading thread.

    def _listen(self) -> None:
        self._line.read(self._hear)
        if self._running is None:
            self._jobs.put(None)
            threading.Event().wait(GRACE)
        os.killpg(0, signal.SIGKILL)

    def _hear(self, data: bytes) -> None:
        message = from_worker(data)
        if isinstance(message, Start):
            self._accept(message)
        elif isinstance(message, ShuttingDown):
            self._shutting_down.set(message.reason)
        elif self._running is not None:
            _cancel(self._running, message)

    def _accept(self, start: Start) -> None:
        if start.shutting_down is not None:
            self._shutting_down.set(start.shutting_down)
        context = Context(unpacked_job(start.job), self._shutting_down, report=self._report_progress)
        if start.cancelled is not None:
            context.cancelled.set(start.cancelled)
        self._running = context
        self._jobs.put((start, context))

    # In the main thread.

    def _report_progress(self, context: Context, fraction: float, message: str) -> None:
        if context is self._running:
            self._line.send(Progressed(fraction, clean_error(message)))

    def _perform(self, start: Start, context: Context) -> Ended:
        logging.getLogger("dayjob.job").setLevel(max(start.log_level, 1))
        try:
            task = find(start)
        except DeadLetter as error:
            return packed(Settlement(context.job, Transition.DEAD_LETTER, error=error.reason))
        try:
            result = self._run(task, context)
            return packed(succeeded(task, context, result, task.app.config.max_payload))
        except BadPayload as error:
            return packed(Settlement(context.job, Transition.DEAD_LETTER, error=f"BadPayload: {error}"))
        except BaseException as error:
            policy = task.config.retry or task.app.config.queue(context.job.queue).policy
            return packed(failed(task, context.job, error, policy))

    def _run(self, task: AnyTask, context: Context) -> Any:
        context.state = self._state(task.app)
        call = bound(task, context)
        variables = copy_context()
        variables.run(enter, context)
        scope = task.app.tenant_scope
        tenant = context.job.tenant
        if scope is not None and tenant is not None:
            if task.is_async:
                return self._runner.run(_within(scope(tenant), call), context=variables)
            return self._call_within(scope(tenant), call, variables)
        if task.is_async:
            return self._runner.run(call(), context=variables)
        return variables.run(call)

    def _call_within(self, scope: Any, call: Callable[[], Any], variables: Variables) -> Any:
        """A plain call inside an async scope, which one coroutine enters and leaves."""
        loop = self._runner.get_loop()
        entered, returned = asyncio.Event(), asyncio.Event()
        outcome: Callable[[], Any] = partial(_raise, RuntimeError("the scope was not entered"))

        async def hold() -> Any:
            async with scope:
                entered.set()
                await returned.wait()
                return outcome()

        holding = loop.create_task(hold(), context=variables)
        loop.run_until_complete(_either(entered, holding))
        if entered.is_set():
            try:
                outcome = partial(_same, variables.run(call))
            except BaseException as error:
                outcome = partial(_raise, error)
            returned.set()
        return loop.run_until_complete(holding)

    def _state(self, app: App) -> Any:
        """What the app's lifespan yielded; it is entered by the first job."""
        if app.lifespan is None:
            return None
        lifespan = self._lifespans.get(app)
        if lifespan is None:
            lifespan = Lifespan(app)
            self._runner.run(lifespan.enter())
            self._lifespans[app] = lifespan
        return lifespan.state

    async def _close(self) -> None:
        for lifespan in self._lifespans.values():
            with suppress(Exception):
                await lifespan.leave()
        for app in known_apps():
            with suppress(Exception):
                await app.close()


class Lifespan:
    """An app's lifespan, entered and left by one coroutine, as task groups require."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._entered, self._over = asyncio.Event(), asyncio.Event()
        self.state: Any = None

    async def enter(self) -> None:
        self._holding = asyncio.create_task(self._hold())
        await _either(self._entered, self._holding)
        if not self._entered.is_set():
            await self._holding

    async def leave(self) -> None:
        self._over.set()
        await self._holding

    async def _hold(self) -> None:
        assert self._app.lifespan is not None
        async with self._app.lifespan(self._app) as self.state:
            self._entered.set()
            await self._over.wait()


def find(start: Start) -> AnyTask:
    """The task that a job is for, in the modules that the worker knows it from."""
    for module in start.modules:
        # The main module was imported, under another name, when the process started.
        if module not in ("__main__", "__mp_main__"):
            try:
                importlib.import_module(module)
            except BaseException as error:
                raise DeadLetter(
                    f"the module {module!r} of task {start.task!r} can't be imported in a child process: "
                    f'make it importable, or don\'t run the task with pool="process"\n\n{describe(error)}'
                ) from None
        task = _registered(start)
        if task is not None:
            return task
    raise DeadLetter(
        f"task {start.task!r} is not known in a child process after importing "
        f"{', '.join(start.modules)}: define it at the top level of a module that can be imported, "
        'outside of `if __name__ == "__main__":`'
    )


def _registered(start: Start) -> AnyTask | None:
    found: list[AnyTask] = []
    for app in known_apps():
        task = app.handlers.get(start.job["queue"]) if start.raw else app.tasks.get(start.task)
        if task is not None and task.name == start.task:
            found.append(task)
    return max(found, key=lambda task: _likeness(task.app, start.app), default=None)


def _likeness(app: App, wanted: tuple[str, str]) -> tuple[bool, bool]:
    name, url = wanted
    return app.url == url, app.name == name


def _cancel(context: Context, message: Cancelled) -> None:
    if message.requested:
        context.job.cancel_requested = True
    context.cancelled.set(message.reason)


async def _within(scope: Any, call: Callable[[], Any]) -> Any:
    async with scope:
        return await call()


async def _either(event: asyncio.Event, task: asyncio.Task[Any]) -> None:
    """Until the event is set or the task is done."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _same(value: Any) -> Any:
    return value


def _raise(error: BaseException) -> None:
    raise error


def _send_logs_to(line: Line) -> None:
    """What a handler logs by ``ctx.log`` goes where the worker's logging sends it."""
    logger = logging.getLogger("dayjob.job")
    logger.propagate = False
    logger.addHandler(_LogLine(line))


class _LogLine(logging.Handler):
    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._line.send(Logged(record.levelno, clean_error(self.format(record))))
        except Exception:
            self.handleError(record)
