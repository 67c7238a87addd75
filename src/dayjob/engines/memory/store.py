"""The store of the memory engine: dictionaries, and heaps over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import islice
from threading import Lock

from dayjob.engines import record as records
from dayjob.engines.active_jobs import ActiveStore, Entry
from dayjob.engines.base import MOST_BLOCKED, Death, Insertion, JobQuery, KvWrite, SettleOp
from dayjob.engines.local import Subscribers
from dayjob.engines.ordered_collections import LazyHeap
from dayjob.engines.record import Facts, Record
from dayjob.model.job import FINISHED, Job, JobState, QueueStats
from dayjob.runtime.signals import queue_topic


class MemoryStore(ActiveStore):
    """The storage of one memory URL. A verb holds ``lock`` while it runs."""

    def __init__(self) -> None:
        stats: defaultdict[str, QueueStats] = defaultdict(QueueStats)
        super().__init__(stats, set(), stats.__getitem__)
        self.lock = Lock()
        self.subscribers = Subscribers()
        self._jobs = self.active.jobs
        self._facts: dict[bytes, Facts] = {}
        self._dead: set[bytes] = set()
        self._removals: LazyHeap[Entry] = LazyHeap(self._is_removal, self._jobs)
        self._kv: dict[bytes, bytes] = {}

    def _is_removal(self, entry: Entry) -> bool:
        record = self._jobs.get(entry[1])
        return record is not None and record.remove_us == entry[0]

    # Jobs by id.

    def add(self, job: Insertion, run_at: int, expires_at: int | None, now: int) -> bytes | None:
        active = self.active
        other = active.conflict(job, now)
        if other is None:
            record = records.new_record(job, run_at, expires_at, now)
            self._facts[job.key] = records.new_facts(job, now)
            active.add(record)
            if job.dedup_key is not None:
                active.hold(record)
            active.enter(record)
        return other

    def replace_call(self, key: bytes, job: Insertion) -> int:
        enqueued = self._facts[key].enqueued_us
        self._facts[key] = records.new_facts(job, enqueued)
        return enqueued

    def save(self, record: Record, before: JobState) -> None:
        self.active.release(record)
        if before is JobState.DEAD:
            self._dead.discard(record.key)
        if record.state not in FINISHED:
            self.active.enter(record)
        elif record.removed:
            self.remove(record)
        else:
            if record.state is JobState.DEAD:
                self._dead.add(record.key)
            if record.remove_us is not None:
                self._removals.push((record.remove_us, record.key))

    def save_lease(self, record: Record) -> None:
        self.active.enter(record)

    def save_progress(self, record: Record) -> None:
        """The record is the stored one."""

    def remove(self, record: Record) -> None:
        self.active.remove(record.key)
        self._dead.discard(record.key)
        del self._facts[record.key]

    def tasks(self, records: Sequence[Record]) -> list[str]:
        return [self._facts[record.key].task for record in records]

    # Claims.

    async def claim_from(
        self, queue: str, limit: int, room: int, lease: int, worker: str | None, key: bytes, now: int
    ) -> list[Job]:
        active, facts = self.active, self._facts
        jobs: list[Job] = []
        blocked = 0
        for record in active.take_pending(queue, now):
            if record.limits and not self.limiter(now).admit(record):
                blocked += 1
                if blocked == MOST_BLOCKED:
                    self.topics.add(queue_topic(queue))
                    break
                continue
            records.claim(record, now, lease, worker, key)
            active.release(record)
            active.enter(record)
            job = record.to_claimed_job(facts[record.key])
            if job.headers:
                job.headers = job.headers.copy()
            jobs.append(job)
            room -= len(job.payload)
            if len(jobs) == limit or room <= 0:
                break
        return jobs

    def ack_plain(self, ops: Sequence[SettleOp], now: int) -> list[str | None]:
        """Most settlements are plain acks. They need the fence, and no change of the record."""
        active, queues = self.active, list[str | None]()
        for op in ops:
            record = self._jobs.get(op.key)
            if record is None or not records.current(record.state, record.claim, op.claim):
                queues.append(None)
                continue
            queues.append(record.queue)
            if record.limits:
                self.limiter(now).give_back(record.limits)
            record.held_key = None
            active.release(record)
            active.remove(op.key)
            del self._facts[op.key]
        return queues

    async def claimed_by(self, workers: Sequence[str], limit: int) -> Sequence[Record]:
        return self.active.claimed_by({*workers}, limit)

    # Jobs by time.

    async def expired(self, limit: int, now: int) -> Sequence[Record]:
        return self.active.take(self.active.expiries, limit, now)

    async def lapsed(self, limit: int, now: int) -> Sequence[Record]:
        return self.active.take(self.active.leases, limit, now)

    async def removable(self, limit: int, now: int) -> Sequence[Record]:
        return self.active.take(self._removals, limit, now)

    async def finished_in(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int
    ) -> Sequence[Record]:
        if self._lacks_dead(state, queue):
            return []
        return list(islice(self._find(JobQuery(limit, queue, state, after=after)), limit))

    # Listings.

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        return [self._job(self._jobs[key]) if key in self._jobs else None for key in keys]

    async def find(self, query: JobQuery) -> list[Job]:
        found = (record for record in self._find(query) if query.task in (None, self._facts[record.key].task))
        return [self._job(record) for record in islice(found, query.limit)]

    async def find_dead(self, queue: str | None, before: Death | None, limit: int) -> list[Job]:
        dead = (self._jobs[key] for key in self._dead)
        entries = ((record.finished_us or 0, record.key) for record in dead if queue in (None, record.queue))
        latest = nlargest(limit, (entry for entry in entries if before is None or entry < before))
        return [self._job(self._jobs[key]) for _, key in latest]

    def _find(self, query: JobQuery) -> Iterator[Record]:
        """Dead jobs have their own index: a queue may have few of them among millions of others."""
        return self.active.find(query, self._dead if query.state is JobState.DEAD else None)

    def _job(self, record: Record) -> Job:
        job = record.to_job(self._facts[record.key])
        job.headers = job.headers.copy()
        return job

    # Kv pairs.

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._kv.get(key) for key in keys]

    def kv_write(self, writes: Iterable[KvWrite]) -> None:
        for key, value in writes:
            if value is None:
                self._kv.pop(key, None)
            else:
                self._kv[key] = value
