"""The store port over jobs in memory, a write batch and an archive.

Jobs that wait or run are in memory (``ActiveJobs``), finished jobs only in the database (``Archive``).
Changes are staged in the write batch, and durable once the commit with that batch is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from heapq import merge
from itertools import islice

from msgspec.structs import replace

from dayjob.engines import record as records
from dayjob.engines import verbs
from dayjob.engines.active_jobs import ActiveStore
from dayjob.engines.base import MOST_BLOCKED, Death, Insertion, JobQuery, KvWrite, RetentionTimes, SettleOp
from dayjob.engines.limits import BucketState
from dayjob.engines.record import Corrupt, Record
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.archive import Archive
from dayjob.engines.slatedb.keys import FINISHED_STATES
from dayjob.engines.slatedb.open_claims import OpenClaims
from dayjob.engines.slatedb.payload_cache import PayloadCache
from dayjob.engines.slatedb.values import Claimed, Finished
from dayjob.engines.slatedb.write_batch import WriteBatch
from dayjob.errors import EngineUnavailable
from dayjob.model.job import FINISHED, Job, JobState
from dayjob.model.lifecycle import Transition
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.signals import Topic, queue_topic

_LISTED = 500
"""The number of payloads that a listing reads at once."""

_CHUNK = 100
"""The number of payloads that a claim reads at once."""


class SlateStore(ActiveStore):
    """One database. ``session`` is the opening that its claims belong to."""

    def __init__(self, write_batch: WriteBatch, session: int) -> None:
        super().__init__(write_batch.stats, write_batch.paused, write_batch.touch)
        self.write_batch = write_batch
        self.claims = OpenClaims()
        self.archive = Archive(write_batch)
        self.payloads = PayloadCache(write_batch, self.active.jobs.__contains__)
        self.changed: set[bytes] = set()
        """The active jobs with a row for their state."""
        self.newest = b""
        """The largest id that was ever stored. A larger one is certainly new."""
        self.orphans: list[tuple[bytes, bytes]] = []
        """The claims of earlier processes. Only one process can write, so those are gone."""
        self.stored_buckets: set[str] = set()
        """The buckets with a row."""
        self._session = session
        self._later: list[Callable[[], Awaitable[object]]] = []
        self._begin()

    # Between verbs.

    def _begin(self) -> None:
        """Drop the rows that the last verb read."""
        self._clean = True
        self._limiter = None
        self._archived: set[bytes] = set()
        self._finished: dict[bytes, Finished] = {}
        self._replaced: dict[bytes, bytes | None] = {}

    async def prepare(self) -> None:
        """Start the next verb, after the work that was left to do before it."""
        while self._later:
            self._begin()
            await self._later[0]()
            del self._later[0]
        self._begin()

    def take_topics(self) -> set[Topic]:
        topics, self.topics = self.topics, set()
        return topics

    def release_later(self, jobs: Sequence[Job]) -> None:
        """Release claims before the next verb. Their reply was lost, so no caller has them."""
        ops = [SettleOp(job.key, job.claim, Transition.RELEASE, RetentionTimes()) for job in jobs]
        if ops:
            self._later.append(lambda: verbs.settle(self, SYSTEM.now(), ops, set()))

    # New jobs.

    async def prepare_insert(self, jobs: Iterable[Insertion]) -> None:
        active, newest = self.active.jobs, self.archive.newest
        jobs = list(jobs)
        wanted = [job.key for job in jobs if job.key <= newest and job.key not in active]
        self._archived = set(await self.archive.find(wanted)) if wanted else set()
        held = {
            holder for job in jobs if job.dedup_latest and (holder := self.active.holder(job)) is not None
        }
        if held:
            found = await self.write_batch.get_all([keys.job(key) for key in held])
            self._replaced = dict(zip(held, found, strict=True))

    def add(self, job: Insertion, run_at: int, expires_at: int | None, now: int) -> bytes | None:
        key, active = job.key, self.active
        other = active.conflict(job, now)
        if other != key and self.archive.has(key, self._archived):
            other = key
        if other is not None:
            self.write_batch.confirm()
            return other
        if key <= self.newest:
            self._forget_claims(key)
        else:
            self.newest = key
        record = records.new_record(job, run_at, expires_at, now)
        value = values.new_job(values.head_of(record, now), job)
        self.write_batch.put(keys.job(key), value)
        active.add(record)
        if job.dedup_key is not None:
            active.hold(record)
        active.enter(record)
        if record.state is JobState.PENDING:
            self.payloads.keep(key, value)
        self._clean = False
        return None

    def reserved_ids(self, keys: Sequence[bytes], now: int) -> Collection[bytes]:
        reserved = super().reserved_ids(keys, now)
        if reserved:
            self.write_batch.confirm()
        return reserved

    def _reserve(self, key: bytes, until: int, job: bytes | None = None) -> int | None:
        before = super()._reserve(key, until, job)
        if before is not None:
            self.write_batch.delete(keys.reservation(before, key))
        self.write_batch.put(keys.reservation(until, key), job or b"")
        return before

    def replace_call(self, key: bytes, job: Insertion) -> int:
        row = keys.job(key)
        try:
            head = values.job_head(self.write_batch.staged.get(row) or self._replaced.get(key) or b"")
        except Corrupt:
            record = self.active.jobs[key]
            head = values.head_of(record, record.run_us)
        value = values.new_job(head, job)
        self.write_batch.put(row, value)
        self.payloads.drop(key)
        self.payloads.keep(key, value)
        self._clean = False
        return head.enqueued_us

    def free_ids(self, limit: int, now: int) -> int:
        ended = self.active.take_ended(limit, now)
        for until, key in ended:
            self.write_batch.delete(keys.reservation(until, key))
        return len(ended)

    def _forget_claims(self, key: bytes) -> None:
        """Remove a returning id from the stored claims of the job that had it before.

        Such a claim would otherwise apply to the new job after a restart.
        """
        for number in self.claims.take_ended(key):
            claim = self.claims.by_number[number]
            stored = claim.stored
            entries = [entry for entry in stored.entries if entry[0] != key]
            claim.stored = replace(stored, entries=entries)
            self.write_batch.put(keys.claim(number), values.encode(claim.stored))

    # Limits and turns.

    def save_bucket(self, name: str, state: BucketState | None) -> None:
        super().save_bucket(name, state)
        if state is not None and (state.tat or state.due is not None):
            self.write_batch.put(keys.bucket(name), values.encode(values.Bucket(state.tat, state.due)))
            self.stored_buckets.add(name)
        elif name in self.stored_buckets:
            self.write_batch.delete(keys.bucket(name))
            self.stored_buckets.discard(name)
        self._clean = False

    def save_turn(self, queue: str, tenant: str | None, turn: int) -> None:
        super().save_turn(queue, tenant, turn)
        self.write_batch.put(keys.turn(queue, tenant), values.encode(values.Turn(self.turns[queue, tenant])))

    def remove_turn(self, queue: str, tenant: str | None) -> None:
        super().remove_turn(queue, tenant)
        self.write_batch.delete(keys.turn(queue, tenant))

    # Jobs by id.

    async def load_finished(self, keys: Sequence[bytes]) -> Mapping[bytes, Record]:
        return {record.key: record for record in self._keep((await self.archive.find(keys)).values())}

    def _keep(self, finished: Iterable[Finished]) -> list[Record]:
        """Keep the stored jobs for ``save``, and return copies of their records for the verb to change."""
        self._finished = {found.record.key: found for found in finished}
        return [copy(found.record) for found in self._finished.values()]

    def tasks(self, records: Sequence[Record]) -> list[str]:
        """The payloads of active jobs have been read, and finished jobs were loaded for this verb."""
        return [
            self._finished[record.key].task
            if record.state in FINISHED
            else values.task(self.payloads[record.key])
            for record in records
        ]

    async def prepare_finish(self, keys: Sequence[bytes]) -> None:
        await self.payloads.need([key for key in keys if key in self.active.jobs])

    def save(self, record: Record, before: JobState) -> None:
        key = record.key
        if before in FINISHED:
            self._restore(self._finished.pop(key), record)
        self.active.release(record)
        if before is JobState.RUNNING and record.state is not JobState.RUNNING:
            ended = self.claims.end(key)
            if ended is not None:
                self.write_batch.delete(keys.claim(ended))
        if record.state in FINISHED:
            self._finish(record)
        else:
            self._save_state(record)
            self.active.enter(record)

    def _save_state(self, record: Record) -> None:
        key = record.key
        session = self.claims.sessions.get(key, 0)
        self.write_batch.put(keys.state(key), values.changed_value(record, session))
        self.changed.add(key)

    def save_lease(self, record: Record) -> None:
        self.active.enter(record)
        self._save_state(record)

    def save_progress(self, record: Record) -> None:
        self._save_state(record)

    def _restore(self, found: Finished, record: Record) -> None:
        """Move a job from the archive to the active jobs."""
        self.archive.remove(found.record)
        value = values.job_value(found.head, found.body)
        self.write_batch.put(keys.job(record.key), value)
        self.active.add(record)
        self.payloads.keep(record.key, value)

    def _finish(self, record: Record) -> None:
        """Move a job that has ended to the archive, unless it is removed. Its payload has been read."""
        key, batch = record.key, self.write_batch
        if not record.removed:
            value = self.payloads[key]
            try:
                head, body = values.job_parts(value)
            except Corrupt:
                head, body = values.head_of(record, record.run_us), value
            self.archive.add(record, head, body)
        batch.delete(keys.job(key))
        if key in self.changed:
            batch.delete(keys.state(key))
            self.changed.discard(key)
        self.active.remove(key)
        self.payloads.drop(key)

    def remove(self, record: Record) -> None:
        self.archive.remove(record)

    # Claims.

    async def claim_from(
        self, queue: str, limit: int, room: int, lease: int, worker: str | None, key: bytes, now: int
    ) -> list[Job]:
        """A read that fails ends the claim with the jobs so far, if this verb has changed anything."""
        jobs: list[Job] = []
        blocked = 0
        while len(jobs) < limit and room > 0:
            if blocked >= MOST_BLOCKED:
                self.topics.add(queue_topic(queue))
                break
            wanted = min(limit - len(jobs), _CHUNK) if not blocked else _CHUNK
            taken = list(islice(self.active.take_pending(queue, now), wanted))
            try:
                await self._need_payloads(taken)
            except EngineUnavailable:
                if self._clean and not jobs:
                    raise
                break
            if not taken:
                break
            corrupt: list[tuple[Record, str]] = []
            for record in taken:
                if room <= 0:
                    self.active.enter(record)
                    continue
                try:
                    facts = values.facts(self.payloads[record.key])
                except Corrupt as error:
                    corrupt.append((record, str(error)))
                    continue
                if len(jobs) == limit:
                    self.active.enter(record)
                    continue
                if record.limits and not self.limiter(now).admit(record):
                    blocked += 1
                    self._clean = False
                    continue
                records.claim(record, now, lease, worker, key)
                self.active.release(record)
                self.active.enter(record)
                self.claims.sessions[record.key] = self._session
                jobs.append(record.to_claimed_job(facts))
                room -= len(facts.payload)
            if corrupt:
                verbs.quarantine(self, now, corrupt)
                self._clean = False
        if jobs:
            entries = [(job.key, job.epoch, lease) for job in jobs]
            stored = Claimed(self._session, now, worker, entries, key)
            number = self.claims.add(stored, {job.key for job in jobs})
            self.write_batch.put(keys.claim(number), values.encode(stored))
            self._clean = False
        return jobs

    async def _need_payloads(self, taken: Sequence[Record]) -> None:
        """Read the payloads of jobs that were taken out of a heap. They return to it if that fails."""
        try:
            await self.payloads.need([record.key for record in taken])
        except EngineUnavailable:
            for record in taken:
                self.active.enter(record)
            raise

    async def claimed_by(self, workers: Sequence[str], limit: int) -> Sequence[Record]:
        found = self.active.claimed_by({*workers}, limit)
        await self.payloads.need([record.key for record in found])
        return found

    # Jobs by time.

    async def expired(self, limit: int, now: int) -> Sequence[Record]:
        taken = self.active.take(self.active.expiries, limit, now)
        await self._need_payloads(taken)
        return taken

    async def lapsed(self, limit: int, now: int) -> Sequence[Record]:
        ended = {record.key: record for record in self.active.take(self.active.leases, limit, now)}
        orphans, left = self.orphans[: limit - len(ended)], self.orphans[limit - len(ended) :]
        for key, claim in orphans:
            record = self.active.jobs.get(key)
            if record is not None and records.is_current(record, claim):
                ended[key] = record
        lapsed = list(ended.values())
        await self._need_payloads(lapsed)
        self.orphans = left
        return lapsed

    async def removable(self, limit: int, now: int) -> Sequence[Record]:
        return await self.archive.removable(limit, now)

    async def finished_in(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int
    ) -> Sequence[Record]:
        if self._lacks_dead(state, queue):
            return []
        return self._keep(
            await self.archive.find_in(
                state, lambda found: queue in (None, found.record.queue), after, limit, queue=queue
            )
        )

    # Listings.

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        active = [record for key in keys if (record := self.active.jobs.get(key)) is not None]
        jobs = {job.key: job for job in await self._jobs(active)}
        finished = await self.archive.find([key for key in keys if key not in jobs])
        return [
            jobs[key] if key in jobs else finished[key].to_job() if key in finished else None for key in keys
        ]

    async def find(self, query: JobQuery) -> list[Job]:
        queue = query.queue
        if query.limit <= 0 or not (queue in (None, values.UNREADABLE) or queue in self._stats):
            return []
        found: list[list[Job]] = []
        if query.state not in FINISHED_STATES:
            found.append(await self._find_active(query))

        def matches(one: Finished) -> bool:
            return queue in (None, one.record.queue) and query.task in (None, one.task)

        for state in FINISHED_STATES:
            if query.state in (None, state):
                finished = await self.archive.find_in(
                    state, matches, query.after, query.limit, query.newest_first, queue
                )
                found.append([one.to_job() for one in finished])
        merged = merge(*found, key=lambda job: job.key, reverse=query.newest_first)
        return list(islice(merged, query.limit))

    async def find_dead(self, queue: str | None, before: Death | None, limit: int) -> list[Job]:
        return [one.to_job() for one in await self.archive.latest_dead(queue, before, limit)]

    async def _find_active(self, query: JobQuery) -> list[Job]:
        matching = self.active.find(query)
        found: list[Job] = []
        chunk = _LISTED if query.task is not None else query.limit
        while len(found) < query.limit and (some := list(islice(matching, chunk))):
            found += [job for job in await self._jobs(some) if query.task in (None, job.task)]
        return found[: query.limit]

    async def _jobs(self, records: Sequence[Record]) -> list[Job]:
        jobs: list[Job] = []
        for start in range(0, len(records), _LISTED):
            some = records[start : start + _LISTED]
            await self.payloads.need([record.key for record in some])
            for record in some:
                try:
                    head, body = values.job_parts(self.payloads[record.key])
                    jobs.append(values.full_job(record, head, body))
                except Corrupt as error:
                    head = values.head_of(record, record.run_us)
                    jobs.append(values.full_job(record, head, b"", str(error)))
        return jobs

    # Kv pairs and documents.

    async def kv_get(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        return await self.write_batch.get_all([keys.kv(key) for key in wanted])

    def kv_write(self, writes: Iterable[KvWrite]) -> None:
        for key, value in writes:
            self.write_batch.staged[keys.kv(key)] = value

    def write_document(self, kind: str, name: str, value: bytes | None, now: int) -> None:
        row = keys.document(kind, name)
        if value is not None:
            self.write_batch.put(row, values.encode(values.StoredDocument(now, value)))
        elif self.document(kind, name) is not None:
            self.write_batch.delete(row)
        super().write_document(kind, name, value, now)
