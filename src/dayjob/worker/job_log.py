"""The log of job outcomes: retries as warnings, dead letters as errors, other runs as info or debug."""

from __future__ import annotations

import logging

from dayjob.app import App
from dayjob.context import log_fields
from dayjob.events import Event

_log = logging.getLogger("dayjob.job")

SHORT_ID = 18
"""Characters of an id in the lines about each job: the time of its creation, and some of its random part."""

_OUTCOMES = {
    "job.retrying": (logging.WARNING, "failed and will be retried"),
    "job.dead": (logging.ERROR, "is dead"),
    "job.cancelled": (logging.INFO, "was cancelled"),
    "job.started": (logging.DEBUG, "started"),
}
_EACH_RUN = {"job.succeeded": "succeeded", "job.snoozed": "was snoozed", "job.released": "was released"}


class JobLog:
    """Logs the events of one app. ``each_run`` is the level of runs that succeed or are put back."""

    def __init__(self, each_run: int) -> None:
        self._outcomes = _OUTCOMES | {name: (each_run, text) for name, text in _EACH_RUN.items()}
        self.names = [name for name, (level, _) in self._outcomes.items() if _log.isEnabledFor(level)]

    def __call__(self, event: Event) -> None:
        """Log the first line of an error in the message, and its traceback below."""
        if event.job is None:
            return  # It ended without a run. The duty that ended it has logged it.
        level, outcome = self._outcomes[event.name]
        fields = log_fields(event.job)
        if event.seconds is not None:
            fields["seconds"] = round(event.seconds, 6)
        first, _, rest = (event.error or "").partition("\n")
        id = event.id[:SHORT_ID] if event.name in _EACH_RUN else event.id
        text = "Job %s %s: %s" if first else "Job %s %s%s"
        _log.log(level, text, id, outcome, first, extra={**fields, "failure": rest.strip("\n")})


def log_outcomes(app: App, each_run: int) -> None:
    """Subscribe to the events that the log level includes, once per app. The others cost nothing."""
    if not app.events.observed_by(JobLog):
        log = JobLog(each_run)
        app.events.add(log.names, log)
