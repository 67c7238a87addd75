"""Jobs in memory: the records by id, and the order in which they are claimed, fall due or expire.

The memory engine has all its jobs here. SlateDB has those that wait or run.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial

from dayjob.engines.base import Document, JobQuery
from dayjob.engines.ordered_collections import LazyHeap, SortedKeys, matching
from dayjob.engines.record import Record
from dayjob.engines.store import Deltas, Store
from dayjob.model.job import JobState, QueueStats

Entry = tuple[int, bytes]
"""An entry of a heap: the priority or time of a job, then its id."""


class ActiveJobs:
    """Records by id, and heaps over them. An entry is stale once the record no longer agrees with it."""

    def __init__(self) -> None:
        self.jobs: dict[bytes, Record] = {}
        self.held: dict[tuple[str, str], bytes] = {}
        """The holders of dedup keys, by queue and key."""
        self.due: LazyHeap[Entry] = LazyHeap(self._is_due, self.jobs)
        self.expiries: LazyHeap[Entry] = LazyHeap(self._is_expiry, self.jobs)
        self.leases: LazyHeap[Entry] = LazyHeap(self._is_lease, self.jobs)
        self.cancelling: set[bytes] = set()
        """Includes all running jobs with a cancel request."""
        self._reserved: dict[bytes, int] = {}
        """The ends of the reservations of ids."""
        self._reservations: LazyHeap[Entry] = LazyHeap(self._is_reservation, self._reserved)
        self._keys = SortedKeys(self.jobs.__contains__)
        self._pending: dict[str, LazyHeap[Entry]] = {}
        self._holding: dict[bytes, tuple[str, str]] = {}

    # Which entries are current.

    def _is_pending(self, queue: str, entry: Entry) -> bool:
        """An id may return on another queue, so the queue is compared too."""
        record = self.jobs.get(entry[1])
        return (
            record is not None
            and record.state is JobState.PENDING
            and record.priority == entry[0]
            and record.queue == queue
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
            and (record.state is JobState.PENDING or record.state is JobState.SCHEDULED)
        )

    def _is_lease(self, entry: Entry) -> bool:
        record = self.jobs.get(entry[1])
        return record is not None and record.lease_us == entry[0]

    def _is_reservation(self, entry: Entry) -> bool:
        return self._reserved.get(entry[1]) == entry[0]

    # Changes.

    def conflict(self, key: bytes, queue: str, dedup_key: str | None) -> bytes | None:
        """Return the id of the job that keeps a new job out: one with its id, or the holder of its key."""
        if key in self.jobs:
            return key
        return None if dedup_key is None else self.held.get((queue, dedup_key))

    def reserve(self, key: bytes, until: int) -> int | None:
        """Reserve an id. Return the end of its last reservation, if that is still here."""
        before = self._reserved.get(key)
        self._reserved[key] = until
        self._reservations.push((until, key))
        return before

    def reserved_ids(self, keys: Iterable[bytes], now: int) -> set[bytes]:
        return {key for key in keys if self._reserved.get(key, 0) > now}

    def take_ended(self, limit: int, now: int) -> list[Entry]:
        """Remove up to ``limit`` reservations that have ended. Return their ends and ids."""
        ended: list[Entry] = []
        while len(ended) < limit:
            entry = self._reservations.peek()
            if entry is None or entry[0] > now:
                break
            self._reservations.pop()
            del self._reserved[entry[1]]
            ended.append(entry)
        return ended

    def add(self, record: Record) -> None:
        """Add a job without its dedup key, and without entering it into the heaps."""
        self.jobs[record.key] = record
        self._keys.add(record.key)

    def hold(self, record: Record) -> None:
        """Register the dedup key that the record holds, if it holds one."""
        if record.held_key is not None:
            pair = (record.queue, record.held_key)
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
            self.pending_of(record.queue).push((record.priority, key))
        else:
            self.due.push((record.run_us, key))
        if record.expires_us is not None and record.attempts == 0:
            self.expiries.push((record.expires_us, key))

    def remove(self, key: bytes) -> None:
        del self.jobs[key]
        self._keys.discard()

    # In order.

    def pending_of(self, queue: str) -> LazyHeap[Entry]:
        heap = self._pending.get(queue)
        if heap is None:
            heap = self._pending[queue] = LazyHeap(partial(self._is_pending, queue), self.jobs)
        return heap

    def take_pending(self, queue: str, now: int) -> Iterator[Record]:
        """Take pending jobs out of the queue's heap, one by one. Those that have expired stay in it."""
        heap = self._pending.get(queue)
        if heap is None:
            return
        last: Entry | None = None
        expired: list[Entry] = []
        try:
            while (entry := heap.pop()) is not None:
                if entry != last:
                    last = entry
                    record = self.jobs[entry[1]]
                    if record.expired(now):
                        expired.append(entry)
                    else:
                        yield record
        finally:
            for entry in expired:
                heap.push(entry)

    def take(self, heap: LazyHeap[Entry], limit: int, now: int) -> list[Record]:
        """Take up to ``limit`` jobs whose time has come out of the heap, each once."""
        taken: dict[bytes, Record] = {}
        while len(taken) < limit:
            entry = heap.peek()
            if entry is None or entry[0] > now:
                break
            heap.pop()
            taken[entry[1]] = self.jobs[entry[1]]
        return list(taken.values())

    def next_due(self) -> int | None:
        entries = (self.due.peek(), self.expiries.peek())
        return min((entry[0] for entry in entries if entry is not None), default=None)

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

    def cancel_requests(self) -> list[tuple[bytes, bytes]]:
        found = [record for key in self.cancelling if (record := self.jobs.get(key)) is not None]
        running = [record for record in found if record.cancel_requested and record.state is JobState.RUNNING]
        self.cancelling = {record.key for record in running}
        return [(record.key, record.claim) for record in running]

    def position(self, key: bytes, limit: int) -> int:
        record = self.jobs.get(key)
        if record is None or record.state is not JobState.PENDING:
            return 0
        return self.pending_of(record.queue).count_before((record.priority, key), limit)

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
        heaps: Sequence[LazyHeap[Entry]]
        if state is JobState.PENDING:
            heaps = [heap for name, heap in self._pending.items() if queue in (None, name)]
        elif state is JobState.SCHEDULED:
            heaps = [self.due]
        elif state is JobState.RUNNING:
            heaps = [self.leases]
        else:
            return self.jobs
        return (key for heap in heaps for _, key in heap)


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

    def load(self, keys: Sequence[bytes]) -> Mapping[bytes, Record]:
        return self.active.jobs

    async def cancel_requests(self) -> list[tuple[bytes, bytes]]:
        return self.active.cancel_requests()

    def next_due(self) -> int | None:
        return self.active.next_due()

    def due(self, limit: int, now: int) -> Sequence[Record]:
        return self.active.take(self.active.due, limit, now)

    async def position(self, key: bytes, limit: int) -> int:
        return self.active.position(key, limit)

    def _lacks_dead(self, state: JobState, queue: str | None) -> bool:
        """Return whether the state is dead, and the queue has no dead jobs."""
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
