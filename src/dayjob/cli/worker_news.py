"""What a worker logs about its jobs: failures as warnings, dead letters as errors, each run as debug."""

from __future__ import annotations

import logging

from dayjob.app import App
from dayjob.events import Event

_log = logging.getLogger("dayjob.job")


def log_outcomes(app: App) -> None:
    """Observe the app's jobs; what would not be logged is not observed, and costs nothing."""
    app.events.add("job.retrying", _retrying)
    app.events.add("job.dead", _dead)
    if _log.isEnabledFor(logging.INFO):
        app.events.add("job.cancelled", _cancelled)
    if _log.isEnabledFor(logging.DEBUG):
        app.events.add("job.started", _started)
        app.events.add("job.succeeded", _succeeded)


def _retrying(event: Event) -> None:
    _tell(logging.WARNING, "failed, and will be retried", event)


def _dead(event: Event) -> None:
    _tell(logging.ERROR, "is dead", event)


def _cancelled(event: Event) -> None:
    _tell(logging.INFO, "cancelled", event)


def _started(event: Event) -> None:
    _tell(logging.DEBUG, "started", event)


def _succeeded(event: Event) -> None:
    _tell(logging.DEBUG, "done", event)


def _tell(level: int, what: str, event: Event) -> None:
    """The first line of an error goes into the message, its traceback below."""
    attempt = event.job.attempts if event.job is not None else None
    fields = {"job_id": event.id, "queue": event.queue, "task": event.task, "attempt": attempt}
    first, _, rest = (event.error or "").partition("\n")
    _log.log(level, "%s: %s" if first else "%s%s", what, first, extra={**fields, "failure": rest.strip("\n")})
