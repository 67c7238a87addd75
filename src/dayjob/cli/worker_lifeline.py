"""The line between a supervisor and one child: a socket pair, a byte a word.

The child says when it is at work. The supervisor says when to stop; that is a word and not a signal,
because a service manager may send SIGTERM to both, and the second signal would cut the draining short.
The end of the line means that the supervisor is gone: then the child drains and ends too.
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

READY, STOP, HURRY = b"r", b"s", b"h"

KILL_AFTER = 10.0
"""Seconds beyond the shutdown timeout after which a worker that is still there is killed."""


class Lifeline:
    """The child's end, read by a thread of its own."""

    def __init__(self, descriptor: int, shutdown_timeout: float) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._patience = shutdown_timeout + KILL_AFTER
        self._worker: Worker | None = None
        self._guard = threading.Lock()
        threading.Thread(target=self._listen, name="dayjob-lifeline", daemon=True).start()

    def attach(self, worker: Worker) -> None:
        """From now on there is something to stop; before, the process simply ends."""
        with self._guard:
            self._worker = worker

    def ready(self) -> None:
        with suppress(OSError):  # The supervisor is gone; the listening thread sees to that.
            self._socket.sendall(READY)

    def _listen(self) -> None:
        while word := self._heard():
            with self._guard:
                if self._worker is None:
                    os._exit(0)
            if word == HURRY:
                self._worker.hurry()
            else:
                self._worker.stop()
        with self._guard:
            if self._worker is None:
                os._exit(1)
        _log.warning("worker %s stops: its supervisor is gone", self._worker.name)
        self._worker.stop()
        block(self._patience)
        os._exit(1)

    def _heard(self) -> bytes:
        try:
            return self._socket.recv(1)
        except OSError:
            return b""
