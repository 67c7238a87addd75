"""Child processes for tasks with ``pool="process"``: started when needed, kept warm, replaced when they die.

The end of a process is the end of the attempt that it ran, and of nothing else: whether it crashed, was
killed by the system, or was killed here because its run was interrupted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from dayjob.app import App
from dayjob.context import Context
from dayjob.errors import DayjobError, InvalidState
from dayjob.model.settlement import Settlement
from dayjob.runtime.stop_signal import StopSignal
from dayjob.worker.child import GRACE, WORKERS_SIGNALS, serve
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
    from_child,
    packed_job,
    unpacked,
)  # fmt: skip
from dayjob.worker.outcome import AnyTask, failed

if TYPE_CHECKING:
    from multiprocessing.popen_spawn_posix import Popen

GUARD = 'if __name__ == "__main__":'


class ProcessDied(DayjobError):
    """The process that ran a job ended before the job did."""


class NotTaken(Exception):
    """A process ended before it took the job: nothing of the job has run."""


class ProcessPool:
    """Runs jobs in up to ``size`` child processes, first come, first served. Used on one event loop."""

    def __init__(self, app: App, size: int) -> None:
        _refuse_in_unguarded_main()
        self._app = app
        self._slots = asyncio.Semaphore(size)
        self._children: set[ChildProcess] = set()
        self._idle: list[ChildProcess] = []
        self._modules: dict[AnyTask, Sequence[str]] = {}
        self._watched: StopSignal | None = None
        self._closed = False

    async def run(
        self, task: AnyTask, context: Context, begun: Callable[[], None] | None = None
    ) -> Settlement:
        """What came of the job; ``begun`` is called when the wait for a child is over.

        If the caller is cancelled, the process is killed at once.
        """
        self._watch(context.shutting_down)
        while True:
            child = await self._take()
            try:
                start = self._start_message(task, context)
                return unpacked(await child.run(start, context, begun), task, context.job)
            except NotTaken:
                continue
            except ProcessDied as error:
                policy = task.config.retry or self._app.config.queue(context.job.queue).policy
                return failed(task, context.job, error.with_traceback(None), policy)
            except BaseException:
                child.kill()
                raise
            finally:
                self._give_back(child)

    async def close(self) -> None:
        """End all children: idle ones leave the app's lifespan first, as far as they do so promptly."""
        self._closed = True
        for child in self._children:
            child.dismiss()
        for _ in range(2):
            if self._children:
                await asyncio.wait({child.ended for child in self._children}, timeout=GRACE)
            for child in self._children:
                child.kill()

    async def _take(self) -> ChildProcess:
        """A child that is free, the one used last if there are several; started if there is none."""
        await self._slots.acquire()
        try:
            if self._closed:
                raise InvalidState("the worker has stopped, and its child processes with it")
            while self._idle:
                child = self._idle.pop()
                if child.usable:  # One that has just died is forgotten a moment later.
                    return child
            child = await ChildProcess.start(f"dayjob-{self._app.name}")
        except BaseException:
            self._slots.release()
            raise
        self._children.add(child)
        child.ended.add_done_callback(lambda _: self._forget(child))
        return child

    def _give_back(self, child: ChildProcess) -> None:
        """Make room for the next job, now or when the process is gone."""
        if child.usable:
            self._idle.append(child)
            self._slots.release()
        else:
            child.ended.add_done_callback(lambda _: self._slots.release())

    def _forget(self, child: ChildProcess) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)

    def _watch(self, shutting_down: StopSignal) -> None:
        """Pass the worker's signal on. It is watched once, not by every run: it outlives them."""
        if self._watched is not shutting_down:
            self._watched = shutting_down
            loop = asyncio.get_running_loop()
            shutting_down.when_set(partial(_call_on, loop, self._tell_shutting_down))

    def _tell_shutting_down(self) -> None:
        if self._watched is not None and self._watched.reason is not None:
            for child in self._children:
                child.tell(ShuttingDown(self._watched.reason))

    def _start_message(self, task: AnyTask, context: Context) -> Start:
        modules = self._modules.get(task)
        if modules is None:
            modules = self._modules[task] = modules_of(task)
        job = context.job
        return Start(
            modules, task.name, task.raw, (self._app.name, self._app.url), packed_job(job),
            context.cancelled.reason, context.shutting_down.reason, context.log.getEffectiveLevel(),
        )  # fmt: skip


class ChildProcess(asyncio.Protocol):
    """One child, as its worker sees it."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._socket = connection
        self._connected = False
        self._frames = Frames()
        self._context: Context | None = None
        self._answer: asyncio.Future[Ended] | None = None
        self._begun: Callable[[], None] | None = None
        self._began = False
        self._proven = False
        self._doomed = False
        self._alive = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def start(cls, name: str) -> ChildProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                ours.setblocking(False)
                child = cls(name, ours)
                await child._loop.create_unix_connection(lambda: child, sock=ours)
                child._launch(theirs)
            except BaseException:
                ours.close()
                raise
        return child

    def _launch(self, theirs: socket.socket) -> None:
        try:
            self._popen = _spawn(self._name, theirs)
        except BaseException:
            self._transport.abort()
            raise
        self._alive = True
        self._watcher = threading.Thread(target=self._await_end, name=f"{self._name}-watch", daemon=True)
        self._watcher.start()

    @property
    def usable(self) -> bool:
        return not self._doomed and self._answer is None

    async def run(self, start: Start, context: Context, begun: Callable[[], None] | None) -> Ended:
        """What the child says came of a job; ``ProcessDied`` if it can't say any more."""
        self._context, self._began, self._begun = context, False, begun
        self._answer = self._loop.create_future()
        self.tell(start)
        tell = partial(self._tell_cancelled, context)
        context.cancelled.when_set(partial(_call_on, self._loop, tell))
        ended = await self._answer
        self._context = self._answer = self._begun = None
        return ended

    def tell(self, message: Message) -> None:
        if self._connected and not self._doomed:
            self._transport.write(frame(message))

    def _tell_cancelled(self, context: Context) -> None:
        reason = context.cancelled.reason
        if context is self._context and reason is not None:
            self.tell(Cancelled(reason, context.job.cancel_requested or reason == "cancel"))

    def dismiss(self) -> None:
        """Let it end: at once if it has a job, else when it has left the app's lifespan."""
        self._doomed = True
        if self._answer is not None:
            self.kill()
        elif self._connected:
            self._transport.write_eof()

    def kill(self) -> None:
        """Kill it and what it has started."""
        self._doomed = True
        if self._alive:
            try:
                os.killpg(self._popen.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # It had no time to form its group.
                with suppress(ProcessLookupError):
                    os.kill(self._popen.pid, signal.SIGKILL)

    # What comes from the child.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connected = True

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self._hear(message)

    def connection_lost(self, _: Exception | None) -> None:
        self._connected = False
        if self._alive:
            self.kill()
        else:
            self.ended.set_result(None)

    def _hear(self, data: bytes) -> None:
        message = from_child(data)
        context, answer = self._context, self._answer
        if context is None or answer is None or answer.done():
            return
        if isinstance(message, Began):
            self._began = True
            if self._begun is not None:
                self._begun()
        elif isinstance(message, Progressed):
            context.progress(message.fraction, message.text)
        elif isinstance(message, Logged):
            context.log.log(message.level, "%s", message.text)
        else:
            self._proven = True
            answer.set_result(message)

    # Its end.

    def _await_end(self) -> None:
        """Wait until the process has ended; it is reaped on the loop, so that no other gets a late kill."""
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._popen.wait()
        _call_on(self._loop, self._reap)

    def _reap(self) -> None:
        self._doomed = True
        self._watcher.join()
        self._hear_the_rest()
        unfinished = self._answer is not None and not self._answer.done()
        if unfinished:
            self.kill()
        code = self._popen.poll()
        self._alive = False
        self._popen.close()
        if unfinished and self._answer is not None:
            self._answer.set_exception(self._death(code))
            self._answer.exception()  # It counts as seen: whoever waited may have been cancelled meanwhile.
        if self._connected:
            self._transport.abort()
        else:
            self.ended.set_result(None)

    def _hear_the_rest(self) -> None:
        """What it said before it ended; a process that it left behind may keep the line open."""
        with suppress(BlockingIOError, ConnectionError):
            while self._connected and (data := self._socket.recv(1 << 18)):
                self.data_received(data)

    def _death(self, code: int | None) -> Exception:
        if not self._began and self._proven:
            return NotTaken()
        text = f"the process running it {_end(code)}"
        if not self._began:
            text += " before it could take the job"
            if code is not None and code >= 0:
                text += (
                    f": its standard error says why. Is `{GUARD}` missing in the script that runs the worker?"
                )
        return ProcessDied(text)


def modules_of(task: AnyTask) -> Sequence[str]:
    """Where a child may find the task: its function's module, or those that hold the task or its app."""
    own = task.function.__module__
    if _holds(own, task):
        return (own,)
    holders = [name for name in list(sys.modules) if _holds(name, task)]
    holders += [name for name in list(sys.modules) if _holds(name, task.app)]
    return tuple(dict.fromkeys([own, *holders]))


def _holds(module: str, value: object) -> bool:
    names = getattr(sys.modules.get(module), "__dict__", {})
    return any(held is value for held in list(names.values()))


def _spawn(name: str, connection: socket.socket) -> Popen:
    """Start a child, by multiprocessing's spawn: it makes a script's ``__main__`` known there.

    The ``Popen`` underneath ``Process`` is used, since ``Process.start`` refuses daemonic parents, waits
    for its children at the parent's exit, and reaps other people's.
    """
    from multiprocessing import get_context, resource_tracker
    from multiprocessing.popen_spawn_posix import Popen

    process = get_context("spawn").Process(target=serve, args=(connection,), name=name, daemon=False)
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WORKERS_SIGNALS)
    try:
        return Popen(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _refuse_in_unguarded_main() -> None:
    """A child imports the worker's script; if that starts a worker, it must not become one."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and getattr(processes.current_process(), "_inheriting", False):
        raise InvalidState(
            f"this is a child process that imports the script of its worker: put `{GUARD}` before "
            "what the script does when it is run"
        )


def _end(code: int | None) -> str:
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code} ({name}){hint}"


def _call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call back on the loop, from any thread."""
    with suppress(RuntimeError):  # The loop is closed, and with it the pool.
        loop.call_soon_threadsafe(callback)
