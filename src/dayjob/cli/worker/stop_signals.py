"""SIGTERM and SIGINT of a worker process: the first drains the worker, the second stops it at once.

Signal handlers run in the main thread, also while a job blocks the event loop. A thread ends the process if
the worker has not stopped in time, for any reason: a handler, a lock, a storage that does not reply.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from queue import Empty, SimpleQueue
from typing import Any

from dayjob.cli.worker.supervisor_link import KILL_AFTER
from dayjob.runtime.clock import SYSTEM
from dayjob.worker import Worker
from dayjob.worker.os_signals import STOP_SIGNALS, set_defaults

_log = logging.getLogger("dayjob.worker")


class StopSignals:
    """Handles the signals from ``__enter__`` to ``__exit__``. Those beyond ``counted`` are ignored."""

    def __init__(self, worker: Worker, shutdown_timeout: float, counted: int = 2) -> None:
        self._worker = worker
        self._shutdown_timeout = shutdown_timeout
        self._counted = counted
        self._received = 0
        self._pid = os.getpid()
        self._before: dict[int, Any] = {}
        self._masks = threading.local()
        """The signals that a thread blocked before it forked."""
        self._limits: SimpleQueue[float | None] = SimpleQueue()
        """Seconds until the process is ended. A signal handler may interrupt any code, but can always put."""

    def __enter__(self) -> None:
        os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._forked)
        threading.Thread(target=self._enforce, name="dayjob-stop", daemon=True).start()
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()
        self._limits.put(None)

    def _block(self) -> None:
        """Hold back the signals of a process that a job forks until it has the default handlers.

        Python drops a signal whose handler is replaced by the default before it was called.
        """
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _forked(self) -> None:
        """Set the default handlers in a process that a job forked: its signals are not for the worker."""
        if self._before:
            set_defaults()
        self._unblock()

    def _handle(self, number: int, _frame: object) -> None:
        if os.getpid() != self._pid:  # A forked process, before its defaults were set.
            set_defaults()
            os.kill(os.getpid(), number)
            return
        if self._received == self._counted:
            return
        self._received += 1
        if self._received == 1:
            self._worker.stop()
            self._limits.put(self._shutdown_timeout + KILL_AFTER)
        else:
            self._worker.stop_now()
            self._limits.put(KILL_AFTER)

    def _enforce(self) -> None:
        deadline: float | None = None
        while True:
            try:
                limit = self._limits.get(timeout=None if deadline is None else deadline - SYSTEM.elapsed())
            except (Empty, ValueError):  # ValueError: the deadline has passed.
                _log.error("worker %s has not stopped in time: the process exits", self._worker.name)
                os._exit(1)
            if limit is None:
                return
            ends = SYSTEM.elapsed() + limit
            deadline = ends if deadline is None else min(deadline, ends)
