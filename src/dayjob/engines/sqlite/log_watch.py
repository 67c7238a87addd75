"""Notifications between the processes that use one file, through its write-ahead log.

After a commit, a process opens the log for writing and closes it. Linux reports that to each process that
watches the log with inotify. There is no file for it, and a killed process leaves nothing behind.
SQLite has no locks on the log. A close of its other files would end the locks of this process.

Other programs and callers' transactions commit without a notification. The writer therefore polls as well.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress

_IN_CLOSE_WRITE = 0x8
_EVENT_BYTES = 2**16

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.005
"""Seconds between two calls. The pauses grow while notifications arrive in each of them."""


def notify(log: str) -> None:
    """Notify the processes that watch the log of a commit."""
    with suppress(OSError):
        os.close(os.open(log, os.O_WRONLY | os.O_CLOEXEC))


def sync(log: str) -> None:
    """Write the commits in the log to disk. A failure is raised by the next commit that is synced."""
    with suppress(OSError):
        descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        try:
            getattr(os, "fdatasync", os.fsync)(descriptor)
        finally:
            os.close(descriptor)


class LogWatch:
    """Calls ``on_commit`` on the event loop after notifications, those of this process included.

    The first one calls it at once. Those of the next milliseconds share a call. Without inotify, or
    with too many instances of it, there are no calls.
    """

    def __init__(self, log: str, on_commit: Callable[[], None]) -> None:
        self._log = os.fsencode(log)
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        self._pause = _SHORTEST_PAUSE
        self._pausing: asyncio.TimerHandle | None = None
        self._inotify = _open_inotify()
        if self._inotify >= 0:
            self._loop.add_reader(self._inotify, self._read)

    def watch(self) -> None:
        """Watch the log that exists now. The last connection that is closed deletes it."""
        if self._inotify >= 0:
            ctypes.CDLL(None).inotify_add_watch(self._inotify, self._log, _IN_CLOSE_WRITE)

    def close(self) -> None:
        inotify, self._inotify = self._inotify, -1
        if inotify >= 0:
            if self._pausing is not None:
                self._pausing.cancel()
            with suppress(RuntimeError):  # The event loop is closed.
                self._loop.remove_reader(inotify)
            os.close(inotify)

    def _read(self) -> None:
        """Call and pause if there are notifications. Wait for the next one otherwise."""
        try:
            os.read(self._inotify, _EVENT_BYTES)
        except BlockingIOError:
            self._pausing = None
            self._pause = _SHORTEST_PAUSE
            self._loop.add_reader(self._inotify, self._read)
            return
        self._on_commit()
        self._loop.remove_reader(self._inotify)
        self._pausing = self._loop.call_later(self._pause, self._read)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def _open_inotify() -> int:
    """Return the file descriptor of a new inotify instance, or -1 if the system has none to give."""
    if sys.platform != "linux":
        return -1
    descriptor: int = ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    return descriptor
