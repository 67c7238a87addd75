"""The metrics page: the series of this process, and those of the store, read for each request."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from dayjob.inspect import Inspector, Overview, QueueView
from dayjob.inspect.scaling import TARGET
from dayjob.metrics.meter import OTHER, label

MAX_QUEUES = 200
"""How many queues have their own series. The others, those with the fewest jobs, are summed up."""

STATES = ("pending", "limited", "scheduled", "running", "dead", "cancelled")


class Exposition:
    """Renders the metrics of one store, and of one process if its registry is given."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, inspector: Inspector, registry: CollectorRegistry | None = None) -> None:
        self._inspector = inspector
        self._registry = registry

    async def render(self) -> bytes:
        """Return the page in Prometheus's text format."""
        overview = await self._inspector.overview()
        store = CollectorRegistry()
        store.register(_Store(overview))
        own = b"" if self._registry is None else generate_latest(self._registry)
        return generate_latest(store) + own


class _Store(Collector):
    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    def collect(self) -> Iterator[Metric]:
        overview = self._overview
        jobs = GaugeMetricFamily("dayjob_jobs", "Jobs in the store by state.", labels=("queue", "state"))
        done = CounterMetricFamily(
            "dayjob_jobs_done",
            "Jobs completed since the store was created, in all processes.",
            labels=("queue",),
        )
        oldest = GaugeMetricFamily(
            "dayjob_oldest_pending_seconds", "Age of the oldest pending job, from its due time.",
            labels=("queue",),
        )  # fmt: skip
        paused = GaugeMetricFamily("dayjob_queue_paused", "1 while the queue is paused.", labels=("queue",))
        wanted = GaugeMetricFamily(
            "dayjob_workers_wanted",
            f"Workers that the queue needs to start each job within {TARGET:g} s.",
            labels=("queue",),
        )
        for name, views in _bounded(overview.queues):
            for state in STATES:
                jobs.add_metric((name, state), sum(getattr(view.stats, state) for view in views))
            done.add_metric((name,), sum(view.stats.done for view in views))
            oldest.add_metric((name,), max(view.waiting_seconds or 0.0 for view in views))
            paused.add_metric((name,), any(view.paused for view in views))
            wanted.add_metric((name,), sum(view.load.workers_wanted() for view in views))
        yield from (jobs, done, oldest, paused, wanted)
        yield GaugeMetricFamily("dayjob_workers", "Live workers.", value=overview.workers)
        yield GaugeMetricFamily("dayjob_worker_slots", "Slots of the live workers.", value=overview.slots)
        yield GaugeMetricFamily(
            "dayjob_running", "Running jobs, as reported by the live workers.", value=overview.running
        )
        yield GaugeMetricFamily("dayjob_schedules", "Schedules of recurring jobs.", value=overview.schedules)
        yield GaugeMetricFamily(
            "dayjob_engine_round_trip_seconds", "Round trip of one read from the store.",
            value=overview.round_trip_seconds,
        )  # fmt: skip


def _bounded(queues: list[QueueView]) -> Iterator[tuple[str, list[QueueView]]]:
    """Yield the labels with their queues. A queue that is itself named "other" is one of the others."""
    largest = sorted(queues, key=lambda view: -(view.stats.pending + view.stats.running + view.stats.done))
    shown = [view for view in largest[:MAX_QUEUES] if view.name != OTHER]
    for view in shown:
        yield label(view.name), [view]
    if others := [view for view in largest[:MAX_QUEUES] if view.name == OTHER] + largest[MAX_QUEUES:]:
        yield OTHER, others
