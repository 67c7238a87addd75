"""Warnings about jobs whose task or parameters the worker does not have, once a minute for each task."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from math import inf

from dayjob.app import App
from dayjob.context import log_fields
from dayjob.model.job import Job
from dayjob.runtime.clock import SYSTEM

_log = logging.getLogger("dayjob.worker")

INTERVAL = 60.0
"""Seconds between two warnings of the same task."""

_REMEMBERED = 1000


class UnknownTasks:
    """Warns about unknown tasks in the jobs of one app."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._clock = app.clock or SYSTEM
        self._warned: dict[tuple[str, str], float] = {}

    def warn(self, job: Job, reason: str) -> None:
        """Log that the job is put back, with the reason and a hint, unless its task had a warning lately."""
        now, key = self._clock.elapsed(), (job.queue, job.task)
        if now - self._warned.get(key, -inf) < INTERVAL:
            return
        if len(self._warned) >= _REMEMBERED:
            self._warned.clear()
        self._warned[key] = now
        _log.warning(
            "%s: job %s of queue %r is put back for another worker: %s",
            reason, job.id, job.queue, self._hint(job), extra=log_fields(job),
        )  # fmt: skip

    def _hint(self, job: Job) -> str:
        if job.task in self._app.tasks:
            return "deploy the version of the code that enqueued it to this worker"
        if not job.task:
            return f"register one with @app.handler(queue={job.queue!r}), or serve other queues"
        similar = get_close_matches(job.task, self._app.tasks, 1)
        also = f" (the app has {similar[0]!r})" if similar else ""
        return import_hint(job.task) + also


def import_hint(task: str) -> str:
    """Return how to make a task known to a worker. By default, its name begins with its module."""
    module = task.rpartition(".")[0]
    which = f"the module of the task, {module!r} by its name," if module else "the module of the task"
    return f"import {which} where the app is created"
