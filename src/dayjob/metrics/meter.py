"""Count and time the jobs of one process, with a bounded number of labels.

A job appends to plain lists without a lock. A scrape computes the series from them.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dayjob.app import App
from dayjob.errors import ConfigError
from dayjob.model.job import EndedJob, Job
from dayjob.model.names import printable
from dayjob.task import Task

MAX_LABELS = 200
"""How many pairs of queue and task have their own series. Further pairs share the series "other"."""

LABEL_CHARACTERS = 100
"""How many characters a label has at most."""

OTHER = "other"

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0)
"""The upper bounds of the histograms' buckets, in seconds."""

_LABELS = ("queue", "task")

BUFFERED = 1000
"""How many times are buffered before they are added to the buckets."""


def label(name: str) -> str:
    """Return the name as a label. A long or unprintable name is changed; a digest keeps it unique."""
    shown = printable(name)
    if shown == name and len(name) <= LABEL_CHARACTERS:
        return name
    digest = sha256(name.encode()).hexdigest()[:12]
    return f"{shown[: LABEL_CHARACTERS - len(digest) - 1]}…{digest}"


class Times:
    """A histogram: the counts up to each bound, and the sum.

    Any thread may append to ``new``: an append to a list is atomic. ``counted`` removes exactly the times
    that it copied, so a concurrent append is not lost. Call it when ``new`` has ``BUFFERED`` times.
    """

    __slots__ = ("_counts", "_lock", "_sum", "new")

    def __init__(self) -> None:
        self.new: list[float] = []
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0
        self._lock = Lock()

    def counted(self) -> tuple[list[int], float]:
        """Return the cumulative counts by bound, the total count last, and the sum."""
        with self._lock:
            added = self.new[:]
            del self.new[: len(added)]
            added.sort()
            up_to = [*(bisect_right(added, bound) for bound in BOUNDS), len(added)]
            self._counts = [*map(operator.add, self._counts, up_to)]
            self._sum += sum(added)
            return self._counts, self._sum


class Series:
    """The numbers of one pair of queue and task."""

    __slots__ = ("enqueued", "runs", "waits", "without_worker")

    def __init__(self) -> None:
        self.enqueued = 0
        self.waits = Times()
        """One time for each start."""
        self.runs: dict[str, Times] = {}
        """One time for each end, by outcome."""
        self.without_worker: Counter[str] = Counter()
        """Jobs that ended without a worker, by their new state."""

    def ended(self, outcome: str, seconds: float) -> None:
        """Count the end of a run. ``outcome`` is the new state of the job, or "lost"."""
        times = self.runs.get(outcome)
        if times is None:
            times = self.runs.setdefault(outcome, Times())
        new = times.new
        new.append(seconds)
        if len(new) >= BUFFERED:
            times.counted()


class Meter(Collector):
    """The series of one process. ``measure`` attaches it to an app, which then reports its jobs."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        tasks: Mapping[str, Task[Any, Any, Any]] | None = None,
    ) -> None:
        self._tasks = tasks or {}
        """The declared tasks, which have their series on their queues however many others there are."""
        self.registry = CollectorRegistry() if registry is None else registry
        self._series: dict[tuple[str, str], Series] = {}
        self._lock = Lock()
        self.registry.register(self)

    def enqueued(self, queue: str, task: str) -> None:
        series = self._series.get((queue, task)) or self._add(queue, task)
        with self._lock:
            series.enqueued += 1

    def ended(self, job: EndedJob) -> None:
        """Count a job that ended without a worker."""
        series = self._series.get((job.queue, job.task)) or self._add(job.queue, job.task)
        with self._lock:
            series.without_worker[job.state] += 1

    def started(self, job: Job, waited: float) -> Series:
        """Count a run that starts ``waited`` seconds after the job was due. Its end is counted there."""
        series = self._series.get((job.queue, job.task)) or self._add(job.queue, job.task)
        new = series.waits.new
        new.append(waited if waited > 0.0 else 0.0)
        if len(new) >= BUFFERED:
            series.waits.counted()
        return series

    def _add(self, queue: str, task: str) -> Series:
        with self._lock:
            full = len(self._series) >= MAX_LABELS and (queue, task) not in self._series
            if full and task in self._tasks and self._tasks[task].config.queue == queue:
                full = False
            return self._series.setdefault((OTHER, OTHER) if full else (queue, task), Series())

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            all_series = list(self._series.items())
        enqueued = CounterMetricFamily(
            "dayjob_jobs_enqueued", "Jobs that this process enqueued.", labels=_LABELS
        )
        started = CounterMetricFamily("dayjob_jobs_started", "Runs started in this process.", labels=_LABELS)
        finished = CounterMetricFamily(
            "dayjob_jobs_finished", "Runs finished in this process, by outcome.",
            labels=(*_LABELS, "outcome"),
        )  # fmt: skip
        ended = CounterMetricFamily(
            "dayjob_jobs_ended", "Jobs that this process ended without a worker, by outcome.",
            labels=(*_LABELS, "outcome"),
        )  # fmt: skip
        runs = HistogramMetricFamily("dayjob_job_run_seconds", "Duration of runs.", labels=_LABELS)
        waits = HistogramMetricFamily(
            "dayjob_job_wait_seconds", "Time from a job's due time to the start of its run.", labels=_LABELS
        )
        for names, series in all_series:
            labels = (label(names[0]), label(names[1]))
            enqueued.add_metric(labels, series.enqueued)
            by_outcome = {outcome: times.counted() for outcome, times in list(series.runs.items())}
            for outcome, (counts, _) in by_outcome.items():
                finished.add_metric((*labels, str(outcome)), counts[-1])
            for state, number in list(series.without_worker.items()):
                ended.add_metric((*labels, str(state)), number)
            _add_histogram(runs, labels, by_outcome.values())
            waited = series.waits.counted()
            started.add_metric(labels, waited[0][-1])
            _add_histogram(waits, labels, [waited])
        return iter((enqueued, started, finished, ended, runs, waits))


def _add_histogram(
    family: HistogramMetricFamily, labels: tuple[str, str], parts: Collection[tuple[list[int], float]]
) -> None:
    names = (*map(str, BOUNDS), "+Inf")
    buckets = [(name, float(sum(part[0][index] for part in parts))) for index, name in enumerate(names)]
    family.add_metric(labels, buckets, sum(part[1] for part in parts))


def measure(app: App, registry: CollectorRegistry | None = None) -> Meter:
    """Count and time the app's jobs in this process from now on."""
    if app.meter is not None:
        raise ConfigError(f"{app!r} is measured already: use its meter")
    meter = app.meter = Meter(registry, app.tasks)
    return meter
