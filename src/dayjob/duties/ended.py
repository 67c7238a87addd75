"""Reports the jobs whose state changes without a worker: one log line each, and the callback of the broker.

The process whose call changed a job reports it, once. A process that dies between the commit and the report
reports nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dayjob.model.job import EndedJob, JobState, explained
from dayjob.model.lifecycle import CANCELLED, REQUEUED

_log = logging.getLogger("dayjob.duties")

MAX_LOGGED = 20
"""Jobs that one run of a duty logs one by one. Further ones are counted in a line for each reason."""

OnEnded = Callable[[Sequence[EndedJob]], None]
Report = Callable[[Sequence[EndedJob]], None]

_LEVELS = {JobState.DEAD: logging.ERROR, JobState.CANCELLED: logging.INFO}
_OUTCOMES = {JobState.DEAD: "is dead", JobState.CANCELLED: "was cancelled"}
_ON_REQUEST = {CANCELLED: "was cancelled", REQUEUED: "is pending again"}
"""The changes that a caller requested, by their reason. They are logged at the level debug."""


class EndedJobs:
    """Reports to the log and to ``on_ended``."""

    def __init__(self, on_ended: OnEnded | None) -> None:
        self._on_ended = on_ended

    @contextmanager
    def reporting(self) -> Iterator[Report]:
        """Yield the function to call with the ended jobs of each commit of one run."""
        logged = 0
        further: Counter[tuple[JobState, str]] = Counter()

        def report(ended: Sequence[EndedJob]) -> None:
            nonlocal logged
            ended = [job for job in ended if job.error]  # Without one, a hand-off was only revoked.
            for job in ended:
                if logged < MAX_LOGGED:
                    _log_job(job)
                    logged += 1
                else:
                    further[job.state, job.error] += 1
            if ended and self._on_ended is not None:
                try:
                    self._on_ended(ended)
                except Exception:
                    _log.exception("the callback %r failed on %d ended jobs", self._on_ended, len(ended))

        try:
            yield report
        finally:
            for (state, error), count in further.items():
                _log.log(
                    _level(state, error),
                    "%d further jobs: %s: %s",
                    count,
                    _outcome(state, error),
                    explained(error),
                )

    def report(self, ended: Sequence[EndedJob]) -> None:
        with self.reporting() as report:
            report(ended)


def _log_job(job: EndedJob) -> None:
    fields = {"job_id": job.id, "queue": job.queue, "task": job.task, "attempt": job.attempts}
    _log.log(
        _level(job.state, job.error), "Job %s of task %r on queue %r %s: %s",
        job.id, job.task, job.queue, _outcome(job.state, job.error), explained(job.error), extra=fields,
    )  # fmt: skip


def _level(state: JobState, reason: str) -> int:
    return logging.DEBUG if reason in _ON_REQUEST else _LEVELS.get(state, logging.WARNING)


def _outcome(state: JobState, reason: str) -> str:
    return _ON_REQUEST.get(reason) or _OUTCOMES.get(state, "lost its claim and runs again")
