"""The link between a supervisor and one child: a socket pair with messages of one byte.

The child sends READY when its worker has started. The supervisor sends STOP as a message, not as a signal: a
service manager may send SIGTERM to both, and a second signal would end the drain. The end of the stream means
that the supervisor is gone; then the child drains and ends too.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import suppress

from dayjob.runtime.clock import block
from dayjob.worker import Worker

_log = logging.getLogger("dayjob.worker")

READY, STOP, STOP_NOW = b"r", b"s", b"n"

KILL_AFTER = 5.0
"""Seconds after the shutdown timeout until a worker process that has not ended is killed."""


class SupervisorLink:
    """The child's end of the link, read by a thread."""

    def __init__(self, descriptor: int, shutdown_timeout: float) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._kill_after = shutdown_timeout + KILL_AFTER
        self._worker: Worker | None = None
        self._guard = threading.Lock()
        threading.Thread(target=self._listen, name="dayjob-supervisor-link", daemon=True).start()

    def attach(self, worker: Worker) -> None:
        """Stop this worker on STOP. Before this call, STOP ends the process."""
        with self._guard:
            self._worker = worker

    def ready(self) -> None:
        with suppress(OSError):  # The supervisor is gone; the thread that reads handles it.
            self._socket.sendall(READY)

    def _listen(self) -> None:
        while message := self._read():
            with self._guard:
                if self._worker is None:
                    os._exit(0)
            if message == STOP_NOW:
                self._worker.stop_now()
            else:
                self._worker.stop()
        with self._guard:
            if self._worker is None:
                os._exit(1)
        _log.warning("worker %s stops because its supervisor is gone", self._worker.name)
        self._worker.stop()
        block(self._kill_after)
        os._exit(1)

    def _read(self) -> bytes:
        try:
            return self._socket.recv(1)
        except OSError:
            return b""
