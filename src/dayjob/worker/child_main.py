"""The main program of a child process: receives jobs one by one, runs them, and returns their outcomes.

A thread reads the worker's messages, so that a cancel reaches a busy handler. The main thread runs the
handlers; a plain function runs without an event loop, as in a thread of the worker. When the worker is gone,
the child ends. If it was running a job, the processes that the job started are killed too. A process that a
job forks has no connection to the worker, and ends when the handler returns or raises.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any

from dayjob.app import App, known_apps, refuse_memory
from dayjob.broker import Broker
from dayjob.context import CURRENT, Context
from dayjob.errors import BadPayload
from dayjob.model.codec import OtherVersion
from dayjob.model.handler_exceptions import DeadLetter
from dayjob.model.lifecycle import Transition
from dayjob.model.names import clean_error, printable
from dayjob.model.settlement import Settlement
from dayjob.runtime.clock import set_or_done
from dayjob.runtime.stop_signal import StopSignal
from dayjob.worker.child_logs import forward_logs, set_levels
from dayjob.worker.child_messages import (
    Called,
    Ended,
    Frames,
    Logged,
    Message,
    Progressed,
    ShuttingDown,
    Start,
    Started,
    claim_of,
    frame,
    from_worker,
    packed,
    unpacked_job,
)  # fmt: skip
from dayjob.worker.executor import AnyTask, describe, failed, handler_call, in_scope, succeeded, unknown
from dayjob.worker.forked_process import ForksEndHere
from dayjob.worker.os_signals import STOP_SIGNALS, set_defaults

STOP_TIMEOUT = 2.0
"""Seconds for an idle child to exit the app's lifespan."""

UNSENT_BYTES = 1 << 20
"""Log records are dropped while more bytes than this wait for the worker to read."""


def serve(connection: socket.socket) -> None:
    """Run jobs until the worker closes the connection."""
    os.setpgid(0, 0)
    _ignore_stop_signals()
    connection.set_inheritable(False)
    refuse_memory()
    Child(Connection(connection)).serve()


def _ignore_stop_signals() -> None:
    """Ignore SIGTERM and SIGINT: the worker handles them for its children. They are blocked until then.

    A handler ignores them. With ``SIG_IGN``, processes that the job starts would ignore them too.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    os.register_at_fork(after_in_child=set_defaults)


class Connection:
    """The connection to the worker. Any thread may send. In a process that a job forks it is closed."""

    def __init__(self, socket: socket.socket) -> None:
        self._socket = socket
        self._sending = threading.Lock()
        self._unsent = bytearray()
        self._flusher: threading.Thread | None = None
        self._frames = Frames()
        self._forked = False
        os.register_at_fork(after_in_child=self._close)

    def send(self, message: Message) -> None:
        """Send it. Wait while the worker has no room for it."""
        data = frame(message)
        with self._sending:
            if self._forked:
                return
            self._unsent += data
            try:
                self._socket.sendall(self._unsent)
            except ConnectionError:  # The worker is gone; the thread that reads ends the process.
                return
            except OSError as error:
                print(
                    printable(f"the job closed the connection to its worker: {error}"),
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)  # The thread that reads does not notice it.
            self._unsent.clear()

    def try_send(self, message: Message) -> bool:
        """Send it without a wait, now or later. Return False if too many bytes wait already."""
        data = frame(message)
        with self._sending:
            self._flush()
            if len(self._unsent) > UNSENT_BYTES:
                return False
            self._unsent += data
            self._flush()
            if self._unsent and self._flusher is None:
                self._flusher = threading.Thread(target=self._flush_all, name="dayjob-flush", daemon=True)
                self._flusher.start()
            return True

    def _flush(self) -> None:
        """Send as much as the worker has room for."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return
        except OSError:  # The worker is gone.
            self._unsent.clear()

    def _flush_all(self) -> None:
        """Send the rest in a thread."""
        while True:
            select.select([], [self._socket], [])
            with self._sending:
                self._flush()
                if not self._unsent:
                    self._flusher = None
                    return

    def _close(self) -> None:
        """Close it in a forked process. Its threads, which may hold the lock, exist in the parent only."""
        self._forked = True
        self._sending = threading.Lock()
        self._unsent.clear()
        self._socket.close()

    def read(self, receive: Callable[[bytes], None]) -> None:
        """Read until the worker is gone."""
        with suppress(OSError):
            while data := self._socket.recv(1 << 16):
                for message in self._frames.feed(data):
                    receive(message)


class Child:
    """Runs the jobs that the worker sends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._jobs: SimpleQueue[tuple[Start, Context] | None] = SimpleQueue()
        self._shutting_down = StopSignal()
        self._running: Context | None = None
        self._runner = asyncio.Runner()
        self._lifespans: dict[App, Lifespan] = {}
        self._logs = forward_logs(lambda record: connection.try_send(Logged(record)))
        self._log_levels: dict[str, int] = {}
        os.register_at_fork(after_in_child=partial(logging.root.removeHandler, self._logs))

    def serve(self) -> None:
        threading.Thread(target=self._listen, name="dayjob-worker", daemon=True).start()
        with self._runner:
            while (received := self._jobs.get()) is not None:
                start, context = received
                self._connection.send(Started(claim_of(context.job)))
                ended = self._outcome(start, context)
                if context.charges is not None:
                    ended.charges = dict(context.charges)
                self._running = None
                self._connection.send(ended)
                self._logs.report_dropped()
            self._runner.run(self._close())

    # In the thread that reads.

    def _listen(self) -> None:
        self._connection.read(self._receive)
        if self._running is None:
            self._jobs.put(None)
            threading.Event().wait(STOP_TIMEOUT)
        os.killpg(0, signal.SIGKILL)

    def _receive(self, data: bytes) -> None:
        message = from_worker(data)
        if isinstance(message, Start):
            self._accept(message)
        elif isinstance(message, ShuttingDown):
            self._shutting_down.set(message.reason)
        elif (context := self._running) is not None:
            context.job.cancel_requested |= message.requested
            context.cancelled.set(message.reason)

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
            self._connection.send(Progressed(claim_of(context.job), fraction, clean_error(message)))

    def _outcome(self, start: Start, context: Context) -> Ended:
        if start.log_levels != self._log_levels:
            set_levels(self._log_levels, start.log_levels)
            self._log_levels = start.log_levels
        try:
            task = find(start)
        except DeadLetter as error:
            return packed(Settlement(context.job, Transition.DEAD_LETTER, error=error.reason))
        try:
            result = self._run(task, context)
            return packed(succeeded(task, context, result))
        except OtherVersion as error:
            return packed(unknown(context.job, type(error).__name__, str(error), start.on_unknown))
        except BadPayload as error:
            return packed(Settlement(context.job, Transition.DEAD_LETTER, error=f"BadPayload: {error}"))
        except BaseException as error:
            return packed(failed(task, context.job, error))

    def _run(self, task: AnyTask, context: Context) -> Any:
        context.state = self._state(task.app)
        handler = handler_call(task, context)
        call: Callable[[], Any] = partial(_handle_async if task.is_async else _handle, handler)
        if not task.is_async:
            call = task.app.wrapped(context, call, on_loop=False)
        self._connection.send(Called(claim_of(context.job)))
        variables = copy_context()
        variables.run(CURRENT.set, context)
        scope = task.app.tenant_scope
        tenant = context.job.tenant
        if scope is not None and tenant is not None:
            if task.is_async:
                return self._runner.run(in_scope(scope(tenant), call), context=variables)
            return self._call_in_scope(scope(tenant), call, variables)
        if task.is_async:
            return self._runner.run(call(), context=variables)
        return variables.run(call)

    def _call_in_scope(self, scope: Any, call: Callable[[], Any], variables: Variables) -> Any:
        """Run a plain call inside an async scope, which one coroutine enters and exits."""
        loop = self._runner.get_loop()
        entered, returned = asyncio.Event(), asyncio.Event()
        result: Any = None
        failure: BaseException | None = None

        async def stay_in_scope() -> Any:
            async with scope:
                entered.set()
                await returned.wait()
                if failure is not None:
                    raise failure
                return result

        staying = loop.create_task(stay_in_scope(), context=variables)
        loop.run_until_complete(set_or_done(entered, staying))
        if entered.is_set():
            try:
                result = variables.run(call)
            except BaseException as error:
                failure = error
            returned.set()
        return loop.run_until_complete(staying)

    def _state(self, app: App) -> Any:
        """Return the value that the app's lifespan yielded. The first job enters it."""
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
                await lifespan.exit()
        for app in known_apps():
            with suppress(Exception):
                await app.close()


class Lifespan:
    """An app's lifespan, entered and exited by one coroutine, as task groups require."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._entered, self._exiting = asyncio.Event(), asyncio.Event()
        self.state: Any = None

    async def enter(self) -> None:
        self._task = asyncio.create_task(self._stay())
        await set_or_done(self._entered, self._task)
        if not self._entered.is_set():
            await self._task

    async def exit(self) -> None:
        self._exiting.set()
        await self._task

    async def _stay(self) -> None:
        assert self._app.lifespan is not None
        async with self._app.lifespan(self._app) as self.state:
            self._entered.set()
            await self._exiting.wait()


def find(start: Start) -> AnyTask:
    """Return the task of a job, from the modules that the worker named."""
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
        f"task {start.task!r} is not registered in a child process after importing "
        f"{', '.join(start.modules)}: define it at the top level of a module that can be imported, "
        'outside of `if __name__ == "__main__":`'
    )


def _registered(start: Start) -> AnyTask | None:
    found: list[AnyTask] = []
    for known in known_apps():
        task = known.handlers.get(start.job["queue"]) if start.raw else known.tasks.get(start.task)
        if task is not None and task.name == start.task:
            found.append(task)
    name, url = start.app
    task = max(found, key=lambda task: (task.app.url == url, task.app.name == name), default=None)
    app = None if task is None else task.app
    if app is not None and app.name == name and app.url != url and Broker(url).capabilities.multi_process:
        app.url = url  # That of the worker. A relative path may have been resolved in another folder here.
    return task


def _handle(handler: Callable[[], Any]) -> Any:
    with ForksEndHere():
        return handler()


async def _handle_async(handler: Callable[[], Any]) -> Any:
    with ForksEndHere():
        return await handler()
