"""A program with a worker in a thread."""

from __future__ import annotations

import signal

from tests.hosts.jobs import WorkerThread, of_this_host

if __name__ == "__main__":
    WorkerThread(of_this_host()).stop_on_sigterm()
    while True:
        signal.pause()
