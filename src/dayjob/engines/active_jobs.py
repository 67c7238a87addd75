"""Jobs in memory: the records by id, and the order in which they are claimed, fall due or expire.

The memory engine has all its jobs here. SlateDB has those that wait or run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial

from dayjob.engines.base import LIMITS, Document, Insertion, JobQuery
from dayjob.engines.limits import BucketState, Place
from dayjob.engines.ordered_collections import LazyHeap, SortedKeys, matching
from dayjob.engines.record import Record
from dayjob.engines.store import Deltas, Store
from dayjob.model.job import WAITING, JobState, QueueStats
from dayjob.model.limits import limit_name

Entry = tuple[int, bytes]
"""An entry of a heap: the time of a job, then its id."""


class ActiveJobs:
    """Records by id, and heaps over them. An entry is stale once the record no longer agrees with it."""

    def __init__(self) -> None:
        self.jobs: dict[bytes, Record] = {}
        self.held: dict[tuple[str, str], bytes] = {}
        """The holders of dedup keys, by scope and key."""
        self.due: LazyHeap[Entry] = LazyHeap(self._is_due, self.jobs)
        self.expiries: LazyHeap[Entry] = LazyHeap(self._is_expiry, self.jobs)
        self.leases: LazyHeap[Entry] = LazyHeap(self._is_lease, self.jobs)
        self.cancelling: set[bytes] = set()
        """Includes all running jobs with a cancel request."""
        self._reserved: dict[bytes, int] = {}
        """The ends of the reservations: of ids, and of keys by the names of their windows."""
        self._window_jobs: dict[bytes, bytes] = {}
        """The jobs of windows."""
        self._reservations: LazyHeap[Entry] = LazyHeap(self._is_reservation, self._reserved)
        self._keys = SortedKeys(self.jobs.__contains__)
        self._pending: dict[str, LazyHeap[Place]] = {}
        self.lines: dict[str, dict[str, LazyHeap[Place]]] = {}
        """The lines of limited jobs, by bucket and queue."""
        self._holding: dict[bytes, tuple[str, str]] = {}

    # Which entries are current.

    def _is_pending(self, queue: str, entry: Place) -> bool:
        """An id may return on another queue, so the queue is compared too."""
        record = self.jobs.get(entry[2])
        return (
            record is not None
            and record.state is JobState.PENDING
            and record.priority == entry[0]
            and record.turn == entry[1]
            and record.queue == queue
        )

    def _is_in_line(self, bucket: str, queue: str, entry: Place) -> bool:
        record = self.jobs.get(entry[2])
        return (
            record is not None
            and record.state is JobState.LIMITED
            and record.limited_by == bucket
            and record.queue == queue
            and record.order == entry
        )

    def _is_due(self, entry: Entry) -> bool:
        record = self.jobs.get(entry[1])
        return record is not None and record.state is JobState.SCHEDULED and record.run_us == entry[0]

    def _is_expiry(self, entry: Entry) -> bool:
        record = self.jobs.get(entry[1])
        return (
            record is not None
            and record.expires_us == entry[0]
            and not record.attempts
            and record.state in WAITING
        )

    def _is_lease(self, entry: Entry) -> bool:
        record = self.jobs.get(entry[1])
        return record is not None and record.lease_us == entry[0]

    def _is_reservation(self, entry: Entry) -> bool:
        return self._reserved.get(entry[1]) == entry[0]

    # Changes.

    def conflict(self, job: Insertion, now: int) -> bytes | None:
        """Return the id that keeps a new job out: its own, that of its key's holder, or of the window."""
        if job.key in self.jobs:
            return job.key
        if job.dedup_key is None:
            return None
        holder = self.holder(job)
        if holder is None and self._window_jobs and self._reserved.get(job.window, 0) > now:
            holder = self._window_jobs[job.window]
        return holder

    def holder(self, job: Insertion) -> bytes | None:
        """Return the id of the job that holds the dedup key of a new one."""
        return None if job.dedup_key is None else self.held.get((job.dedup_scope, job.dedup_key))

    def reserve(self, key: bytes, until: int, job: bytes | None = None) -> int | None:
        """Reserve an id, or a key for the job. Return the end of its last reservation, if still here."""
        before = self._reserved.get(key)
        self._reserved[key] = until
        self._reservations.push((until, key))
        if job is not None:
            self._window_jobs[key] = job
        return before

    def reserved_ids(self, keys: Iterable[bytes], now: int) -> set[bytes]:
        return {key for key in keys if self._reserved.get(key, 0) > now}

    def take_ended(self, limit: int, now: int) -> list[Entry]:
        """Remove up to ``limit`` reservations that have ended. Return their ends and ids."""
        ended = self._reservations.take(limit, now)
        for _, key in ended:
            del self._reserved[key]
            self._window_jobs.pop(key, None)
        return ended

    def add(self, record: Record) -> None:
        """Add a job without its dedup key, and without entering it into the heaps."""
        self.jobs[record.key] = record
        self._keys.add(record.key)

    def hold(self, record: Record) -> None:
        if record.held_key is not None:
            pair = ("" if record.dedup_global else record.queue, record.held_key)
            self.held[pair] = record.key
            self._holding[record.key] = pair

    def release(self, record: Record) -> None:
        """Free the dedup key that the record no longer holds."""
        if self._holding and record.held_key is None:
            pair = self._holding.pop(record.key, None)
            if pair is not None:
                del self.held[pair]

    def enter(self, record: Record) -> None:
        """Enter a job that waits or runs into the heaps that it belongs to."""
        state, key = record.state, record.key
        if state is JobState.RUNNING:
            assert record.lease_us is not None
            self.leases.push((record.lease_us, key))
            if record.cancel_requested:
                self.cancelling.add(key)
            return
        if state is JobState.PENDING:
            self.pending_of(record.queue).push((record.priority, record.turn, key))
        elif state is JobState.LIMITED:
            self.line_of(record).push(record.order)
        else:
            self.due.push((record.run_us, key))
        if record.expires_us is not None and record.attempts == 0:
            self.expiries.push((record.expires_us, key))

    def remove(self, key: bytes) -> None:
        del self.jobs[key]
        self._keys.discard()

    # In order.

    def line_of(self, record: Record) -> LazyHeap[Place]:
        assert record.limited_by is not None
        bucket, queue = record.limited_by, record.queue
        lines = self.lines.setdefault(bucket, {})
        if queue not in lines:
            lines[queue] = LazyHeap(partial(self._is_in_line, bucket, queue), self.jobs)
        return lines[queue]

    def pending_of(self, queue: str) -> LazyHeap[Place]:
        heap = self._pending.get(queue)
        if heap is None:
            heap = self._pending[queue] = LazyHeap(partial(self._is_pending, queue), self.jobs)
        return heap

    def take_pending(self, queue: str, now: int) -> Iterator[Record]:
        """Take pending jobs out of the queue's heap, one by one. Those that have expired stay in it."""
        heap = self._pending.get(queue)
        if heap is None:
            return
        last: Place | None = None
        expired: list[Place] = []
        try:
            while (entry := heap.pop()) is not None:
                if entry != last:
                    last = entry
                    record = self.jobs[entry[2]]
                    if record.expires_us is not None and record.expired(now):
                        expired.append(entry)
                    else:
                        yield record
        finally:
            for entry in expired:
                heap.push(entry)

    def take(self, heap: LazyHeap[Entry], limit: int, now: int) -> list[Record]:
        """Remove up to ``limit`` jobs whose time has come from the heap."""
        return [self.jobs[key] for _, key in heap.take(limit, now)]

    def claimed_by(self, workers: Container[str | None], limit: int) -> list[Record]:
        running = (self.jobs.get(key) for _, key in self.leases)
        claimed = (
            record
            for record in running
            if record is not None and record.state is JobState.RUNNING and record.worker in workers
        )
        found: dict[bytes, Record] = {}
        for record in claimed:
            if len(found) == limit:
                break
            found[record.key] = record
        return list(found.values())

    # Listings.

    def find(self, query: JobQuery, candidates: Iterable[bytes] | None = None) -> Iterator[Record]:
        """Iterate over the records of the queue and state, in id order beyond the cursor.

        ``candidates`` include all that match. By default they come from the heap of the state.
        """
        ordered = self._keys.after(query.after, query.newest_first)
        if query.queue is not None or query.state is not None:
            ordered = matching(
                ordered,
                partial(self._matches, query),
                lambda: self.candidates(query.queue, query.state) if candidates is None else candidates,
                query.newest_first,
            )
        return map(self.jobs.__getitem__, ordered)

    def _matches(self, query: JobQuery, key: bytes) -> bool:
        record = self.jobs.get(key)
        return (
            record is not None and query.queue in (None, record.queue) and query.state in (None, record.state)
        )

    def candidates(self, queue: str | None, state: JobState | None) -> Iterable[bytes]:
        """Return the ids of all jobs of the queue in the state, and maybe of other jobs."""
        if state is JobState.PENDING:
            pending = [heap for name, heap in self._pending.items() if queue in (None, name)]
            return (key for heap in pending for _, _, key in heap)
        if state is JobState.SCHEDULED:
            return (key for _, key in self.due)
        if state is JobState.RUNNING:
            return (key for _, key in self.leases)
        return self.jobs


class ActiveStore(Store):
    """The operations of a store with its active jobs, counters, paused queues and documents in memory.

    ``touch`` returns the counters of a queue, to be changed and stored. A new queue is added.
    """

    def __init__(
        self, stats: Mapping[str, QueueStats], paused: set[str], touch: Callable[[str], QueueStats]
    ) -> None:
        super().__init__()
        self.active = ActiveJobs()
        self._stats = stats
        self._paused = paused
        self._touch = touch
        self._documents: dict[str, dict[str, Document]] = {}
        self._buckets: dict[str, BucketState] = {}
        self._bucket_dues: LazyHeap[tuple[int, str]] = LazyHeap(self._is_bucket_due, self._buckets)
        self.turns: dict[tuple[str, str | None], int] = {}

    # Limits and turns.

    def _is_bucket_due(self, entry: tuple[int, str]) -> bool:
        bucket = self._buckets.get(entry[1])
        return bucket is not None and bucket.due == entry[0]

    def limit_values(self) -> Mapping[str, bytes]:
        return {name: document.value for name, document in self._documents.get(LIMITS, {}).items()}

    def bucket(self, name: str) -> BucketState | None:
        return self._buckets.get(name)

    def save_bucket(self, name: str, state: BucketState | None) -> None:
        if state is None:
            self._buckets.pop(name, None)
            return
        self._buckets[name] = state
        if state.due is not None:
            self._bucket_dues.push((state.due, name))

    def load_buckets(self, buckets: Mapping[str, BucketState]) -> None:
        self._buckets.update(buckets)
        self._bucket_dues.fill((state.due, name) for name, state in buckets.items() if state.due is not None)

    def buckets_due(self, limit: int, now: int) -> Sequence[str]:
        return [name for _, name in self._bucket_dues.take(limit, now)]

    def remove_idle(self, limit: int, now: int) -> None:
        idle = [name for name, bucket in self._buckets.items() if bucket.is_idle(now)]
        for name in idle[:limit]:
            self.save_bucket(name, None)
        past = [pair for pair, turn in self.turns.items() if turn <= self.turns.get((pair[0], None), 0)]
        for pair in [pair for pair in past if pair[1] is not None][:limit]:
            self.remove_turn(*pair)

    def remove_turn(self, queue: str, tenant: str | None) -> None:
        del self.turns[queue, tenant]

    def has_lines(self) -> bool:
        return bool(self.active.lines)

    def line_queues(self, bucket: str) -> Sequence[str]:
        """Empty lines are dropped."""
        all_lines = self.active.lines
        lines = all_lines.get(bucket, {})
        for queue in [queue for queue, heap in lines.items() if heap.peek() is None]:
            del lines[queue]
        if not lines:
            all_lines.pop(bucket, None)
        return list(lines)

    def line(self, bucket: str, queue: str) -> Iterator[Record]:
        heap = self.active.lines.get(bucket, {}).get(queue)
        if heap is None:
            return
        seen: list[Place] = []
        try:
            while (entry := heap.peek()) is not None:
                if not seen or entry != seen[-1]:
                    yield self.active.jobs[entry[2]]
                    seen.append(entry)
                heap.pop()
        finally:
            for entry in seen:
                heap.push(entry)

    def lines_of(self, limit: str) -> Sequence[str]:
        return [name for name in self.active.lines if limit in (name, limit_name(name))]

    async def limit_use(self) -> Mapping[str, tuple[int, int]]:
        use = {name: (bucket.running, 0) for name, bucket in self._buckets.items()}
        for name in list(self.active.lines):
            limited = sum(1 for queue in self.line_queues(name) for _ in self.line(name, queue))
            use[name] = (use.get(name, (0, 0))[0], limited)
        return use

    def backlog(self, queue: str) -> int:
        stats = self._stats.get(queue)
        return 0 if stats is None else stats.pending + stats.limited

    def next_turn(self, queue: str, tenant: str) -> int:
        return max(self.turns.get((queue, None), 1), self.turns.get((queue, tenant), 1))

    def save_turn(self, queue: str, tenant: str | None, turn: int) -> None:
        if turn > self.turns.get((queue, tenant), 0):
            self.turns[queue, tenant] = turn

    # Reservations.

    def reserved_ids(self, keys: Sequence[bytes], now: int) -> Collection[bytes]:
        return self.active.reserved_ids(keys, now)

    def reserve_ids(self, keys: Sequence[bytes], until: int) -> None:
        for key in keys:
            self._reserve(key, until)

    def hold_key(self, job: Insertion, until: int) -> None:
        self._reserve(job.window, until, job.key)

    def _reserve(self, key: bytes, until: int, job: bytes | None = None) -> int | None:
        return self.active.reserve(key, until, job)

    def free_ids(self, limit: int, now: int) -> int:
        return len(self.active.take_ended(limit, now))

    # Jobs.

    def load(self, keys: Sequence[bytes]) -> Mapping[bytes, Record]:
        return self.active.jobs

    async def cancel_requests(self) -> list[tuple[bytes, bytes]]:
        active = self.active
        found = [record for key in active.cancelling if (record := active.jobs.get(key)) is not None]
        running = [record for record in found if record.cancel_requested and record.state is JobState.RUNNING]
        active.cancelling = {record.key for record in running}
        return [(record.key, record.claim) for record in running]

    def next_due(self) -> int | None:
        entries = (self.active.due.peek(), self.active.expiries.peek(), self._bucket_dues.peek())
        return min((entry[0] for entry in entries if entry is not None), default=None)

    def due(self, limit: int, now: int) -> Sequence[Record]:
        return self.active.take(self.active.due, limit, now)

    async def position(self, key: bytes, limit: int) -> int:
        record = self.active.jobs.get(key)
        if record is None or record.state not in (JobState.PENDING, JobState.LIMITED):
            return 0
        limited = record.state is JobState.LIMITED
        heap = self.active.line_of(record) if limited else self.active.pending_of(record.queue)
        return heap.count_before(record.order, limit)

    def _lacks_dead(self, state: JobState, queue: str | None) -> bool:
        if state is not JobState.DEAD or queue is None:
            return False
        return queue not in self._stats or not self._stats[queue].dead

    def count(self, deltas: Deltas) -> None:
        for (queue, state), delta in deltas.items():
            stats, name = self._touch(queue), state._value_
            setattr(stats, name, getattr(stats, name) + delta)

    async def stats(self) -> dict[str, QueueStats]:
        return {queue: copy(stats) for queue, stats in self._stats.items()}

    def pause(self, queue: str, paused: bool) -> None:
        self._touch(queue)
        (self._paused.add if paused else self._paused.discard)(queue)

    def is_paused(self, queue: str) -> bool:
        return queue in self._paused

    async def paused(self) -> set[str]:
        return set(self._paused)

    def load_document(self, kind: str, document: Document) -> None:
        """Documents are few, so all of them are in memory."""
        self._documents.setdefault(kind, {})[document.name] = document

    def document(self, kind: str, name: str) -> bytes | None:
        found = self._documents.get(kind, {}).get(name)
        return None if found is None else found.value

    def write_document(self, kind: str, name: str, value: bytes | None, now: int) -> None:
        if value is None:
            self._documents.get(kind, {}).pop(name, None)
        else:
            self.load_document(kind, Document(name, value, now))

    async def documents(self, kind: str) -> list[Document]:
        found = self._documents.get(kind, {})
        return [found[name] for name in sorted(found)]
