"""The verbs of the engine contract, written once over the store port.

Each verb takes the store, the time to act at, and its arguments. It changes records by the rules of
``engines.record``, moves the counters with them, and collects the topics to publish after the commit. The
guarantees of the verbs are in ``engines.base.Engine``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence

from dayjob.engines import record as records
from dayjob.engines.base import (
    BATCH_BYTES,
    ID_RESERVATION,
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
from dayjob.engines.store import Store
from dayjob.model.job import (
    FINISHED,
    LEASE_EXPIRED,
    WORKER_GONE,
    CancelOutcome,
    EndedJob,
    Enqueued,
    Job,
    JobState,
    id_text,
)
from dayjob.model.lifecycle import CANCELLED, REQUEUED
from dayjob.runtime.signals import CANCEL, DUE, documents_topic, job_topic, queue_topic

_WAITING = (JobState.SCHEDULED, JobState.PENDING)


class _Changes:
    """The changes of one verb. Records are saved one by one, counters once at the end, by ``count``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._deltas: defaultdict[tuple[str, JobState], int] = defaultdict(int)

    def save(self, record: Record, before: JobState) -> None:
        """Save a changed record, move its counter, and collect its topics."""
        queue, state, topics = record.queue, record.state, self._store.topics
        self.drop(queue, before)
        if not record.removed or state is JobState.DONE:
            self._deltas[queue, state] += 1
        self._store.save(record, before)
        if state in FINISHED:
            topics.add(job_topic(record.key))
            return
        if state is JobState.PENDING:
            topics.add(queue_topic(queue))
        if state is JobState.SCHEDULED or (record.expires_us is not None and record.attempts == 0):
            topics.add(DUE)

    def remove(self, record: Record) -> None:
        """Delete a finished job, and its count."""
        self.drop(record.queue, record.state)
        self._store.remove(record)

    def drop(self, queue: str, state: JobState) -> None:
        """Decrement the counter of the state. ``done`` counts all successes so far, so it never goes down."""
        if state is not JobState.DONE:
            self._deltas[queue, state] -= 1

    def count(self) -> None:
        if self._deltas:
            self._store.count(self._deltas)


# Enqueue, claim, settle.


async def insert(store: Store, now: int, jobs: Sequence[Insertion]) -> list[Enqueued]:
    await store.prepare_insert(jobs)
    return _insert(store, now, jobs)


def _insert(store: Store, now: int, jobs: Sequence[Insertion]) -> list[Enqueued]:
    times = [job.times(now) for job in jobs]
    reserving = [job.key for job in jobs if job.reserve_id]
    reserved = store.reserved_ids(reserving, now) if reserving else ()
    plain = len(jobs) > 1 and not reserved and not any(job.dedup_key is not None or job.kv for job in jobs)
    added = plain and store.add_all(jobs, times, now)
    replies: list[Enqueued] = []
    deltas: defaultdict[tuple[str, JobState], int] = defaultdict(int)
    for job, (run_at, expires_at) in zip(jobs, times, strict=True):
        other = None
        if job.key in reserved:
            other = job.key
        elif not added:
            other = store.add(job, run_at, expires_at, now)
        if other is not None:
            replies.append(Enqueued(id_text(other), False))
            continue
        replies.append(Enqueued(id_text(job.key), True))
        deltas[job.queue, records.waiting_state(run_at, now)] += 1
        if job.kv:
            store.kv_write(job.kv.items())
        if expires_at is not None:
            store.topics.add(DUE)
    for queue, state in deltas:
        store.topics.add(DUE if state is JobState.SCHEDULED else queue_topic(queue))
    if deltas:
        store.count(deltas)
    if reserving:
        new = [job.key for job, reply in zip(jobs, replies, strict=True) if job.reserve_id and reply.created]
        store.reserve_ids(new, now + ID_RESERVATION)
    return replies


async def claim(
    store: Store, now: int, requests: Sequence[ClaimRequest], key: bytes, quarantined: deque[EndedJob]
) -> list[list[Job]]:
    """A request stops at ``BATCH_BYTES`` of payloads. The bound is per request, so that none ends empty.

    A request without a job waits for the next signal, although the queue has jobs.
    """
    deltas: defaultdict[tuple[str, JobState], int] = defaultdict(int)
    replies: list[list[Job]] = []
    for request in requests:
        claimed: list[Job] = []
        for queue, lease in request.queues:
            limit, room = request.limit, BATCH_BYTES
            if claimed:
                limit -= len(claimed)
                room -= sum([len(job.payload) for job in claimed])
            if limit <= 0 or room <= 0:
                break
            if store.is_paused(queue):
                continue
            jobs = await store.claim_from(queue, limit, room, lease, request.worker, key, now)
            if jobs:
                deltas[queue, JobState.PENDING] -= len(jobs)
                deltas[queue, JobState.RUNNING] += len(jobs)
                claimed += jobs
        replies.append(claimed)
    if deltas:
        store.count(deltas)
    if store.quarantined:
        quarantined.extend(store.quarantined)
        store.quarantined.clear()
    return replies


async def settle(
    store: Store, now: int, ops: Sequence[SettleOp], skipped: set[bytes]
) -> list[JobState | None]:
    others = [op for op in ops if not op.plain]
    if not others:
        queues = store.ack_plain(ops)
        if queues is not None:
            return _count_acks(store, ops, queues)
    else:
        await store.prepare_finish([op.key for op in others])
        await store.prepare_insert(job for op in others for job in op.insert)
    found = store.load([op.key for op in ops])
    changes = _Changes(store)
    states: list[JobState | None] = []
    for op in ops:
        record = found.get(op.key)
        if record is None or not records.settle(record, op, now):
            states.append(None)
            continue
        changes.save(record, JobState.RUNNING)
        states.append(record.state)
        if op.insert:
            skipped.update(_insert_some(store, now, op.insert))
        if op.kv:
            store.kv_write(op.kv.items())
    changes.count()
    return states


def _insert_some(store: Store, now: int, jobs: Sequence[Insertion]) -> list[bytes]:
    """Store jobs. Return the keys of those that were not stored."""
    return [job.key for job, reply in zip(jobs, _insert(store, now, jobs), strict=True) if not reply.created]


def _count_acks(store: Store, ops: Sequence[SettleOp], queues: Sequence[str | None]) -> list[JobState | None]:
    deltas: defaultdict[tuple[str, JobState], int] = defaultdict(int)
    states: list[JobState | None] = []
    for op, queue in zip(ops, queues, strict=True):
        if queue is None:
            states.append(None)
            continue
        deltas[queue, JobState.RUNNING] -= 1
        deltas[queue, JobState.DONE] += 1
        store.topics.add(job_topic(op.key))
        states.append(JobState.DONE)
    if deltas:
        store.count(deltas)
    return states


async def renew(store: Store, now: int, renewals: Sequence[Renewal]) -> list[Renewed]:
    found = store.load([renewal.key for renewal in renewals])
    replies: list[Renewed] = []
    for renewal in renewals:
        record = found.get(renewal.key)
        if record is None or not records.is_current(record, renewal.claim):
            replies.append(Renewed(None))
            continue
        record.lease_us = now + renewal.lease
        store.save_lease(record)
        replies.append(Renewed(record.lease_us, record.cancel_requested))
    return replies


async def record_progress(store: Store, reports: Sequence[Progress]) -> None:
    found = store.load([report.key for report in reports])
    for report in reports:
        record = found.get(report.key)
        if record is not None and records.is_current(record, report.claim):
            record.progress = (report.fraction, report.message)
            store.save_progress(record)


# Operations on chosen jobs.


async def cancel(
    store: Store, now: int, keys: Sequence[bytes], retention: RetentionByQueue
) -> tuple[list[CancelOutcome], list[EndedJob]]:
    """Return the outcomes, and the waiting jobs that ended."""
    await store.prepare_finish(keys)
    found = store.load(keys)
    tasks = _tasks_in(store, _WAITING, map(found.get, dict.fromkeys(keys)))
    changes = _Changes(store)
    outcomes = []
    ended: list[EndedJob] = []
    for key in keys:
        record = found.get(key)
        if record is None:
            outcomes.append(CancelOutcome.NOT_FOUND)
            continue
        before = record.state
        outcome = records.cancel(record, retention.of(record.queue), now)
        if outcome is not CancelOutcome.NOT_FOUND:
            changes.save(record, before)
        if outcome is CancelOutcome.REMOVED:
            ended += _ended([record], [before], [tasks[key]], CANCELLED)
        outcomes.append(outcome)
    if CancelOutcome.REQUESTED in outcomes:
        store.topics.add(CANCEL)
    changes.count()
    return outcomes, ended


async def requeue(store: Store, now: int, keys: Sequence[bytes]) -> tuple[list[bool], list[EndedJob]]:
    found = await store.load_finished(keys)
    return _requeue(store, now, map(found.get, keys))


async def requeue_dead(store: Store, now: int, queue: str, limit: int) -> tuple[list[bool], list[EndedJob]]:
    return _requeue(store, now, await store.finished_in(JobState.DEAD, queue, None, limit))


def _requeue(store: Store, now: int, found: Iterable[Record | None]) -> tuple[list[bool], list[EndedJob]]:
    """Return for each job whether it was dead, and those that were."""
    found = list(found)
    tasks = _tasks_in(store, (JobState.DEAD,), found)
    changes = _Changes(store)
    replies: list[bool] = []
    ended: list[EndedJob] = []
    for record in found:
        was_dead = record is not None and records.requeue(record, now)
        if record is not None and was_dead:
            changes.save(record, JobState.DEAD)
            ended += _ended([record], [JobState.DEAD], [tasks[record.key]], REQUEUED)
        replies.append(was_dead)
    changes.count()
    return replies, ended


def _tasks_in(store: Store, states: Collection[JobState], found: Iterable[Record | None]) -> dict[bytes, str]:
    """Return the tasks of the jobs that are in these states."""
    records = [record for record in found if record is not None and record.state in states]
    return dict(zip([record.key for record in records], store.tasks(records), strict=True))


async def reschedule(store: Store, now: int, wanted: Sequence[Reschedule]) -> list[bool]:
    found = store.load([change.key for change in wanted])
    changes = _Changes(store)
    replies = []
    for change in wanted:
        record = found.get(change.key)
        before = JobState.PENDING if record is None else record.state
        moved = record is not None and records.reschedule(record, change, now)
        if record is not None and moved:
            changes.save(record, before)
        replies.append(moved)
    changes.count()
    return replies


async def purge(store: Store, keys: Sequence[bytes]) -> int:
    found = await store.load_finished(keys)
    chosen = (found.get(key) for key in dict.fromkeys(keys))
    return _remove(
        store, [record for record in chosen if record is not None and record.state is JobState.DEAD]
    )


async def purge_dead(store: Store, queue: str | None, limit: int) -> int:
    return _remove(store, await store.finished_in(JobState.DEAD, queue, None, limit))


def _remove(store: Store, finished: Sequence[Record]) -> int:
    changes = _Changes(store)
    for record in finished:
        changes.remove(record)
    changes.count()
    return len(finished)


async def pause(store: Store, queue: str, paused: bool) -> None:
    store.pause(queue, paused)
    if not paused:
        store.topics.add(queue_topic(queue))


# Duties.


async def promote(
    store: Store, now: int, limit: int, retention: RetentionByQueue
) -> tuple[int, list[EndedJob]]:
    expired = await store.expired(limit, now)
    ended = _end_each(store, expired, lambda record: records.expire(record, retention.of(record.queue), now))
    due = store.due(limit, now)
    _change_each(store, due, lambda record: records.promote(record, now))
    corrupt = [record for record in due if record.state is JobState.DEAD]
    ended += _ended(corrupt, [JobState.SCHEDULED] * len(corrupt), store.tasks(corrupt))
    return len(due), ended


async def next_due(store: Store, now: int) -> int | None:
    time = store.next_due()
    return None if time is None else max(time - now, 0)


async def reap(
    store: Store, now: int, limit: int, retention: RetentionByQueue, expired_by: int | None
) -> list[EndedJob]:
    lapsed = await store.lapsed(limit, now if expired_by is None else min(expired_by, now))
    quarantined, store.quarantined = store.quarantined, []  # When the storage was opened.
    return quarantined + _end_claims(store, now, lapsed, retention, LEASE_EXPIRED)


async def reclaim(
    store: Store, now: int, workers: Sequence[str], limit: int, retention: RetentionByQueue
) -> list[EndedJob]:
    return _end_claims(store, now, await store.claimed_by(workers, limit), retention, WORKER_GONE)


def _end_claims(
    store: Store, now: int, claimed: Sequence[Record], retention: RetentionByQueue, reason: str
) -> list[EndedJob]:
    return _end_each(
        store, claimed, lambda record: records.end_claim(record, retention.of(record.queue), now, reason)
    )


def quarantine(store: Store, now: int, corrupt: Collection[tuple[Record, str]]) -> None:
    """End jobs that can't be decoded as dead. Each comes with a text that names the defect."""
    texts = {record.key: records.corrupt_text(detail) for record, detail in corrupt}
    store.quarantined += _end_each(
        store,
        [record for record, _ in corrupt],
        lambda record: records.quarantine(record, texts[record.key], now),
    )


def _end_each(store: Store, changed: Sequence[Record], change: Callable[[Record], None]) -> list[EndedJob]:
    """Change the jobs without their workers."""
    before, tasks = [record.state for record in changed], store.tasks(changed)
    _change_each(store, changed, change)
    return _ended(changed, before, tasks)


def _ended(
    changed: Sequence[Record], before: Sequence[JobState], tasks: Sequence[str], reason: str | None = None
) -> list[EndedJob]:
    """Return the jobs as they are reported. Without a reason, it is their error."""
    ended = []
    for record, old, task in zip(changed, before, tasks, strict=True):
        why = record.last_error or "" if reason is None else reason
        ended.append(EndedJob(record.key, record.queue, task, old, record.state, record.attempts, why))
    return ended


def _change_each(store: Store, changed: Sequence[Record], change: Callable[[Record], None]) -> None:
    changes = _Changes(store)
    for record in changed:
        before = record.state
        change(record)
        changes.save(record, before)
    changes.count()


async def sweep(store: Store, now: int, limit: int) -> tuple[int, int]:
    return _remove(store, await store.removable(limit, now)), store.free_ids(limit, now)


async def sweep_finished(
    store: Store, now: int, state: JobState, age: int, after: bytes | None, limit: int
) -> tuple[int, bytes | None]:
    examined = await store.finished_in(state, None, after, limit)
    old = [
        record for record in examined if record.finished_us is not None and record.finished_us <= now - age
    ]
    return _remove(store, old), examined[-1].key if len(examined) == limit else None


# Documents.


async def compare_and_set(
    store: Store,
    now: int,
    writes: Sequence[DocumentWrite],
    jobs: Sequence[Insertion],
    announce: bool,
    skipped: set[bytes],
) -> bool:
    if any(store.document(write.kind, write.name) != write.expected for write in writes):
        return False
    await store.prepare_insert(jobs)
    for write in writes:
        store.write_document(write.kind, write.name, write.value, now)
        if announce:
            store.topics.add(documents_topic(write.kind))
    skipped.update(_insert_some(store, now, jobs))
    return True
