"""Counting and timing the jobs of one process, with labels that can't grow without end.

A job adds to plain numbers; what Prometheus wants to know is made of them when it asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dayjob.app import App
from dayjob.errors import ConfigError
from dayjob.job import Job, NewJob

MOST_LABELS = 200
"""How many pairs of queue and task have series of their own; further ones share those of "other"."""

OTHER = "other"

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0)
"""The upper bounds of the histograms' buckets, in seconds."""

_LABELS = ("queue", "task")


class Times:
    """How many there were in each bucket, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        names = (*map(str, BOUNDS), "+Inf")
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


class Series:
    """The numbers of one pair of queue and task."""

    __slots__ = ("enqueued", "finished", "run", "started", "wait")

    def __init__(self) -> None:
        self.enqueued = self.started = 0
        self.finished: Counter[str] = Counter()
        self.run = Times()
        self.wait = Times()


class Meter(Collector):
    """The series of one process. An app tells it of its jobs once it is told to by ``measure``."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._series: dict[tuple[str, str], Series] = {}
        self._lock = Lock()
        self.registry.register(self)

    def enqueued(self, job: NewJob) -> None:
        with self._lock:
            self._of(job.queue, job.task).enqueued += 1

    def started(self, job: Job, waited: float) -> None:
        with self._lock:
            series = self._of(job.queue, job.task)
            series.started += 1
            series.wait.add(max(waited, 0.0))

    def ended(self, job: Job, outcome: str, seconds: float) -> None:
        """``outcome`` is the state that the job went into, or "lost"."""
        with self._lock:
            series = self._of(job.queue, job.task)
            series.finished[outcome] += 1
            series.run.add(seconds)

    def _of(self, queue: str, task: str) -> Series:
        series = self._series.get((queue, task))
        if series is None:
            full = len(self._series) >= MOST_LABELS
            series = self._series.setdefault((OTHER, OTHER) if full else (queue, task), Series())
        return series

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            yield self._counter(
                "dayjob_jobs_enqueued", "Jobs that this process enqueued.", lambda each: each.enqueued
            )
            yield self._counter(
                "dayjob_jobs_started", "Runs that began in this process.", lambda each: each.started
            )
            finished = CounterMetricFamily(
                "dayjob_jobs_finished", "Runs that ended in this process, by what became of the job.",
                labels=(*_LABELS, "outcome"),
            )  # fmt: skip
            for labels, series in self._series.items():
                for outcome, count in series.finished.items():
                    finished.add_metric((*labels, str(outcome)), count)
            yield finished
            yield self._histogram("dayjob_job_run_seconds", "How long runs took.", lambda each: each.run)
            yield self._histogram(
                "dayjob_job_wait_seconds", "From when a job was due until its run began.",
                lambda each: each.wait,
            )  # fmt: skip

    def _counter(self, name: str, text: str, of: Callable[[Series], int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=_LABELS)
        for labels, series in self._series.items():
            family.add_metric(labels, of(series))
        return family

    def _histogram(self, name: str, text: str, of: Callable[[Series], Times]) -> Metric:
        family = HistogramMetricFamily(name, text, labels=_LABELS)
        for labels, series in self._series.items():
            times = of(series)
            family.add_metric(labels, times.buckets(), times.sum)
        return family


def measure(app: App, registry: CollectorRegistry | None = None) -> Meter:
    """Count and time the app's jobs in this process from now on."""
    if app.meter is not None:
        raise ConfigError(f"{app!r} is measured already: use its meter")
    meter = app.meter = Meter(registry)
    return meter
