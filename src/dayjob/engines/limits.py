"""Limits, as the local engines apply them: room for claims, lines of jobs without room, and their wake-ups.

A bucket is the state of a limit for one key. Jobs without room wait in its line, one line for each queue, in
``(priority, turn, id)`` order. Whenever a job ends its run, or leaves its queue or line in another way, the
first jobs of the lines that fit become pending in the same commit. One too many costs a claim a look, one
too few is a bug. The rules are in ``docs/design/0025-flow-control.md``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from dayjob.engines import record as records
from dayjob.engines.base import BATCH, Insertion
from dayjob.engines.record import Record
from dayjob.errors import QueueFull
from dayjob.model.job import JobState
from dayjob.model.limits import LimitInfo, LimitSettings, Units, decode_settings, limit_name, settings_of
from dayjob.runtime.signals import DUE, Topic, queue_topic

Place = tuple[int, int, bytes]
"""The place of a job in its queue or line: ``Record.order``."""


class BucketState(Struct, gc=False):
    """The state of a bucket: the units of running jobs, the arrival time of its rate, and its due time.

    ``tat`` is the theoretical arrival time of the generic cell rate algorithm. ``due`` is the time at which
    the next job of a line gets its tokens, if one waits for them.
    """

    running: int = 0
    tat: int = 0
    due: int | None = None

    def is_idle(self, now: int) -> bool:
        """Return whether a new bucket would be in the same state."""
        return self.running == 0 and self.tat <= now and self.due is None


class LimitStore(Protocol):
    """The part of the store port that limits need."""

    topics: set[Topic]

    def limit_values(self) -> Mapping[str, bytes]:
        """Return the stored limits by name."""

    def bucket(self, name: str) -> BucketState | None: ...

    def save_bucket(self, name: str, state: BucketState | None) -> None:
        """Store the state of a bucket, or remove the bucket."""

    def buckets_due(self, limit: int, now: int) -> Sequence[str]:
        """Return buckets whose due time has come."""

    def remove_idle(self, limit: int, now: int) -> None:
        """Remove idle buckets, and the turns of tenants without jobs."""

    def has_lines(self) -> bool:
        """Return whether any job is limited."""

    def line_queues(self, bucket: str) -> Sequence[str]:
        """Return the queues that have a line for the bucket."""

    def line(self, bucket: str, queue: str) -> Iterator[Record]:
        """Iterate over the jobs of a line in order. It is not changed meanwhile."""

    def lines_of(self, limit: str) -> Sequence[str]:
        """Return the buckets of the limit that have lines."""

    async def limit_use(self) -> Mapping[str, tuple[int, int]]:
        """Return the running units and the number of limited jobs of buckets."""

    def save(self, record: Record, before: JobState) -> None:
        """Store a changed record, or delete the job if it is ``removed``. ``before`` is its last state."""

    def count(self, deltas: Mapping[tuple[str, JobState], int]) -> None:
        """Add to the counters. A new queue is added."""


_NO_BUCKET = (0, 0, None)


class Limiter:
    """The limits in one verb. ``finish`` wakes lines and saves the buckets that changed."""

    def __init__(self, store: LimitStore, now: int) -> None:
        self._store = store
        self._now = now
        self._stored = store.limit_values()
        self._buckets: dict[str, BucketState] = {}
        self._loaded: dict[str, tuple[int, int, int | None]] = {}
        self._freed: defaultdict[str, int] = defaultdict(int)
        """The units by which jobs have left each bucket, or its lines, in this verb."""
        self._deltas: defaultdict[tuple[str, JobState], int] = defaultdict(int)
        self._settings_of: dict[str, LimitSettings | None] = {}
        self._has_lines = store.has_lines()
        self._firsts: dict[tuple[str, str], Place | None] = {}
        """The places of the first jobs of lines, by bucket and queue."""

    # Claims.

    def admit(self, record: Record) -> bool:
        """Take room for a pending job in all its buckets. Else move it to the line of the first without."""
        name = self.take(record.limits, record.queue, record.order)
        if name is not None:
            self.block(record, name)
        return name is None

    def take(self, limits: Units, queue: str, place: Place) -> str | None:
        """Take room for a pending job in all its buckets, or return the first one that blocks it."""
        for name, units in limits:
            if not self._fits(self._bucket(name), self._settings(name), units) or self._is_behind(
                name, queue, place
            ):
                return name
        for name, units in limits:
            self._take(self._bucket(name), self._settings(name), units)
        return None

    def line_of(self, job: Insertion) -> str | None:
        """Return the first bucket with a line that a new job has to join."""
        place = (job.priority, job.turn, job.key)
        return next((name for name, _ in job.limits if self._is_behind(name, job.queue, place)), None)

    def _is_behind(self, name: str, queue: str, place: Place) -> bool:
        """Return whether the line has a first job that precedes the place."""
        if not self._has_lines:
            return False
        line = (name, queue)
        if line not in self._firsts:
            first = self._first(name, queue)
            self._firsts[line] = None if first is None else first.order
        found = self._firsts[line]
        return found is not None and found < place

    def _first(self, name: str, queue: str) -> Record | None:
        return next(self._store.line(name, queue), None)

    def block(self, record: Record, name: str) -> None:
        """Move a pending job to the line of a bucket.

        It leaves the other buckets, and may have been the one that was woken for their room.
        """
        self._has_lines = True
        self._firsts.pop((name, record.queue), None)
        records.limit(record, name)
        self._store.save(record, JobState.PENDING)
        self._count(record.queue, JobState.PENDING, JobState.LIMITED)
        self._bucket(name)
        for other, units in record.limits:
            if other != name:
                self._freed[other] += units

    def _fits(self, bucket: BucketState, settings: LimitSettings | None, units: int) -> bool:
        return settings is None or (
            self._has_place(bucket, settings, units)
            and (settings.rate is None or settings.due(bucket.tat, units) <= self._now)
        )

    @staticmethod
    def _has_place(bucket: BucketState, settings: LimitSettings, units: int) -> bool:
        """Return whether the running jobs leave room. An idle bucket admits any job."""
        return settings.running is None or not bucket.running or bucket.running + units <= settings.running

    def _take(self, bucket: BucketState, settings: LimitSettings | None, units: int) -> None:
        bucket.running += units
        if settings is not None and settings.rate is not None:
            bucket.tat = max(bucket.tat, self._now) + settings.cost(units)

    # Jobs that leave.

    def left(self, record: Record, before: JobState) -> None:
        """Give back the room of a job that has left the state, and wake the lines of its buckets."""
        if record.state is before:
            return
        if before is JobState.LIMITED:
            line, record.limited_by = record.limited_by, None
            self._firsts.clear()
            if line is not None:
                self._freed[line] += dict(record.limits).get(line, 1)
        elif before is JobState.RUNNING:
            self.give_back(record.limits)
        elif before is JobState.PENDING:
            for name, units in record.limits:
                self._freed[name] += units

    def give_back(self, limits: Units) -> None:
        """Give back the room of a run that has ended."""
        for name, units in limits:
            bucket = self._bucket(name)
            bucket.running = max(bucket.running - units, 0)
            self._freed[name] += units

    def charge(self, charges: Units) -> None:
        """Correct the rates of buckets by the units that a run has used."""
        for name, units in charges:
            settings = self._settings(name)
            if settings is not None and settings.rate is not None:
                bucket = self._bucket(name)
                cost = settings.cost(abs(units))
                bucket.tat = max(bucket.tat, self._now) + cost if units > 0 else max(bucket.tat - cost, 0)
                self._freed[name] += max(-units, 0)

    # Wake-ups.

    def wake_due(self, names: Iterable[str]) -> int:
        """Wake the lines whose tokens are due. Return the number of jobs that became pending."""
        return self._wake_all(dict.fromkeys(names, BATCH))

    def wake_limit(self, limit: str) -> int:
        """Wake the lines of a changed limit, up to ``BATCH`` jobs."""
        return self._wake_all(dict.fromkeys(self._store.lines_of(limit), BATCH), BATCH)

    def finish(self) -> None:
        """Wake the lines of the buckets that jobs have left, and save all changes."""
        if self._freed:
            self._wake_all(dict(self._freed))
            self._freed.clear()
        for name, bucket in self._buckets.items():
            self._save(name, bucket)
        self._buckets.clear()
        self._store.count(self._deltas)
        self._deltas.clear()

    def _wake_all(self, freed: Mapping[str, int], limit: int | None = None) -> int:
        woken = 0
        for name in sorted(freed):
            for queue in self._queues(name):
                left = freed[name] if limit is None else min(freed[name], limit - woken)
                self._firsts.pop((name, queue), None)
                for record in self._woken(name, queue, left):
                    records.give_room(record)
                    self._store.save(record, JobState.LIMITED)
                    self._count(queue, JobState.LIMITED, JobState.PENDING)
                    self._store.topics.add(queue_topic(queue))
                    woken += 1
            self._bucket(name)
        return woken

    def _woken(self, name: str, queue: str, units: int) -> list[Record]:
        """Return the first jobs of a line that fit together, until they take that many units.

        Room that the first job could not use, since it needs more than one unit, is added to the units.
        """
        settings, now = self._settings(name), self._bucket(name)
        bucket = BucketState(now.running, now.tat)
        found: list[Record] = []
        for record in self._store.line(name, queue):
            taken = dict(record.limits)[name]
            if not found and units > 0:
                units += taken - 1
            if units <= 0 or not self._fits(bucket, settings, taken):
                break
            self._take(bucket, settings, taken)
            units -= taken
            found.append(record)
        return found

    def _queues(self, name: str) -> Sequence[str]:
        return self._store.line_queues(name) if self._has_lines else ()

    # Buckets.

    def _settings(self, name: str) -> LimitSettings | None:
        try:
            return self._settings_of[name]
        except KeyError:
            settings = self._settings_of[name] = settings_of(name, self._stored)
            return settings

    def _bucket(self, name: str) -> BucketState:
        """Return the bucket, to be saved by ``finish``."""
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = self._store.bucket(name) or BucketState()
            self._loaded[name] = (bucket.running, bucket.tat, bucket.due)
        return bucket

    def _save(self, name: str, bucket: BucketState) -> None:
        settings = self._settings(name)
        due = None
        if settings is not None and settings.rate is not None:
            due = min(self._dues(name, bucket, settings), default=None)
            if due is not None and due != bucket.due:
                self._store.topics.add(DUE)
        bucket.due = due
        idle, loaded = bucket.is_idle(self._now), self._loaded[name]
        if (bucket.running, bucket.tat, bucket.due) != loaded or (idle and loaded != _NO_BUCKET):
            self._store.save_bucket(name, None if idle else bucket)

    def _dues(self, name: str, bucket: BucketState, settings: LimitSettings) -> Iterator[int]:
        """Yield the times at which the first job of each line gets its tokens.

        A job whose tokens are there has to wait for jobs that were woken before it. If they don't run, it is
        woken one interval later. A job that waits for the end of a run has no due time.
        """
        for queue in self._queues(name):
            record = self._first(name, queue)
            if record is not None:
                units = dict(record.limits)[name]
                if self._has_place(bucket, settings, units):
                    due = settings.due(bucket.tat, units)
                    if due <= self._now:
                        due = self._now + max(settings.cost(units), 1)
                        if bucket.due is not None and self._now < bucket.due:
                            due = min(due, bucket.due)
                    yield due

    def _count(self, queue: str, before: JobState, after: JobState) -> None:
        self._deltas[queue, before] -= 1
        self._deltas[queue, after] += 1


def check_room(jobs: Sequence[Insertion], now: int, waiting: Mapping[str, int]) -> None:
    """Raise ``QueueFull`` if one of the queues has no room for its jobs that are due.

    ``waiting`` has the pending and limited jobs of each queue.
    """
    due = Counter(job.queue for job in jobs if job.times(now)[0] <= now)
    for job in jobs:
        added = due[job.queue]
        if added and job.max_pending is not None and waiting[job.queue] + added > job.max_pending:
            raise QueueFull(job.queue, waiting[job.queue], added, job.max_pending)


def limit_infos(stored: Mapping[str, bytes], use: Mapping[str, tuple[int, int]]) -> list[LimitInfo]:
    """Return the stored limits by name. ``use`` has the running units and the limited jobs of buckets."""
    running, limited = Counter[str](), Counter[str]()
    for bucket, (units, jobs) in use.items():
        name = bucket if bucket in stored else limit_name(bucket)
        running[name] += units
        limited[name] += jobs
    return [
        LimitInfo(name, decode_settings(stored[name]), running[name], limited[name])
        for name in sorted(stored)
    ]
