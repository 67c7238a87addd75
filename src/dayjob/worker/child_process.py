"""The worker's handle of one child process: start, messages, kill, exit."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from dayjob.context import Context
from dayjob.errors import DayjobError
from dayjob.runtime.threads import call_on
from dayjob.worker.child_logs import log_from_child
from dayjob.worker.child_main import serve
from dayjob.worker.child_messages import (
    Called,
    Cancelled,
    Ended,
    Frames,
    Logged,
    Message,
    Progressed,
    Start,
    Started,
    claim_of,
    frame,
    from_child,
)
from dayjob.worker.os_signals import STOP_SIGNALS

if TYPE_CHECKING:
    from multiprocessing.popen_spawn_posix import Popen

MAIN_GUARD = 'if __name__ == "__main__":'


class ProcessDied(DayjobError):
    """The process that ran a job ended before the job did."""


class NotStarted(Exception):
    """The process ended before it started the job. No code of the job has run."""


class ChildProcess(asyncio.Protocol):
    """A child process, and the connection to it."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._socket = connection
        self._connected = False
        self._frames = Frames()
        self._context: Context | None = None
        self._reply: asyncio.Future[Ended] | None = None
        self._on_start: Callable[[], None] | None = None
        self._started = False
        self._has_run = False
        """Whether it has finished a job before."""
        self._stopping = False
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
        return not self._stopping and self._reply is None

    async def run(self, start: Start, context: Context, on_start: Callable[[], None] | None) -> Ended:
        """Return the outcome of a job from the child. Raise ``ProcessDied`` if the child ended before."""
        self._context, self._started, self._on_start = context, False, on_start
        self._reply = self._loop.create_future()
        self.send(start)
        context.cancelled.when_set(partial(call_on, self._loop, self._send_cancelled, context))
        ended = await self._reply
        self._context = self._reply = self._on_start = None
        return ended

    def send(self, message: Message) -> None:
        if self._connected and not self._stopping:
            self._transport.write(frame(message))

    def _send_cancelled(self, context: Context) -> None:
        reason = context.cancelled.reason
        if context is self._context and reason is not None:
            self.send(Cancelled(reason, context.job.cancel_requested or reason == "cancel"))

    def stop(self) -> None:
        """Kill the process if it runs a job. Otherwise let it exit the app's lifespan and end."""
        self._stopping = True
        if self._reply is not None:
            self.kill()
        elif self._connected:
            self._transport.write_eof()

    def kill(self) -> None:
        """Kill the process and the processes that it started."""
        self._stopping = True
        if self._alive:
            try:
                os.killpg(self._popen.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # The child has not created its group yet.
                with suppress(ProcessLookupError):
                    os.kill(self._popen.pid, signal.SIGKILL)

    # Messages from the child.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connected = True

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self._receive(message)

    def connection_lost(self, _: Exception | None) -> None:
        self._connected = False
        if self._alive:
            self.kill()
        else:
            self.ended.set_result(None)

    def _receive(self, data: bytes) -> None:
        message = from_child(data)
        if isinstance(message, Logged):
            log_from_child(message.record)
            return
        context, reply = self._context, self._reply
        if context is None or reply is None or reply.done() or message.claim != claim_of(context.job):
            return
        if isinstance(message, Started):
            self._started = True
        elif isinstance(message, Called):
            if self._on_start is not None:
                self._on_start()
        elif isinstance(message, Progressed):
            context.progress(message.fraction, message.text)
        else:
            self._has_run = True
            reply.set_result(message)

    # The end of the process.

    def _await_end(self) -> None:
        """Wait for the end, in a thread. The loop reaps the process, so a late kill hits no other pid."""
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._popen.wait()
        call_on(self._loop, self._reap)

    def _reap(self) -> None:
        self._stopping = True
        self._watcher.join()
        self._receive_rest()
        unfinished = self._reply is not None and not self._reply.done()
        if unfinished:
            self.kill()
        code = self._popen.poll()
        self._alive = False
        self._popen.close()
        if unfinished and self._reply is not None:
            self._reply.set_exception(self._death(code))
            self._reply.exception()  # Mark it as retrieved: the caller may have been cancelled.
        if self._connected:
            self._transport.abort()
        else:
            self.ended.set_result(None)

    def _receive_rest(self) -> None:
        """Read the messages sent before the exit. A descendant process may keep the connection open."""
        with suppress(BlockingIOError, ConnectionError):
            while self._connected and (data := self._socket.recv(1 << 18)):
                self.data_received(data)

    def _death(self, code: int | None) -> Exception:
        if not self._started and self._has_run:
            return NotStarted()
        text = f"the process that ran the job {_end(code)}"
        if not self._started:
            text += " before it started the job"
            if code is not None and code >= 0:
                text += (
                    f": see its standard error. Is `{MAIN_GUARD}` missing in the script that runs the worker?"
                )
        return ProcessDied(text)


def _spawn(name: str, connection: socket.socket) -> Popen:
    """Start a child by multiprocessing's spawn, which imports a script's ``__main__`` in the child.

    Uses the ``Popen`` below ``Process``: ``Process.start`` refuses daemonic parents, waits for its children
    at the parent's exit, and reaps children of other code.
    """
    from multiprocessing import get_context, resource_tracker
    from multiprocessing.popen_spawn_posix import Popen

    process = get_context("spawn").Process(target=serve, args=(connection,), name=name, daemon=False)
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        return Popen(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
