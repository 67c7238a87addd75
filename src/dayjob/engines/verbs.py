"""The verbs of the engine contract, written once over the store port.

Each verb takes the store, the time to act at, and its arguments. It changes records by the rules of
``engines.record``, moves the counters with them, and collects the topics to publish after the commit. The
guarantees of the verbs are in ``engines.base.Engine``.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence

from dayjob.engines import record as records
from dayjob.engines.base import (
    BATCH_BYTES,
    ID_RESERVATION,
    LIMITS,
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
from dayjob.engines.limits import check_room, limit_infos
from dayjob.engines.record import Record
from dayjob.engines.store import Store
from dayjob.model.job import (
    FINISHED,
    LEASE_EXPIRED,
    WAITING,
    WORKER_GONE,
    CancelOutcome,
    EndedJob,
    Enqueued,
    Job,
    JobState,
    id_text,
)
from dayjob.model.lifecycle import CANCELLED, REQUEUED
from dayjob.model.limits import LimitInfo
from dayjob.runtime.signals import CANCEL, DUE, documents_topic, job_topic, queue_topic


class _Changes:
    """The changes of one verb. Records are saved one by one, counters once at the end, by ``finish``."""

    def __init__(self, store: Store, now: int) -> None:
        self._store = store
        self._now = now
        self._deltas: defaultdict[tuple[str, JobState], int] = defaultdict(int)

    def save(self, record: Record, before: JobState) -> None:
        """Save a changed record, move its counter, and collect its topics."""
        queue, state, topics = record.queue, record.state, self._store.topics
        self.drop(queue, before)
        if record.limits:
            self._store.limiter(self._now).left(record, before)
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
        self._store.count(self._deltas)

    def finish(self) -> None:
        """Count the changes and wake the lines of limits."""
        self.count()
        self._store.finish_limits()


# Enqueue, claim, settle.


async def insert(store: Store, now: int, jobs: Sequence[Insertion]) -> list[Enqueued]:
    bounded = [job for job in jobs if job.max_pending is not None]
    if bounded:
        check_room(bounded, now, {job.queue: store.backlog(job.queue) for job in bounded})
    await store.prepare_insert(jobs)
    replies = _insert(store, now, jobs)
    store.finish_limits()
    return replies


def _insert(store: Store, now: int, jobs: Sequence[Insertion]) -> list[Enqueued]:
    times = [job.times(now) for job in jobs]
    reserving = [job.key for job in jobs if job.reserve_id]
    reserved = store.reserved_ids(reserving, now) if reserving else ()
    plain = (
        len(jobs) > 1
        and not reserved
        and not any(job.dedup_key is not None or job.kv or job.limits or job.fair for job in jobs)
    )
    added = plain and store.add_all(jobs, times, now)
    replies: list[Enqueued] = []
    replacing: dict[bytes, tuple[Insertion, int]] = {}
    deltas: defaultdict[tuple[str, JobState], int] = defaultdict(int)
    for job, (run_at, expires_at) in zip(jobs, times, strict=True):
        other = None
        if job.key in reserved:
            other = job.key
        elif not added:
            if job.limits or job.fair:
                _place(store, now, job, run_at)
            other = store.add(job, run_at, expires_at, now)
        if other is not None:
            replies.append(Enqueued(id_text(other), False))
            if job.dedup_latest and other != job.key:
                replacing[other] = (job, run_at)
            continue
        replies.append(Enqueued(id_text(job.key), True))
        deltas[job.queue, records.new_state(job, run_at, now)] += 1
        if job.fair is not None:
            store.save_turn(job.queue, job.fair[0], job.turn + job.fair[1])
        if job.dedup_for is not None:
            store.hold_key(job, now + job.dedup_for)
        if job.kv:
            store.kv_write(job.kv.items())
        if expires_at is not None:
            store.topics.add(DUE)
    for queue, state in deltas:
        if state is not JobState.LIMITED:
            store.topics.add(DUE if state is JobState.SCHEDULED else queue_topic(queue))
    store.count(deltas)
    if reserving:
        new = [job.key for job, reply in zip(jobs, replies, strict=True) if job.reserve_id and reply.created]
        store.reserve_ids(new, now + ID_RESERVATION)
    for holder, (job, run_at) in replacing.items():
        _replace(store, now, holder, job, run_at)
    return replies


def _replace(store: Store, now: int, holder: bytes, job: Insertion, run_at: int) -> None:
    """Give the holder of the job's key, if it waits, the call and the due time of the job."""
    record = store.load([holder]).get(holder)
    if record is None or record.held_key != job.dedup_key or record.state not in WAITING:
        return
    enqueued, before = store.replace_call(holder, job), record.state
    if job.dedup_max_delay is not None:
        run_at = min(run_at, enqueued + job.dedup_max_delay)
    records.reschedule(record, Reschedule(holder, run_at, None), now)
    changes = _Changes(store, now)
    changes.save(record, before)
    changes.count()


def _place(store: Store, now: int, job: Insertion, run_at: int) -> None:
    """Set the turn of a new job, and the line that it joins."""
    if job.fair is not None:
        job.turn = store.next_turn(job.queue, job.fair[0])
    job.limited_by = None
    if job.limits and run_at <= now:
        job.limited_by = store.limiter(now).line_of(job)


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
                turn = max([job.turn for job in jobs])
                if turn:
                    store.save_turn(queue, None, turn)
        replies.append(claimed)
    store.count(deltas)
    store.finish_limits()
    quarantined.extend(store.quarantined)
    store.quarantined.clear()
    return replies


async def settle(
    store: Store, now: int, ops: Sequence[SettleOp], skipped: set[bytes]
) -> list[JobState | None]:
    others = [op for op in ops if not op.plain]
    if not others:
        queues = store.ack_plain(ops, now)
        if queues is not None:
            states = _count_acks(store, ops, queues)
            store.finish_limits()
            return states
    else:
        await store.prepare_finish([op.key for op in others])
        await store.prepare_insert(job for op in others for job in op.insert)
    found = store.load([op.key for op in ops])
    changes = _Changes(store, now)
    states = []
    for op in ops:
        record = found.get(op.key)
        if record is None or not records.settle(record, op, now):
            states.append(None)
            continue
        changes.save(record, JobState.RUNNING)
        if op.charges:
            store.limiter(now).charge(op.charges)
        states.append(record.state)
        if op.insert:
            skipped.update(_insert_some(store, now, op.insert))
        if op.kv:
            store.kv_write(op.kv.items())
    changes.finish()
    return states


def _insert_some(store: Store, now: int, jobs: Sequence[Insertion]) -> list[bytes]:
    """Store jobs. Return the keys of those that were not stored."""
    return [job.key for job, reply in zip(jobs, _insert(store, now, jobs), strict=True) if not reply.created]


def _count_acks(store: Store, ops: Sequence[SettleOp], queues: Sequence[str | None]) -> list[JobState | None]:
    deltas: defaultdict[tuple[str, JobState], int] = defaultdict(int)
    for queue, acks in Counter(queues).items():
        if queue is not None:
            deltas[queue, JobState.RUNNING] -= acks
            deltas[queue, JobState.DONE] += acks
    store.count(deltas)
    done = [op.key for op, queue in zip(ops, queues, strict=True) if queue is not None]
    store.topics.update(map(job_topic, done))
    return [None if queue is None else JobState.DONE for queue in queues]


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
    tasks = _tasks_in(store, WAITING, map(found.get, dict.fromkeys(keys)))
    changes = _Changes(store, now)
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
            ended.append(_ended(record, before, tasks[key], CANCELLED))
        outcomes.append(outcome)
    if CancelOutcome.REQUESTED in outcomes:
        store.topics.add(CANCEL)
    changes.finish()
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
    changes = _Changes(store, now)
    replies: list[bool] = []
    ended: list[EndedJob] = []
    for record in found:
        was_dead = record is not None and records.requeue(record, now)
        if record is not None and was_dead:
            changes.save(record, JobState.DEAD)
            ended.append(_ended(record, JobState.DEAD, tasks[record.key], REQUEUED))
        replies.append(was_dead)
    changes.finish()
    return replies, ended


def _tasks_in(store: Store, states: Collection[JobState], found: Iterable[Record | None]) -> dict[bytes, str]:
    """Return the tasks of the jobs that are in these states."""
    records = [record for record in found if record is not None and record.state in states]
    return dict(zip([record.key for record in records], store.tasks(records), strict=True))


async def reschedule(store: Store, now: int, wanted: Sequence[Reschedule]) -> list[bool]:
    found = store.load([change.key for change in wanted])
    changes = _Changes(store, now)
    replies = []
    for change in wanted:
        record = found.get(change.key)
        before = JobState.PENDING if record is None else record.state
        moved = record is not None and records.reschedule(record, change, now)
        if record is not None and moved:
            changes.save(record, before)
        replies.append(moved)
    changes.finish()
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
    changes = _Changes(store, 0)
    for record in finished:
        changes.remove(record)
    changes.finish()
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
    ended = _end_each(
        store, now, expired, lambda record: records.expire(record, retention.of(record.queue), now)
    )
    due = store.due(limit, now)
    _change_each(store, now, due, lambda record: records.promote(record, now))
    corrupt = [record for record in due if record.state is JobState.DEAD]
    for record, task in zip(corrupt, store.tasks(corrupt), strict=True):
        ended.append(_ended(record, JobState.SCHEDULED, task))
    woken = 0
    if names := store.buckets_due(limit, now):
        woken = store.limiter(now).wake_due(names)
        store.finish_limits()
    return len(due) + woken, ended


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
        store, now, claimed, lambda record: records.end_claim(record, retention.of(record.queue), now, reason)
    )


def quarantine(store: Store, now: int, corrupt: Collection[tuple[Record, str]]) -> None:
    """End jobs that can't be decoded as dead. Each comes with a text that names the defect."""
    texts = {record.key: records.corrupt_text(detail) for record, detail in corrupt}
    store.quarantined += _end_each(
        store,
        now,
        [record for record, _ in corrupt],
        lambda record: records.quarantine(record, texts[record.key], now),
    )


def _end_each(
    store: Store, now: int, changed: Sequence[Record], change: Callable[[Record], None]
) -> list[EndedJob]:
    """Change the jobs without their workers."""
    before, tasks = [record.state for record in changed], store.tasks(changed)
    _change_each(store, now, changed, change)
    return list(map(_ended, changed, before, tasks))


def _ended(record: Record, before: JobState, task: str, reason: str | None = None) -> EndedJob:
    """Return the job as it is reported. Without a reason, it is its error."""
    why = record.last_error or "" if reason is None else reason
    return EndedJob(record.key, record.queue, task, before, record.state, record.attempts, why)


def _change_each(store: Store, now: int, changed: Sequence[Record], change: Callable[[Record], None]) -> None:
    changes = _Changes(store, now)
    for record in changed:
        before = record.state
        change(record)
        changes.save(record, before)
    changes.finish()


async def sweep(store: Store, now: int, limit: int) -> tuple[int, int]:
    store.remove_idle(limit, now)
    return _remove(store, await store.removable(limit, now)), store.free_ids(limit, now)


async def sweep_finished(
    store: Store, now: int, state: JobState, age: int, after: bytes | None, limit: int
) -> tuple[int, bytes | None]:
    examined = await store.finished_in(state, None, after, limit)
    old = [
        record for record in examined if record.finished_us is not None and record.finished_us <= now - age
    ]
    return _remove(store, old), examined[-1].key if len(examined) == limit else None


# Limits.


async def set_limit(store: Store, now: int, name: str, value: bytes | None) -> int:
    store.write_document(LIMITS, name, value, now)
    woken = store.limiter(now).wake_limit(name)
    store.finish_limits()
    return woken


async def limits(store: Store) -> list[LimitInfo]:
    return limit_infos(store.limit_values(), await store.limit_use())


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
    store.finish_limits()
    return True
