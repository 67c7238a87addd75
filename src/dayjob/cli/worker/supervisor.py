"""The supervisor: keeps worker processes running, and stops all of them before it exits.

It restarts a crashed child after a back-off, and a child that exits with ``REPLACE`` at once. It stops all
children when one fails ``MAX_FAILED_STARTS`` times in a row before it is ready.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from contextlib import suppress

import click

from dayjob.app import App
from dayjob.broker import Broker
from dayjob.cli.app_argument import ImportFailed, load_app
from dayjob.cli.worker.beat_relay import BeatRelay
from dayjob.cli.worker.options import WorkerOptions
from dayjob.cli.worker.process import FAILED, OK, REPLACE, UNAVAILABLE, USAGE
from dayjob.cli.worker.supervisor_link import (
    KILL_AFTER,
    READY,
    SHARE,
    STOP,
    STOP_NOW,
    STORED,
    message,
    read_message,
)
from dayjob.model.codec import UNDECODABLE
from dayjob.runtime.clock import SYSTEM

_log = logging.getLogger("dayjob.supervisor")

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
STEADY = 60.0
"""A child that ran for this many seconds resets the back-off of its restarts."""

MAX_FAILED_STARTS = 5

_READ_TIMEOUT = 1.0
"""Seconds to read the last message of a child that has ended."""


def supervise(options: WorkerOptions) -> int:
    """Run the workers in child processes until all have ended. Return the exit code."""
    try:
        _check(load_app(options.app), options)
    except ImportFailed:
        if not options.reload:
            raise
    return asyncio.run(Supervisor(options).run())


def _check(app: App, options: WorkerOptions) -> None:
    """Raise ``UsageError`` for options that the app's storage does not support."""
    can = Broker(app.url, config=app.config).capabilities
    scheme = app.url.partition(":")[0]
    if options.processes > 1 and not can.multi_process:
        raise click.UsageError(
            f"--processes {options.processes}: {scheme}:// allows one process at a time. "
            "Use one process, or a storage that several can share, such as sqlite:///jobs.db"
        )
    if options.restarts and not can.persistent:
        raise click.UsageError(
            f"--max-jobs and --max-rss restart the worker process, and {scheme}:// keeps its jobs in that "
            "process: a restart would lose them. Use a persistent storage, such as sqlite:///jobs.db"
        )


class Child:
    """One worker process and the link to it."""

    def __init__(
        self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, relay: BeatRelay
    ) -> None:
        self._process = process
        self._writer = writer
        self._relay = relay
        self._reading = asyncio.ensure_future(self._read(reader))
        self._started = SYSTEM.elapsed()
        self.ran = 0.0
        self.was_ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, sent: bytes) -> None:
        if self._process.returncode is None:
            self._writer.write(sent)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                kind, payload = await read_message(reader)
                if kind == READY:
                    self.was_ready = True
                elif kind in (SHARE, STORED):
                    try:
                        (self._relay.share if kind == SHARE else self._relay.stored)(self, payload)
                    except UNDECODABLE as error:
                        _log.warning("worker process pid %d sent a malformed heartbeat: %s", self.pid, error)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> int:
        """Wait for the end. Return the exit code, or minus the signal that ended the process."""
        code = await self._process.wait()
        self.ran = SYSTEM.elapsed() - self._started
        self._relay.forget(self)
        await asyncio.wait({self._reading}, timeout=_READ_TIMEOUT)
        self._reading.cancel()
        self._relay.forget(self)
        self._writer.close()
        return code


class Supervisor:
    """Runs ``options.processes`` children."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._children: dict[int, Child] = {}
        self._relay = BeatRelay(lambda: sum(child.was_ready for child in self._children.values()))
        self._stopping = asyncio.Event()
        self._signals = 0
        self._code = OK

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        try:
            await asyncio.gather(
                *(self._keep_running(number) for number in range(1, self._options.processes + 1))
            )
        finally:
            self._kill()
        return self._code

    # Keeping a worker running.

    async def _keep_running(self, number: int) -> None:
        delay, failed_starts, first = FIRST_DELAY, 0, True
        while not self._stopping.is_set():
            child = await self._start(number, restarted=not first)
            code = await child.wait()
            del self._children[number]
            if self._stopping.is_set():
                self._check_exit(number, child, code)
                return
            if code == OK and self._options.burst:
                return
            if code == REPLACE:
                _log.info("worker process %d (pid %d) is replaced", number, child.pid)
                delay, failed_starts, first = FIRST_DELAY, 0, False
                continue
            if first and code in (USAGE, UNAVAILABLE):
                self._fail(code, f"worker process {number} could not start")
                return
            failed_starts = 0 if child.was_ready else failed_starts + 1
            if failed_starts == MAX_FAILED_STARTS:
                reason = f"failed {failed_starts} times in a row before it was ready: it {_how(code)}"
                self._fail(FAILED, f"worker process {number} {reason}")
                return
            delay = FIRST_DELAY if child.ran >= STEADY else delay
            _log.warning(
                "worker process %d (pid %d) %s; restarting it in %g s",
                number,
                child.pid,
                _how(code),
                delay,
            )
            await SYSTEM.wait(self._stopping, delay)
            delay, first = min(delay * 2, LONGEST_DELAY), False

    async def _start(self, number: int, *, restarted: bool) -> Child:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "dayjob",
                *self._options.for_child(number, theirs.fileno(), restarted=restarted),
                stdin=DEVNULL, pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C goes to the supervisor only, which then stops its children.
            )  # fmt: skip
        child = self._children[number] = Child(
            process, *await asyncio.open_connection(sock=ours), self._relay
        )
        _log.info("worker process %d has pid %d", number, child.pid)
        if self._stopping.is_set():
            child.send(message(STOP))
        return child

    def _check_exit(self, number: int, child: Child, code: int) -> None:
        """Log a child that did not end cleanly after STOP, and fail the supervisor's own exit code."""
        if code not in (OK, REPLACE) and (child.was_ready or code != -signal.SIGTERM):
            _log.error("worker process %d (pid %d) %s", number, child.pid, _how(code))
            self._code = self._code or FAILED

    # Stopping.

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals == 1:
            _log.info("%s: stopping %d worker processes", number.name, len(self._children))
            self._stop()
        elif self._signals == 2:
            _log.warning("%s again: stopping them at once", number.name)
            self._send_all(message(STOP_NOW))
            asyncio.get_running_loop().call_later(KILL_AFTER, self._kill)
        else:
            self._kill()

    def _stop(self) -> None:
        self._stopping.set()
        self._send_all(message(STOP))
        asyncio.get_running_loop().call_later(self._options.shutdown_timeout + KILL_AFTER, self._kill)

    def _fail(self, code: int, reason: str) -> None:
        _log.error("%s", reason)
        self._code = self._code or code
        if not self._stopping.is_set():
            self._stop()

    def _send_all(self, sent: bytes) -> None:
        for child in self._children.values():
            child.send(sent)

    def _kill(self) -> None:
        for number, child in self._children.items():
            _log.error("worker process %d (pid %d) did not stop in time and is killed", number, child.pid)
            child.kill()


def _how(code: int) -> str:
    if code < 0:
        name = next((number.name for number in signal.Signals if number == -code), f"signal {-code}")
        return f"was killed by {name}"
    return f"ended with exit code {code}"
