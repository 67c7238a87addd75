"""All queues at a glance, and their charts, from the counters and the samples of each minute."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from math import inf

from msgspec import Struct, to_builtins

from dayjob.broker import Broker
from dayjob.broker.history import MINUTE, Sample, counters_of
from dayjob.inspect.scaling import Load
from dayjob.model.durations import SECOND
from dayjob.model.job import QueueStats
from dayjob.runtime.clock import SYSTEM

_ALL = ""
"""Stands for all queues. No queue has an empty name."""


class QueueView(Struct, frozen=True):
    """One queue. Rates are jobs per second over the last minutes."""

    name: str
    paused: bool
    stats: QueueStats
    done_per_second: float
    waiting_seconds: float | None
    """How long the oldest pending job has been due."""
    workers: int = 1
    """The live workers that serve the queue."""
    slots: int = 1
    """The slots of these workers."""

    @property
    def load(self) -> Load:
        return combined([self], self.workers, self.slots)

    @property
    def stuck(self) -> bool:
        """Whether its pending jobs wait for a worker."""
        return (self.stats.pending > 0 or self.stats.limited > 0) and not self.workers and not self.paused


class Overview(Struct, frozen=True):
    """All queues with their totals, the workers, and the round trip to the store."""

    at_us: int
    queues: list[QueueView]
    total: QueueStats
    done_per_second: float
    workers: int
    slots: int
    running: int
    schedules: int
    round_trip_seconds: float


class Point(Struct, frozen=True):
    """A minute of a chart: jobs done in it, and the counters at its end."""

    at_us: int
    done: int
    pending: int
    scheduled: int
    running: int
    dead: int
    known: bool = True
    """False for minutes before the first sample."""
    wait_seconds: float | None = None
    """How long the first pending job had been due."""


class OverviewReader:
    """Reads overviews and charts. Samples, which change once a minute, are cached for ``max_age`` seconds."""

    def __init__(self, broker: Broker, max_age: float) -> None:
        self.broker = broker
        self._max_age = max_age
        self._cached: tuple[int, float, int, list[Sample]] | None = None
        self._first_due: tuple[float, dict[str, int]] = (-inf, {})

    async def overview(self, *, budget: float = inf) -> Overview:
        """Return all queues. Beyond the budget, the age of a queue's oldest pending job is left out."""
        begun = SYSTEM.elapsed()
        stats = await self.broker.all_stats()
        round_trip = SYSTEM.elapsed() - begun
        paused = await self.broker.paused()
        workers = await self.broker.workers()
        now, samples = await self._history(1)
        first_due = await self.broker.first_due(stats, budget - (SYSTEM.elapsed() - begun))
        self._first_due = (SYSTEM.elapsed(), first_due)
        waits = {name: max(now - due, 0) / SECOND for name, due in first_due.items()}
        serving, slots = Counter[str](), Counter[str]()
        for worker in workers:
            for queue in set(worker.queues) or {_ALL}:
                serving[queue] += 1
                slots[queue] += worker.slots
        queues = [
            QueueView(
                name, name in paused, each, _rate(samples, name, each, now), waits.get(name),
                serving[_ALL] + serving[name], slots[_ALL] + slots[name],
            )
            for name, each in stats.items()
        ]  # fmt: skip
        return Overview(
            at_us=now, queues=queues, total=sum_stats(stats.values()),
            done_per_second=sum(view.done_per_second for view in queues), workers=len(workers),
            slots=sum(worker.slots for worker in workers),
            running=sum(worker.running for worker in workers),
            schedules=len(await self.broker.schedules()), round_trip_seconds=round_trip,
        )  # fmt: skip

    async def load(self, queues: Collection[str] = ()) -> Load:
        """Return the load of these queues together, or of all."""
        views = [view for view in (await self.overview()).queues if not queues or view.name in queues]
        workers = [
            worker
            for worker in await self.broker.workers()
            if not queues or any(worker.serves(queue) for queue in queues)
        ]
        return combined(views, len(workers), sum(worker.slots for worker in workers))

    async def chart(self, queue: str | None = None, minutes: int = 60, *, budget: float = inf) -> list[Point]:
        """Return the last minutes of one queue, or of all together."""
        return (await self.charts([queue], minutes, budget=budget))[queue]

    async def charts(
        self, queues: Sequence[str | None], minutes: int = 60, *, budget: float = inf
    ) -> dict[str | None, list[Point]]:
        """Return the charts of several queues from one read. None stands for all queues together."""
        now, samples = await self._history(minutes // 60 + 1)
        stats = await self.broker.all_stats()
        counters = {name: counters_of(each) for name, each in stats.items()}
        read_at, first_due = self._first_due  # A page reads its overview just before its charts.
        if SYSTEM.elapsed() - read_at > min(self._max_age, 1.0):
            first_due = await self.broker.first_due(stats, budget)
        samples = [*samples, Sample(now, counters, first_due)]
        first = now - now % MINUTE - (minutes - 1) * MINUTE
        ends = range(first + MINUTE, first + (minutes + 1) * MINUTE, MINUTE)
        chosen = [_latest(samples, min(instant, now)) for instant in (first, *ends)]
        charts = {}
        for queue in dict.fromkeys(queues):
            counts = {id(sample): _stats_of(sample, queue) for sample in chosen}
            points = []
            for end, before, after in zip(ends, chosen, chosen[1:], strict=False):
                at_end = counts[id(after)]
                known = end >= samples[0].at_us
                points.append(Point(
                    at_us=end, done=max(at_end.done - counts[id(before)].done, 0), pending=at_end.pending,
                    scheduled=at_end.scheduled, running=at_end.running, dead=at_end.dead, known=known,
                    wait_seconds=after.wait_seconds(queue, min(end, now)) if known else None,
                ))  # fmt: skip
            charts[queue] = points
        return charts

    async def _history(self, hours: int) -> tuple[int, list[Sample]]:
        elapsed = SYSTEM.elapsed()
        if self._cached is None or self._cached[0] < hours or elapsed - self._cached[1] >= self._max_age:
            self._cached = (hours, elapsed, *await self.broker.history(hours))
        _, read_at, now, samples = self._cached
        return now + round((elapsed - read_at) * SECOND) if elapsed > read_at else now, samples


def combined(queues: Sequence[QueueView], workers: int, slots: int) -> Load:
    """Return the load of the queues together. The pending jobs of paused queues need no worker."""
    claimable = [view for view in queues if not view.paused]
    return Load(
        pending=sum(view.stats.pending for view in claimable),
        limited=sum(view.stats.limited for view in claimable),
        running=sum(view.stats.running for view in queues),
        waiting_seconds=max((view.waiting_seconds or 0.0 for view in claimable), default=0.0),
        done_per_second=sum(view.done_per_second for view in queues),
        workers=workers,
        slots=slots,
    )


def sum_stats(stats: Iterable[QueueStats]) -> QueueStats:
    summed = Counter[str]()
    for each in stats:
        summed.update(to_builtins(each))
    return QueueStats(**summed)


def _rate(samples: Sequence[Sample], queue: str, now_stats: QueueStats, now: int) -> float:
    """Return successes per second since a sample of some minutes ago."""
    earlier = [sample for sample in samples if now - sample.at_us <= 5 * MINUTE] or list(samples[-1:])
    if not earlier or now <= earlier[0].at_us:
        return 0.0
    since = earlier[0] if len(earlier) < 2 else earlier[-2]
    seconds = max(now - since.at_us, SECOND) / SECOND
    return max(now_stats.done - since.stats(queue).done, 0) / seconds


def _latest(samples: Sequence[Sample], instant: int) -> Sample:
    """Return the last sample up to an instant, or the first sample."""
    number = bisect_right(samples, instant, key=lambda sample: sample.at_us)
    return samples[max(number - 1, 0)]


def _stats_of(sample: Sample, queue: str | None) -> QueueStats:
    if queue is not None:
        return sample.stats(queue)
    return QueueStats(*map(sum, zip(*sample.queues.values(), strict=True))) if sample.queues else QueueStats()
