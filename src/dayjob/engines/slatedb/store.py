"""The verbs, on the jobs in memory and the rows in the database.

Verbs run one at a time, in the order of their calls. Each reads what it needs from the database first and
changes things then, without a pause: a read that fails leaves nothing half done. What it changes is staged
in the ledger, and durable when the commit that takes it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from itertools import islice
from typing import Any, TypeVar

from dayjob.engines import record as records
from dayjob.engines.base import (
    ClaimRequest,
    DocumentWrite,
    Insertion,
    Progress,
    Renewal,
    Renewed,
    Reschedule,
    RetentionByQueue,
    SettleOp,
)
from dayjob.engines.record import Record
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.bodies import Bodies
from dayjob.engines.slatedb.documents import Documents
from dayjob.engines.slatedb.finished import Archive
from dayjob.engines.slatedb.ledger import Ledger
from dayjob.engines.slatedb.live import Live
from dayjob.engines.slatedb.values import Claimed, Corrupt
from dayjob.errors import EngineUnavailable
from dayjob.model.job import CancelOutcome, Enqueued, Job, JobState, QueueStats, id_text
from dayjob.model.lifecycle import LEASE_EXPIRED, WORKER_GONE
from dayjob.runtime.signals import CANCEL, DUE, job_topic, queue_topic

Key = TypeVar("Key")

REMEMBERED = 100_000
"""How many answers that nobody got are kept."""


class Store:
    """All that one database holds."""

    def __init__(self, ledger: Ledger, session: int) -> None:
        self.ledger = ledger
        self.live = Live()
        self.archive = Archive(ledger)
        self.bodies = Bodies(ledger, self.live.jobs.__contains__)
        self.documents = Documents(ledger)
        self.orphans: list[tuple[bytes, int]] = []
        """The claims of earlier processes: whoever writes here is the only one, so those are gone."""
        self.lost_answers: dict[tuple[bytes, int], JobState] = {}
        """Settlements that were applied, but whose callers were told that the store is unavailable."""
        self.lost_enqueues: dict[str, None] = {}
        self._session = session
        self._later: list[Callable[[], Awaitable[object]]] = []

    def later(self, work: Callable[[], Awaitable[object]]) -> None:
        """To be done before the next verb."""
        self._later.append(work)

    async def catch_up(self) -> None:
        while self._later:
            await self._later[0]()
            del self._later[0]

    # What a change comes to.

    def _changed(self, record: Record, before: JobState) -> None:
        """Store what a record became, put it where it now belongs, and note who may want to know."""
        ledger, live, key = self.ledger, self.live, record.key
        ledger.move(before, record)
        live.let_go(record)
        if before is JobState.RUNNING and record.state is not JobState.RUNNING:
            self._end_claim(key)
        if record.state.finished:
            self._finish(record)
            return
        self._save(record)
        live.stand(record)
        if record.state is JobState.PENDING:
            ledger.topics.add(queue_topic(record.queue))
        self._announce_times(record)

    def _announce_times(self, record: Record) -> None:
        expires = record.expires_us is not None and record.attempts == 0
        if record.state is JobState.SCHEDULED or expires:
            self.ledger.topics.add(DUE)

    def _save(self, record: Record) -> None:
        key = record.key
        self.ledger.put(keys.state(key), values.changed_value(record, self.live.sessions.get(key, 0)))
        self.live.changed.add(key)

    def _finish(self, record: Record) -> None:
        """Take a record that has ended out of the live ones; its body must be at hand if it is kept."""
        key, ledger = record.key, self.ledger
        if not record.removed:
            head, body = self._parts(record)
            self.archive.store(record, head, body)
        ledger.delete(keys.job(key))
        if key in self.live.changed:
            ledger.delete(keys.state(key))
        self.live.remove(record)
        self.bodies.drop(key)
        ledger.topics.add(job_topic(key))

    def _parts(self, record: Record) -> tuple[values.Head, bytes]:
        value = self.bodies[record.key]
        try:
            return values.job_parts(value)
        except Corrupt:
            return values.substitute_head(record), value

    def _end_claim(self, key: bytes) -> None:
        number = self.live.end_claim(key)
        if number is not None:
            self.ledger.delete(keys.claim(number))

    # In.

    async def known(self, jobs: Iterable[Insertion]) -> set[bytes]:
        """Those of the new jobs' ids that finished jobs have; to be asked before ``insert``."""
        asked = [job.key for job in jobs if job.key <= self.archive.newest and job.key not in self.live.jobs]
        return set(await self.archive.find(asked)) if asked else set()

    async def insert(self, jobs: Sequence[Insertion], now: int) -> list[Enqueued]:
        known = await self.known(jobs)
        return [self._insert(job, now, known) for job in jobs]

    def _insert(self, job: Insertion, now: int, known: set[bytes]) -> Enqueued:
        key, live, ledger = job.key, self.live, self.ledger
        if key in live.jobs or self.archive.holds(key, known):
            return self._repeated(id_text(key))
        if job.dedup_key is not None:
            holder = live.held.get((job.queue, job.dedup_key))
            if holder is not None:
                return Enqueued(id_text(holder), False)
        if key <= live.newest:
            self._forget_claims(key)
        run_at, expires_at = job.times(now)
        head, value = values.new_job(job, now, run_at, expires_at)
        record = values.new_record(key, head)
        ledger.put(keys.job(key), value)
        live.add(record)
        live.hold(record)
        live.stand(record)
        stats = ledger.touch(job.queue)
        if record.state is JobState.PENDING:
            stats.pending += 1
            self.bodies.keep(key, value)
            ledger.topics.add(queue_topic(job.queue))
        else:
            stats.scheduled += 1
        self._announce_times(record)
        if job.kv:
            self._put(job.kv.items())
        return Enqueued(id_text(key), True)

    def _repeated(self, id: str) -> Enqueued:
        """The id exists. If its enqueue was never answered, this is the repetition, and gets that answer."""
        created = id in self.lost_enqueues
        self.lost_enqueues.pop(id, None)
        return Enqueued(id, created)

    def remember(
        self, settled: Iterable[tuple[tuple[bytes, int], JobState]] = (), enqueued: Iterable[str] = ()
    ) -> None:
        """Keep answers that nobody got, for the repetition; of very many, the latest."""
        self.lost_answers.update(settled)
        self.lost_enqueues.update(dict.fromkeys(enqueued))
        _forget_first(self.lost_answers, len(self.lost_answers) - REMEMBERED)
        _forget_first(self.lost_enqueues, len(self.lost_enqueues) - REMEMBERED)

    def _forget_claims(self, key: bytes) -> None:
        """An id comes back: claims of the job that had it before must not be taken for claims of this one."""
        for number in self.live.mentions(key):
            claim = self.live.claims[number]
            stored = claim.stored
            entries = [entry for entry in stored.entries if entry[0] != key]
            claim.stored = Claimed(stored.session, stored.now, stored.worker, entries)
            self.ledger.put(keys.claim(number), values.claim_value(claim.stored))

    # Out.

    async def claim(
        self, requests: Sequence[ClaimRequest], now: int, *, lenient: bool = False
    ) -> list[list[Job]]:
        """``lenient``: something was changed already, so a read that fails ends the claim, not the verb."""
        answers: list[list[Job]] = []
        for request in requests:
            claimed: list[Job] = []
            for queue, lease in request.queues:
                if queue in self.ledger.paused:
                    continue
                while len(claimed) < request.limit:
                    most = request.limit - len(claimed)
                    picked = self.live.pick(queue, most, now)
                    try:
                        await self.bodies.need([record.key for record in picked])
                    except EngineUnavailable:
                        for record in picked:
                            self.live.stand(record)
                        if not lenient:
                            raise
                        picked = []
                    if not picked:
                        break
                    claimed += self._claim(queue, picked, lease, request.worker, now)
                    lenient = True
            answers.append(claimed)
        return answers

    def _claim(
        self, queue: str, picked: Sequence[Record], lease: int, worker: str | None, now: int
    ) -> list[Job]:
        """Claim the jobs whose bodies can be decoded, and set the others aside as dead."""
        jobs: list[Job] = []
        entries: list[tuple[bytes, int, int]] = []
        live = self.live
        for record in picked:
            key = record.key
            try:
                head, part = values.job_parts(self.bodies[key])
                body = values.body_of(part)
            except Corrupt as error:
                self.quarantine(record, str(error), now)
                continue
            records.claim(record, now, lease, worker)
            live.let_go(record)
            live.leases.push((now + lease, key))
            live.sessions[key] = self._session
            entries.append((key, record.epoch, lease))
            job = Job(
                key, queue, body.task, body.payload, body.headers, body.tenant, record.priority,
                JobState.RUNNING, record.attempts, record.max_attempts, record.epoch, head.enqueued_us,
                record.run_us, now, now + lease, None, record.expires_us, record.last_error,
                cancel_requested=record.cancel_requested, worker=worker,
            )  # fmt: skip
            jobs.append(job)
        if jobs:
            stored = Claimed(self._session, now, worker, entries)
            number = live.open_claim(stored, {entry[0] for entry in entries})
            self.ledger.put(keys.claim(number), values.claim_value(stored))
            stats = self.ledger.touch(queue)
            stats.pending -= len(jobs)
            stats.running += len(jobs)
        return jobs

    def quarantine(self, record: Record, what: str, now: int) -> None:
        """End a job that can't be decoded as dead."""
        before = record.state
        records.quarantine(record, values.corrupt_text(what), now)
        self._changed(record, before)

    async def settle(self, ops: Sequence[SettleOp], now: int) -> list[JobState | None]:
        kept = [op.key for op in ops if not op.plain and self._is_current(op)]
        known: set[bytes] = set()
        if kept:
            await self.bodies.need(kept)
            known = await self.known(job for op in ops for job in op.insert)
        return [self._settle(op, now, known) for op in ops]

    def _is_current(self, op: SettleOp) -> bool:
        record = self.live.jobs.get(op.key)
        return record is not None and records.is_current(record, op.epoch)

    def _settle(self, op: SettleOp, now: int, known: set[bytes]) -> JobState | None:
        record = self.live.jobs.get(op.key)
        if record is None or not records.settle(record, op, now):
            return self.lost_answers.pop((op.key, op.epoch), None)
        self._changed(record, JobState.RUNNING)
        for job in op.insert:
            self._insert(job, now, known)
        if op.kv:
            self._put(op.kv.items())
        return record.state

    def renew(self, renewal: Renewal, now: int) -> Renewed:
        record = self.live.jobs.get(renewal.key)
        if record is None or not records.is_current(record, renewal.epoch):
            return Renewed(None)
        record.lease_us = now + renewal.lease
        self.live.leases.push((record.lease_us, record.key))
        self._save(record)
        return Renewed(record.lease_us, record.cancel_requested)

    def record_progress(self, report: Progress) -> None:
        record = self.live.jobs.get(report.key)
        if record is not None and records.is_current(record, report.epoch):
            record.progress = (report.fraction, report.message)
            self._save(record)

    # From outside.

    async def cancel(
        self, wanted: Sequence[bytes], retention: RetentionByQueue, now: int
    ) -> list[CancelOutcome]:
        await self.bodies.need([key for key in wanted if key in self.live.jobs])
        return [self._cancel(key, retention, now) for key in wanted]

    def _cancel(self, key: bytes, retention: RetentionByQueue, now: int) -> CancelOutcome:
        record = self.live.jobs.get(key)
        if record is None:
            return CancelOutcome.NOT_FOUND
        before = record.state
        outcome = records.cancel(record, retention.of(record.queue), now)
        if outcome is CancelOutcome.REMOVED:
            self._changed(record, before)
        else:
            self.live.flagged.add(key)
            self._save(record)
            self.ledger.topics.add(CANCEL)
        return outcome

    def cancel_requests(self) -> list[tuple[bytes, int]]:
        live = self.live
        flagged = [record for key in live.flagged if (record := live.jobs.get(key)) is not None]
        live.flagged = {record.key for record in flagged if record.cancel_requested}
        return [
            (record.key, record.epoch)
            for record in flagged
            if record.cancel_requested and record.state is JobState.RUNNING
        ]

    async def requeue(self, wanted: Sequence[bytes], now: int) -> list[bool]:
        found = await self.archive.find(wanted)
        return [self._requeue(found.pop(key, None), now) for key in wanted]

    def _requeue(self, found: values.Finished | None, now: int) -> bool:
        if found is None or found.record.state is not JobState.DEAD:
            return False
        self.archive.take(found, JobState.DEAD)
        record = found.record
        records.requeue(record, now)
        record.removed = False
        value = values.job_value(found.head, found.body)
        self.ledger.put(keys.job(record.key), value)
        self.live.add(record)
        self.bodies.keep(record.key, value)
        self.ledger.count(record.queue, record.state, 1)
        self._save(record)
        self.live.stand(record)
        self.ledger.topics.add(queue_topic(record.queue))
        return True

    async def requeue_dead(self, queue: str, limit: int, now: int) -> int:
        return sum(self._requeue(found, now) for found in await self._dead(queue, limit))

    async def purge_dead(self, queue: str | None, limit: int) -> int:
        return self._take(await self._dead(queue, limit))

    async def purge(self, wanted: Sequence[bytes]) -> int:
        found = (await self.archive.find(wanted)).values()
        return self._take([each for each in found if each.record.state is JobState.DEAD])

    def _take(self, dead: Sequence[values.Finished]) -> int:
        for found in dead:
            self.archive.take(found, JobState.DEAD)
        return len(dead)

    async def _dead(self, queue: str | None, limit: int) -> list[values.Finished]:
        stats = self.ledger.stats.get(queue) if queue is not None else None
        if queue is not None and (stats is None or not stats.dead):
            return []
        return await self.archive.list(
            JobState.DEAD, lambda found: queue in (None, found.record.queue), None, limit, queue=queue
        )

    def reschedule(self, change: Reschedule, now: int) -> bool:
        record = self.live.jobs.get(change.key)
        before = record.state if record is not None else JobState.DONE
        if record is None or not records.reschedule(record, change, now):
            return False
        self._changed(record, before)
        return True

    def pause(self, queue: str, paused: bool) -> None:
        self.ledger.pause(queue, paused)
        if not paused:
            self.ledger.topics.add(queue_topic(queue))

    def stats(self, queues: Sequence[str] | None) -> dict[str, QueueStats]:
        found = self.ledger.stats
        wanted = sorted(found if queues is None else {*queues} & {*found})
        return {queue: copy(found[queue]) for queue in wanted}

    def kv_write(self, writes: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in writes:
            self.ledger.staged[keys.kv(key)] = value

    def _put(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        for key, value in items:
            self.ledger.put(keys.kv(key), value)

    async def compare_and_set(
        self, writes: Sequence[DocumentWrite], jobs: Sequence[Insertion], announce: bool, now: int
    ) -> bool:
        lost = self.documents.recall(writes, jobs)
        if not self.documents.as_expected(writes):
            return lost
        known = await self.known(jobs)
        self.documents.write(writes, announce, now)
        for job in jobs:
            self._insert(job, now, known)
        return True

    # Duties.

    async def promote(self, limit: int, retention: RetentionByQueue, now: int) -> tuple[int, int]:
        live = self.live
        expired = live.take(live.expiries, limit, now)
        await self._need(expired)
        for record in expired:
            before = record.state
            records.expire(record, retention.of(record.queue), now)
            self._changed(record, before)
        due = live.take(live.due, limit, now)
        for record in due:
            records.promote(record, now)
            self._changed(record, JobState.SCHEDULED)
        return len(due), len(expired)

    async def _need(self, taken: Sequence[Record]) -> None:
        """Have the bodies of records that were taken out of a line; they go back if that fails."""
        try:
            await self.bodies.need([record.key for record in taken])
        except EngineUnavailable:
            for record in taken:
                self.live.stand(record)
            raise

    def next_due(self, now: int) -> int | None:
        items = (self.live.due.peek(), self.live.expiries.peek())
        firsts = [item[0] for item in items if item is not None]
        return max(min(firsts) - now, 0) if firsts else None

    async def reap(self, limit: int, retention: RetentionByQueue, now: int) -> int:
        live = self.live
        ended = {record.key: record for record in live.take(live.leases, limit, now)}
        orphans, left = self.orphans[: limit - len(ended)], self.orphans[limit - len(ended) :]
        for key, epoch in orphans:
            record = live.jobs.get(key)
            if record is not None and records.is_current(record, epoch):
                ended[key] = record
        await self._need(list(ended.values()))
        self.orphans = left
        self._lapse(ended.values(), retention, now, LEASE_EXPIRED)
        return len(ended)

    async def reclaim(self, workers: Sequence[str], limit: int, retention: RetentionByQueue, now: int) -> int:
        ended = self.live.running_under({*workers}, limit)
        await self.bodies.need([record.key for record in ended])
        self._lapse(ended, retention, now, WORKER_GONE)
        return len(ended)

    def _lapse(self, ended: Iterable[Record], retention: RetentionByQueue, now: int, reason: str) -> None:
        for record in ended:
            records.lapse(record, retention.of(record.queue), now, reason)
            self._changed(record, JobState.RUNNING)

    async def sweep_finished(
        self, state: JobState, age: int, after: bytes | None, limit: int, now: int
    ) -> tuple[int, bytes | None]:
        examined = await self.archive.list(state, _any, after, limit)
        old = [found for found in examined if _finished_by(found.record, now - age)]
        for found in old:
            self.archive.take(found, state)
        return len(old), examined[-1].record.key if len(examined) == limit else None


def _forget_first(kept: dict[Key, Any], many: int) -> None:
    for key in list(islice(kept, max(many, 0))):
        del kept[key]


def _any(found: values.Finished) -> bool:
    return True


def _finished_by(record: Record, time: int) -> bool:
    return record.finished_us is not None and record.finished_us <= time
