"""Counting and timing the jobs of one process, with labels that can't grow without end."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

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
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._children: dict[tuple[str, ...], Any] = {}
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
        self._child(self._enqueued, job.queue, job.task).inc()

    def started(self, job: Job, waited: float) -> None:
        self._child(self._started, job.queue, job.task).inc()
        self._child(self._wait, job.queue, job.task).observe(max(waited, 0.0))

    def ended(self, job: Job, outcome: str, seconds: float) -> None:
        """``outcome`` is the state that the job went into, or "lost"."""
        self._child(self._finished, job.queue, job.task, outcome).inc()
        self._child(self._run, job.queue, job.task).observe(seconds)

    def _child(self, metric: MetricWrapperBase, queue: str, task: str, *more: str) -> Any:
        known = (metric._name, queue, task, *more)
        child = self._children.get(known)
        if child is None:
            pair = (queue, task)
            if pair not in self._pairs and len(self._pairs) >= MOST_LABELS:
                return metric.labels(OTHER, OTHER, *more)
            self._pairs[pair] = pair
            child = self._children[known] = metric.labels(queue, task, *more)
        return child


def measure(app: App, registry: CollectorRegistry | None = None) -> Meter:
    """Count and time the app's jobs in this process from now on."""
    if app.meter is not None:
        raise ConfigError(f"{app!r} is measured already: use its meter")
    meter = app.meter = Meter(registry)
    return meter
