"""The jobs of a memory engine: dictionaries, and heaps over them.

Plain synchronous code under one lock. Each method is a verb of the engine contract; it notes in
``topics`` what became worth a look, and in that it can serve several brokers on several event loops.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import nlargest
from itertools import islice
from threading import Lock

from msgspec import Struct

from dayjob.engines import record as records
from dayjob.engines.base import (
    ClaimRequest,
    Document,
    DocumentWrite,
    Insertion,
    JobQuery,
    Progress,
    Renewal,
    Renewed,
    Reschedule,
    RetentionByQueue,
    SettleOp,
)
from dayjob.engines.order import Line, SortedKeys, fitting
from dayjob.engines.record import Record
from dayjob.model.job import CancelOutcome, Enqueued, Job, JobState, QueueStats, id_text
from dayjob.model.lifecycle import WORKER_GONE
from dayjob.runtime.signals import CANCEL, DUE, Signals, Topic, documents_topic, job_topic, queue_topic

Place = tuple[int, bytes]
"""Where a job stands in a line: its priority or time, then its id."""


class Entry(Struct, gc=False):
    """A job: what never changes, and what does."""

    facts: Insertion
    enqueued_us: int
    record: Record

    def to_job(self) -> Job:
        facts = self.facts
        return self.record.to_job(
            facts.task, facts.payload, facts.headers.copy(), facts.tenant, self.enqueued_us, facts.dedup_key
        )


class Store:
    """All that one memory URL holds."""

    def __init__(self) -> None:
        self.jobs: dict[bytes, Entry] = {}
        self.held: dict[tuple[str, str], bytes] = {}
        self.kv: dict[bytes, bytes] = {}
        self.stats: defaultdict[str, QueueStats] = defaultdict(QueueStats)
        self.paused: set[str] = set()
        self._notes: dict[tuple[str, str], Document] = {}
        self._keys = SortedKeys(self.jobs.__contains__)
        self._pending: dict[str, Line[Place]] = {}
        self._due: Line[Place] = Line(self._is_due, self.jobs)
        self._expiries: Line[Place] = Line(self._is_expiry, self.jobs)
        self._leases: Line[Place] = Line(self._is_lease, self.jobs)
        self._removals: Line[Place] = Line(self._is_removal, self.jobs)
        self._flagged: set[bytes] = set()
        self._dead: set[bytes] = set()
        self._lock = Lock()
        self._topics: set[Topic] = set()
        self._audience: dict[Signals, asyncio.AbstractEventLoop] = {}

    # Who is told.

    def join(self, signals: Signals, loop: asyncio.AbstractEventLoop) -> None:
        self._audience[signals] = loop

    def leave(self, signals: Signals) -> None:
        self._audience.pop(signals, None)

    @contextmanager
    def commit(self, caller: Signals) -> Iterator[Store]:
        """One verb: alone in the store, and announced after it."""
        with self._lock:
            yield self
            topics, self._topics = self._topics, set()
            audience = list(self._audience.items())
        if topics:
            for signals, loop in audience:
                if signals is caller:
                    signals.publish(topics)
                elif not loop.is_closed():
                    loop.call_soon_threadsafe(signals.publish, topics)

    # Which entries of the lines still hold.

    def _is_pending(self, queue: str, item: Place) -> bool:
        """An id may come back on another queue, so the queue counts."""
        entry = self.jobs.get(item[1])
        if entry is None:
            return False
        record = entry.record
        return record.claimable and record.priority == item[0] and record.queue == queue

    def _is_due(self, item: Place) -> bool:
        entry = self.jobs.get(item[1])
        return (
            entry is not None and entry.record.state is JobState.SCHEDULED and entry.record.run_us == item[0]
        )

    def _is_expiry(self, item: Place) -> bool:
        entry = self.jobs.get(item[1])
        if entry is None or entry.record.expires_us != item[0] or entry.record.attempts:
            return False
        return entry.record.state in (JobState.PENDING, JobState.SCHEDULED)

    def _is_lease(self, item: Place) -> bool:
        entry = self.jobs.get(item[1])
        return entry is not None and entry.record.lease_us == item[0]

    def _is_removal(self, item: Place) -> bool:
        entry = self.jobs.get(item[1])
        return entry is not None and entry.record.remove_us == item[0]

    def _file(self, entry: Entry, before: JobState | None) -> None:
        """Put a changed record where it now belongs, and note who may want to know.

        It is counted as well, unless ``before`` is None: then the caller has counted it.
        """
        record = entry.record
        state = record.state
        if state is JobState.DEAD:
            self._dead.add(record.key)
        elif before is JobState.DEAD:
            self._dead.discard(record.key)
        if before is not None:
            self._count(before, record)
        held_key = entry.facts.dedup_key
        if held_key is not None and record.held_key is None:
            holding = (record.queue, held_key)
            if self.held.get(holding) == record.key:
                del self.held[holding]
        if state is JobState.PENDING:
            line = self._pending.get(record.queue)
            if line is None:
                line = Line(partial(self._is_pending, record.queue), self.jobs)
                self._pending[record.queue] = line
            line.push((record.priority, record.key))
            self._topics.add(queue_topic(record.queue))
        elif state is JobState.SCHEDULED:
            self._due.push((record.run_us, record.key))
            self._topics.add(DUE)
        elif state is JobState.RUNNING:
            assert record.lease_us is not None
            self._leases.push((record.lease_us, record.key))
        else:
            self._topics.add(job_topic(record.key))
            if record.removed:
                self._remove(record.key)
            elif record.remove_us is not None:
                self._removals.push((record.remove_us, record.key))
        if record.expires_us is not None and record.attempts == 0 and not state.finished:
            self._expiries.push((record.expires_us, record.key))
            self._topics.add(DUE)

    def _count(self, before: JobState, record: Record) -> None:
        stats = self.stats[record.queue]
        _add(stats, before, -1)
        if not record.removed or record.state is JobState.DONE:
            _add(stats, record.state, 1)

    def _remove(self, key: bytes) -> None:
        del self.jobs[key]
        self._dead.discard(key)
        self._keys.discard()

    def _drop(self, key: bytes) -> None:
        """Remove a kept job and its count."""
        record = self.jobs[key].record
        _add(self.stats[record.queue], record.state, -1)
        self._remove(key)

    # The verbs.

    def insert(self, jobs: Sequence[Insertion], now: int) -> list[Enqueued]:
        return [self._insert(job, now) for job in jobs]

    def _insert(self, job: Insertion, now: int) -> Enqueued:
        if job.key in self.jobs:
            return Enqueued(id_text(job.key), False)
        if job.dedup_key is not None:
            holder = self.held.setdefault((job.queue, job.dedup_key), job.key)
            if holder != job.key:
                return Enqueued(id_text(holder), False)
        run_at, expires_at = job.times(now)
        record = Record(
            job.key, job.queue, records.waiting_state(run_at, now), job.priority, 0, job.max_attempts, 0,
            run_at, expires_us=expires_at, held_key=job.dedup_key, dedup_until=job.dedup_until,
        )  # fmt: skip
        entry = self.jobs[job.key] = Entry(job, now, record)
        self._keys.add(job.key)
        stats = self.stats[job.queue]
        if record.state is JobState.PENDING:
            stats.pending += 1
        else:
            stats.scheduled += 1
        self._file(entry, None)
        if job.kv:
            self.kv.update(job.kv)
        return Enqueued(id_text(job.key), True)

    def claim(self, request: ClaimRequest, now: int) -> list[Job]:
        claimed: list[Job] = []
        for queue, lease in request.queues:
            if len(claimed) >= request.limit:
                break
            if queue not in self.paused and queue in self._pending:
                claimed += self._claim_from(queue, request.limit - len(claimed), lease, request.worker, now)
        return claimed

    def _claim_from(self, queue: str, limit: int, lease: int, worker: str | None, now: int) -> list[Job]:
        line = self._pending[queue]
        claimed: list[Job] = []
        expired: list[Place] = []
        while len(claimed) < limit:
            item = line.pop()
            if item is None:
                break
            entry = self.jobs[item[1]]
            if entry.record.expired(now):
                expired.append(item)
                continue
            records.claim(entry.record, now, lease, worker)
            self._file(entry, None)
            claimed.append(entry.to_job())
        stats = self.stats[queue]
        stats.pending -= len(claimed)
        stats.running += len(claimed)
        for item in expired:
            line.push(item)
        return claimed

    def settle(self, op: SettleOp, now: int) -> JobState | None:
        entry = self.jobs.get(op.key)
        if entry is None or not records.settle(entry.record, op, now):
            return None
        self._file(entry, JobState.RUNNING)
        self.insert(op.insert, now)
        if op.kv:
            self.kv.update(op.kv)
        return entry.record.state

    def renew(self, renewal: Renewal, now: int) -> Renewed:
        entry = self.jobs.get(renewal.key)
        if entry is None or not records.is_current(entry.record, renewal.epoch):
            return Renewed(None)
        entry.record.lease_us = now + renewal.lease
        self._leases.push((entry.record.lease_us, renewal.key))
        return Renewed(entry.record.lease_us, entry.record.cancel_requested)

    def record_progress(self, report: Progress) -> None:
        entry = self.jobs.get(report.key)
        if entry is not None and records.is_current(entry.record, report.epoch):
            entry.record.progress = (report.fraction, report.message)

    def cancel(self, key: bytes, retention: RetentionByQueue, now: int) -> CancelOutcome:
        entry = self.jobs.get(key)
        if entry is None:
            return CancelOutcome.NOT_FOUND
        before = entry.record.state
        outcome = records.cancel(entry.record, retention.of(entry.record.queue), now)
        if outcome is CancelOutcome.REMOVED:
            self._file(entry, before)
        elif outcome is CancelOutcome.REQUESTED:
            self._flagged.add(key)
            self._topics.add(CANCEL)
        return outcome

    def cancel_requests(self) -> list[tuple[bytes, int]]:
        entries = [entry for key in self._flagged if (entry := self.jobs.get(key))]
        running = [entry.record for entry in entries if entry.record.state is JobState.RUNNING]
        self._flagged = {entry.record.key for entry in entries if entry.record.cancel_requested}
        return [(record.key, record.epoch) for record in running if record.cancel_requested]

    def find(self, listing: JobQuery) -> list[Job]:
        queue, state, task = listing.queue, listing.state, listing.task

        def fits(key: bytes) -> bool:
            entry = self.jobs.get(key)
            return (
                entry is not None
                and queue in (None, entry.record.queue)
                and state in (None, entry.record.state)
                and task in (None, entry.facts.task)
            )

        found = self._keys.after(listing.after, listing.newest_first)
        if queue is not None or state is not None:
            found = fitting(found, fits, partial(self._pool, queue, state), listing.newest_first)
        else:
            found = filter(fits, found)
        return [self.jobs[key].to_job() for key in islice(found, listing.limit)]

    def _pool(self, queue: str | None, state: JobState | None) -> Iterable[bytes]:
        """Keys of all jobs of that queue in that state, and maybe of others."""
        lines: Iterable[Line[Place]]
        if state is JobState.PENDING:
            lines = self._pending.values() if queue is None else filter(None, [self._pending.get(queue)])
        elif state is JobState.SCHEDULED:
            lines = [self._due]
        elif state is JobState.RUNNING:
            lines = [self._leases]
        else:
            return self._dead if state is JobState.DEAD else self.jobs
        return (key for line in lines for _, key in line)

    def find_dead(self, queue: str | None, before: Place | None, limit: int) -> list[Job]:
        dead = (self.jobs[key] for key in self._dead)
        places = (
            (entry.record.finished_us or 0, entry.record.key)
            for entry in dead
            if queue in (None, entry.record.queue)
        )
        latest = nlargest(limit, (place for place in places if before is None or place < before))
        return [self.jobs[key].to_job() for _, key in latest]

    def requeue(self, key: bytes, now: int) -> bool:
        entry = self.jobs.get(key)
        if entry is None or not records.requeue(entry.record, now):
            return False
        self._file(entry, JobState.DEAD)
        return True

    def dead(self, queue: str | None, limit: int) -> list[bytes]:
        if queue is not None and not (queue in self.stats and self.stats[queue].dead):
            return []
        return [job.key for job in self.find(JobQuery(limit, queue=queue, state=JobState.DEAD))]

    def requeue_dead(self, queue: str, limit: int, now: int) -> int:
        return sum(self.requeue(key, now) for key in self.dead(queue, limit))

    def purge_dead(self, queue: str | None, limit: int) -> int:
        return self.purge(self.dead(queue, limit))

    def purge(self, keys: Sequence[bytes]) -> int:
        dead = [key for key in dict.fromkeys(keys) if key in self._dead]
        for key in dead:
            self._drop(key)
        return len(dead)

    def reschedule(self, change: Reschedule, now: int) -> bool:
        entry = self.jobs.get(change.key)
        before = entry.record.state if entry is not None else JobState.DONE
        if entry is None or not records.reschedule(entry.record, change, now):
            return False
        self._file(entry, before)
        return True

    def pause(self, queue: str, paused: bool) -> None:
        self.stats[queue]
        if paused:
            self.paused.add(queue)
        else:
            self.paused.discard(queue)
            self._topics.add(queue_topic(queue))

    def promote(self, limit: int, retention: RetentionByQueue, now: int) -> tuple[int, int]:
        expired = self._take(self._expiries, limit, now)
        for entry in expired:
            before = entry.record.state
            records.expire(entry.record, retention.of(entry.record.queue), now)
            self._file(entry, before)
        due = self._take(self._due, limit, now)
        for entry in due:
            records.promote(entry.record, now)
            self._file(entry, JobState.SCHEDULED)
        return len(due), len(expired)

    def next_due(self, now: int) -> int | None:
        firsts = [item[0] for item in (self._due.peek(), self._expiries.peek()) if item is not None]
        return max(min(firsts) - now, 0) if firsts else None

    def reap(self, limit: int, retention: RetentionByQueue, now: int) -> int:
        expired = self._take(self._leases, limit, now)
        for entry in expired:
            records.lapse(entry.record, retention.of(entry.record.queue), now)
            self._file(entry, JobState.RUNNING)
        return len(expired)

    def reclaim(self, workers: set[str], limit: int, retention: RetentionByQueue, now: int) -> int:
        held = (entry for entry in self.jobs.values() if entry.record.worker in workers)
        lost = list(islice((entry for entry in held if entry.record.state is JobState.RUNNING), limit))
        for entry in lost:
            records.lapse(entry.record, retention.of(entry.record.queue), now, WORKER_GONE)
            self._file(entry, JobState.RUNNING)
        return len(lost)

    def sweep(self, limit: int, now: int) -> int:
        over = self._take(self._removals, limit, now)
        for entry in over:
            self._drop(entry.record.key)
        return len(over)

    def sweep_finished(
        self, state: JobState, age: int, after: bytes | None, limit: int, now: int
    ) -> tuple[int, bytes | None]:
        examined = self.find(JobQuery(limit, state=state, after=after))
        old = [job.key for job in examined if job.finished_us is not None and job.finished_us <= now - age]
        for key in old:
            self._drop(key)
        return len(old), examined[-1].key if len(examined) == limit else None

    def position(self, key: bytes, limit: int) -> int:
        entry = self.jobs.get(key)
        if entry is None or entry.record.state is not JobState.PENDING:
            return 0
        place = (entry.record.priority, key)
        return self._pending[entry.record.queue].count_before(place, limit)

    # Notes.

    def documents_of(self, kind: str) -> list[Document]:
        return [self._notes[place] for place in sorted(self._notes) if place[0] == kind]

    def compare_and_set(
        self, writes: Sequence[DocumentWrite], jobs: Sequence[Insertion], announce: bool, now: int
    ) -> bool:
        for write in writes:
            found = self._notes.get((write.kind, write.name))
            if (None if found is None else found.value) != write.expected:
                return False
        for write in writes:
            if write.value is None:
                self._notes.pop((write.kind, write.name), None)
            else:
                self._notes[write.kind, write.name] = Document(write.name, write.value, now)
            if announce:
                self._topics.add(documents_topic(write.kind))
        self.insert(jobs, now)
        return True

    def _take(self, line: Line[Place], limit: int, now: int) -> list[Entry]:
        """Up to ``limit`` entries of the line whose time has come, each once."""
        taken: dict[bytes, Entry] = {}
        while len(taken) < limit:
            item = line.peek()
            if item is None or item[0] > now:
                break
            line.pop()
            taken[item[1]] = self.jobs[item[1]]
        return list(taken.values())


def _add(stats: QueueStats, state: JobState, jobs: int) -> None:
    """``done`` counts successes ever, so it never goes down."""
    name = state._value_
    if jobs > 0 or state is not JobState.DONE:
        setattr(stats, name, getattr(stats, name) + jobs)
