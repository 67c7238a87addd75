"""A WSGI application that enqueues a job for each request, for gunicorn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dayjob import DayjobError
from tests.hosts.jobs import of_this_host

jobs = of_this_host()
jobs.quick.enqueue()  # With --preload, the app is open in the process that then forks.


def web(_: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], Any]) -> Iterable[bytes]:
    try:
        status, body = "200 OK", jobs.quick.enqueue().id
    except DayjobError as error:
        status, body = "500 Internal Server Error", str(error)
    start_response(status, [("Content-Type", "text/plain")])
    return [body.encode()]
