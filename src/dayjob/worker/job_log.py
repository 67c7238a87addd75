"""The log of job outcomes: retries as warnings, dead letters as errors, cancels as info, runs as debug."""

from __future__ import annotations

import logging
from functools import partial

from dayjob.app import App
from dayjob.events import Event

_log = logging.getLogger("dayjob.job")


def _log_event(level: int, outcome: str, event: Event) -> None:
    """Log the first line of an error in the message, and its traceback below."""
    if event.job is None:
        return  # It ended without a run. The duty that ended it has logged it.
    fields = {"job_id": event.id, "queue": event.queue, "task": event.task, "attempt": event.job.attempts}
    first, _, rest = (event.error or "").partition("\n")
    text = "Job %s %s: %s" if first else "Job %s %s%s"
    _log.log(level, text, event.id, outcome, first, extra={**fields, "failure": rest.strip("\n")})


_dead = partial(_log_event, logging.ERROR, "is dead")
_retrying = partial(_log_event, logging.WARNING, "failed and will be retried")
_cancelled = partial(_log_event, logging.INFO, "was cancelled")
_started = partial(_log_event, logging.DEBUG, "started")
_succeeded = partial(_log_event, logging.DEBUG, "succeeded")


def log_outcomes(app: App) -> None:
    """Subscribe to the events that the log level includes, once per app. The others cost nothing."""
    if app.events.observed_by(_dead):
        return
    app.events.add("job.retrying", _retrying)
    app.events.add("job.dead", _dead)
    if _log.isEnabledFor(logging.INFO):
        app.events.add("job.cancelled", _cancelled)
    if _log.isEnabledFor(logging.DEBUG):
        app.events.add("job.started", _started)
        app.events.add("job.succeeded", _succeeded)
