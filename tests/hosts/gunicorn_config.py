"""Server hooks of gunicorn: each of its processes runs a worker in a thread."""

from __future__ import annotations

from typing import Any

from tests.hosts.jobs import WorkerThread

bind = "127.0.0.1:0"
graceful_timeout = 20
control_socket_disable = True  # It would be in the home directory.


def post_worker_init(process: Any) -> None:
    from tests.hosts.wsgi_host import jobs

    process.jobs_thread = WorkerThread(jobs)


def worker_exit(_server: Any, process: Any) -> None:
    process.jobs_thread.stop()
