"""Counting and timing the jobs of one process, with labels that can't grow without end."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from dayjob.app import App
from dayjob.errors import ConfigError
from dayjob.job import Job, NewJob

MOST_LABELS = 200
"""How many pairs of queue and task have series of their own; further ones share those of "other"."""

OTHER = "other"

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0)


class Meter:
    """The series of one process. An app tells it of its jobs once it is told to by ``measure``."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._series: dict[tuple[str, str], Series] = {}
        labels = ("queue", "task")
        self._enqueued = Counter(
            "dayjob_jobs_enqueued", "Jobs that this process enqueued.", labels, registry=self.registry
        )
        self._started = Counter(
            "dayjob_jobs_started", "Runs that began in this process.", labels, registry=self.registry
        )
        self._finished = Counter(
            "dayjob_jobs_finished", "Runs that ended in this process, by what became of the job.",
            (*labels, "outcome"), registry=self.registry,
        )  # fmt: skip
        self._run = Histogram(
            "dayjob_job_run_seconds", "How long runs took.", labels, buckets=_SECONDS, registry=self.registry
        )
        self._wait = Histogram(
            "dayjob_job_wait_seconds", "From when a job was due until its run began.", labels,
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip

    def enqueued(self, job: NewJob) -> None:
        self._of(job.queue, job.task).enqueued.inc()

    def started(self, job: Job, waited: float) -> None:
        series = self._of(job.queue, job.task)
        series.started.inc()
        series.wait.observe(max(waited, 0.0))

    def ended(self, job: Job, outcome: str, seconds: float) -> None:
        """``outcome`` is the state that the job went into, or "lost"."""
        series = self._of(job.queue, job.task)
        finished = series.finished.get(outcome)
        if finished is None:
            finished = series.finished[outcome] = self._finished.labels(*series.labels, outcome)
        finished.inc()
        series.run.observe(seconds)

    def _of(self, queue: str, task: str) -> Series:
        series = self._series.get((queue, task))
        if series is None:
            if len(self._series) >= MOST_LABELS:
                queue = task = OTHER
            labels = (queue, task)
            series = self._series[labels] = self._series.get(labels) or Series(
                labels, self._enqueued.labels(*labels), self._started.labels(*labels),
                self._run.labels(*labels), self._wait.labels(*labels),
            )  # fmt: skip
        return series


class Series:
    """The series of one pair of queue and task."""

    def __init__(
        self, labels: tuple[str, str], enqueued: Counter, started: Counter, run: Histogram, wait: Histogram
    ) -> None:
        self.labels = labels
        self.enqueued = enqueued
        self.started = started
        self.run = run
        self.wait = wait
        self.finished: dict[str, Counter] = {}


def measure(app: App, registry: CollectorRegistry | None = None) -> Meter:
    """Count and time the app's jobs in this process from now on."""
    if app.meter is not None:
        raise ConfigError(f"{app!r} is measured already: use its meter")
    meter = app.meter = Meter(registry)
    return meter
