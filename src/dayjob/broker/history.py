"""The throughput of the last day: a sample of the counters each minute, read as differences.

A sample also has the due time of the first pending job of each queue, from which the waiting time follows.
One document holds the samples of an hour. Nothing is written while the counters do not change, and nothing
is ever added to a settlement. After the clock was set back, samples of the future are ignored and removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from math import inf

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from dayjob.broker.retrying_storage import RetryingStorage
from dayjob.engines.base import Document, DocumentWrite, JobQuery
from dayjob.model.codec import UNDECODABLE
from dayjob.model.durations import SECOND
from dayjob.model.job import JobState, QueueStats
from dayjob.runtime.clock import SYSTEM

_log = logging.getLogger("dayjob.broker")

KIND = "history"
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
KEPT = 24
"""Hours."""

MOST_QUEUES = 500
"""The queues in a sample: those with the most successes."""

MOST_ASKED = 100
"""The queues whose first pending job is read: those with the most pending jobs."""

Counters = tuple[int, ...]
"""The fields of ``QueueStats``. An old sample has fewer."""


def counters_of(stats: QueueStats) -> Counters:
    counters: Counters = astuple(stats)
    return counters


class Sample(Struct, frozen=True, array_like=True):
    """The counters of every queue at one minute: the fields of ``QueueStats``."""

    at_us: int
    queues: dict[str, Counters]
    first_due: dict[str, int] = {}
    """The due time of the first pending job by queue. It stays the first while the counters do not change."""

    def stats(self, queue: str) -> QueueStats:
        return QueueStats(*self.queues.get(queue, ()))

    def wait_seconds(self, queue: str | None, instant: int) -> float | None:
        """Return how long the first pending job of the queue, or of any, has waited; None if unknown."""
        due = self.first_due.get(queue) if queue is not None else min(self.first_due.values(), default=None)
        if due is not None:
            return max(instant - due, 0) / SECOND
        stats = [self.stats(queue)] if queue is not None else map(self.stats, self.queues)
        return None if any(each.pending for each in stats) else 0.0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Sample]).decode


class History:
    """Stores samples and reads them."""

    def __init__(self, storage: RetryingStorage) -> None:
        self._storage = storage

    async def sample(self) -> int:
        """Store the counters of this minute, once for all processes. Return microseconds to the next one."""
        now, documents = await self._storage.documents(KIND)
        minute = now - now % MINUTE
        samples = _until(now, documents)
        if not samples or samples[-1].at_us < minute:
            stats = await self._storage.read(self._storage.engine.stats)
            queues = _busiest(stats)
            if not samples or samples[-1].queues != queues:
                await self._add(documents, Sample(minute, queues, await self.first_due(stats)))
        return minute + MINUTE - now

    async def first_due(self, stats: Mapping[str, QueueStats], timeout: float = inf) -> dict[str, int]:
        """Return the due time of the first pending job by queue. After ``timeout`` seconds read no more."""
        deadline = SYSTEM.elapsed() + timeout
        pending = sorted((queue for queue in stats if stats[queue].pending), key=lambda q: -stats[q].pending)
        found: dict[str, int] = {}
        for queue in pending[:MOST_ASKED]:
            query = JobQuery(1, queue, JobState.PENDING)
            for job in await self._storage.read(partial(self._storage.engine.find, query)):
                found[queue] = job.run_us
            if SYSTEM.elapsed() >= deadline:
                break
        return found

    async def _add(self, documents: list[Document], sample: Sample) -> None:
        hour = _name(sample.at_us)
        this = next((document for document in documents if document.name == hour), None)
        samples = [*(_until(sample.at_us, [this]) if this is not None else ()), sample]
        writes = [DocumentWrite(KIND, hour, None if this is None else this.value, _encode(samples))]
        oldest = _name(sample.at_us - KEPT * HOUR)
        writes += [
            DocumentWrite(KIND, document.name, document.value, None)
            for document in documents
            if not oldest <= document.name <= hour
        ]
        await self._storage.compare_and_set(writes)

    async def read(self, hours: int = KEPT) -> tuple[int, list[Sample]]:
        """Return the engine's time, and the samples of the last hours with the one before, oldest first."""
        now, documents = await self._storage.documents(KIND)
        samples = _until(now, documents)
        before = [sample for sample in samples if sample.at_us <= now - hours * HOUR]
        return now, before[-1:] + samples[len(before) :]


def _busiest(stats: dict[str, QueueStats]) -> dict[str, Counters]:
    busiest = sorted(stats, key=lambda queue: -stats[queue].done)[:MOST_QUEUES]
    return {queue: counters_of(stats[queue]) for queue in sorted(busiest)}


def _name(instant: int) -> str:
    return f"{instant // HOUR:012}"


def _until(now: int, documents: Iterable[Document]) -> list[Sample]:
    return [sample for document in documents for sample in _read(document) if sample.at_us <= now]


def _read(document: Document) -> list[Sample]:
    try:
        return _decode(document.value)
    except UNDECODABLE as error:
        _log.warning("the history of hour %s can't be decoded: %s", document.name, error)
        return []
