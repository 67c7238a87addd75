"""The changeable part of a job, and the functions that change it.

The verbs load a ``Record``, call one of these functions, and save it. Each function takes the next state from
the lifecycle table and sets the fields that belong to it.
"""

from __future__ import annotations

from msgspec import Struct

from dayjob.engines.base import Insertion, Reschedule, RetentionTimes, SettleOp
from dayjob.model.job import (
    CRASHES,
    ERRORS_KEPT,
    FINISHED,
    NO_CLAIM,
    WAITING,
    CancelOutcome,
    DedupUntil,
    Failure,
    Job,
    JobState,
)
from dayjob.model.lifecycle import EXPIRED, UNCONDITIONAL, Transition, counted, next_state
from dayjob.model.limits import Units


class Corrupt(Exception):
    """A part of a stored job can't be decoded. The text names it."""


class Record(Struct, gc=False):
    """The changeable part of a job.

    ``removed``: the job is not kept, so the store deletes it. ``corrupt`` names the values that could not be
    decoded and were replaced. Such a job is quarantined as dead instead of returning to its queue.
    """

    key: bytes
    queue: str
    state: JobState
    priority: int
    attempts: int
    max_attempts: int
    epoch: int
    run_us: int
    claimed_us: int | None = None
    lease_us: int | None = None
    finished_us: int | None = None
    expires_us: int | None = None
    remove_us: int | None = None
    last_error: str | None = None
    errors: tuple[Failure, ...] = ()
    held_key: str | None = None
    dedup_until: DedupUntil = "claimed"
    dedup_global: bool = False
    cancel_requested: bool = False
    worker: str | None = None
    result: bytes | None = None
    progress: tuple[float, str] | None = None
    claim: bytes = NO_CLAIM
    limits: Units = ()
    limited_by: str | None = None
    turn: int = 0
    removed: bool = False
    corrupt: str | None = None

    def expired(self, now: int) -> bool:
        """Return whether ``expires_us`` has passed without a counted run."""
        return self.expires_us is not None and self.expires_us <= now and self.attempts == 0

    @property
    def order(self) -> tuple[int, int, bytes]:
        """The order of jobs in a queue, and in a line."""
        return self.priority, self.turn, self.key

    def to_job(self, facts: Facts) -> Job:
        job = self.to_claimed_job(facts)
        job.finished_us = self.finished_us
        job.errors = self.errors
        job.dedup_key = facts.dedup_key
        job.dedup_until = self.dedup_until
        job.result = self.result
        job.progress = self.progress
        job.limited_by = self.limited_by
        return job

    def to_claimed_job(self, facts: Facts) -> Job:
        """Return the public record as a claim does: with the fields that a run needs.

        The required fields are positional: keywords for them would cost each claim a microsecond.
        """
        return Job(
            self.key, self.queue, facts.task, facts.payload, facts.headers, facts.tenant, self.priority,
            self.state, self.attempts, self.max_attempts, self.epoch, facts.enqueued_us, self.run_us,
            claimed_us=self.claimed_us, lease_us=self.lease_us, expires_us=self.expires_us,
            last_error=self.last_error, cancel_requested=self.cancel_requested, worker=self.worker,
            claim=self.claim, limits=self.limits, turn=self.turn,
        )  # fmt: skip


class Facts(Struct, gc=False):
    """The part of a job that no transition changes. A debounced call replaces it."""

    task: str
    payload: bytes
    headers: dict[str, str]
    tenant: str | None
    enqueued_us: int
    dedup_key: str | None = None


def new_facts(job: Insertion, now: int) -> Facts:
    return Facts(
        task=job.task, payload=job.payload, headers=job.headers, tenant=job.tenant, enqueued_us=now,
        dedup_key=job.dedup_key,
    )  # fmt: skip


def new_record(job: Insertion, run_at: int, expires_at: int | None, now: int) -> Record:
    return Record(
        job.key, job.queue, new_state(job, run_at, now), job.priority, 0, job.max_attempts, 0, run_at,
        expires_us=expires_at, held_key=job.dedup_key, dedup_until=job.dedup_until,
        dedup_global=job.dedup_global, limits=job.limits, limited_by=job.limited_by, turn=job.turn,
    )  # fmt: skip


def claim(record: Record, now: int, lease: int, worker: str | None, key: bytes) -> None:
    _change(record, Transition.CLAIM)
    record.epoch = next_epoch(record.epoch, now)
    record.claim = key
    record.claimed_us = now
    record.lease_us = now + lease
    record.worker = worker
    record.progress = None
    if record.dedup_until == "claimed":
        record.held_key = None


def limit(record: Record, bucket: str) -> None:
    """Let a pending job wait for room in the bucket."""
    _change(record, Transition.LIMIT)
    record.limited_by = bucket


def give_room(record: Record) -> None:
    """Make a limited job pending."""
    _change(record, Transition.ROOM)
    record.limited_by = None


def next_epoch(epoch: int, now: int) -> int:
    """Return the epoch of the next claim. It follows the clock, so it grows also if an id is used again."""
    return now if now > epoch else epoch + 1


def settle(record: Record, op: SettleOp, now: int) -> bool:
    """Apply the settlement if its claim is current. Return whether it was."""
    if not is_current(record, op.claim):
        return False
    transition = op.transition
    if op.progress is not None:
        record.progress = op.progress
    if op.max_attempts is not None:
        record.max_attempts = op.max_attempts
    if transition is Transition.NACK or transition is Transition.DEAD_LETTER:
        _fail(record, op.error or "", now)
    elif transition is Transition.SNOOZE and op.error is not None:
        record.last_error = op.error
    _change(record, transition, op.delay)
    if record.state in FINISHED:
        record.result = op.result
        _finish(record, op.retention, now)
    else:
        if transition is not Transition.RELEASE:
            record.run_us = now + op.delay
        _unclaim(record, now)
    return True


def is_current(record: Record, claim: bytes) -> bool:
    return current(record.state, record.claim, claim)


def current(state: str, claim: bytes, claimed: bytes) -> bool:
    """The fence: return whether ``claimed`` is the claim that the job runs under."""
    return state == JobState.RUNNING and claim == claimed


def end_claim(record: Record, retention: RetentionTimes, now: int, reason: str) -> None:
    """End the claim without its worker: the job gets another run, or is dead if no attempt is left.

    The last attempt of a job that was not suspect does not count: another job may have ended the worker.
    """
    suspect = record.last_error in CRASHES
    _fail(record, reason, now)
    _change(record, Transition.LEASE_EXPIRED, suspect=suspect)
    if record.state is JobState.DEAD:
        _finish(record, retention, now)
    else:
        _unclaim(record, now)


def cancel(record: Record, retention: RetentionTimes, now: int) -> CancelOutcome:
    if record.state is JobState.RUNNING:
        record.cancel_requested = True
        return CancelOutcome.REQUESTED
    if record.state in FINISHED:
        return CancelOutcome.NOT_FOUND
    _change(record, Transition.CANCEL)
    _finish(record, retention, now)
    return CancelOutcome.REMOVED


def expire(record: Record, retention: RetentionTimes, now: int) -> None:
    _change(record, Transition.EXPIRE)
    record.last_error = EXPIRED
    _finish(record, retention, now)


def promote(record: Record, now: int) -> None:
    _change(record, Transition.DUE)
    _unclaim(record, now)


def requeue(record: Record, now: int) -> bool:
    if record.state is not JobState.DEAD:
        return False
    _change(record, Transition.REQUEUE)
    record.run_us = now
    record.last_error = record.finished_us = record.remove_us = record.expires_us = None
    record.cancel_requested = False
    _unclaim(record, now)
    return True


def reschedule(record: Record, change: Reschedule, now: int) -> bool:
    if record.state not in WAITING:
        return False
    if record.state is JobState.LIMITED:
        record.state = JobState.PENDING  # The next claim finds its new place.
    if change.priority is not None:
        record.priority = change.priority
    if change.run_at is not None:
        record.run_us = change.run_at
        record.state = waiting_state(change.run_at, now)
    return True


def quarantine(record: Record, error: str, now: int) -> None:
    """End a record that can't be decoded as dead, in any state, and keep it until it is purged."""
    _fail(record, error, now)
    record.state = JobState.DEAD
    _finish(record, RetentionTimes(dead=None), now)


def corrupt_text(detail: str) -> str:
    return f"corrupt record: {detail}"


def new_state(job: Insertion, run_at: int, now: int) -> JobState:
    return waiting_state(run_at, now) if job.limited_by is None else JobState.LIMITED


def waiting_state(run_at: int, now: int) -> JobState:
    return JobState.SCHEDULED if run_at > now else JobState.PENDING


def _change(record: Record, transition: Transition, delay: int = 0, *, suspect: bool = False) -> None:
    rule = UNCONDITIONAL.get((record.state, transition))
    if rule is not None:
        record.state = rule.target
        record.attempts = counted(rule.attempts, record.attempts)
        return
    change = next_state(
        record.state, transition, attempts=record.attempts, max_attempts=record.max_attempts,
        cancel_requested=record.cancel_requested, delay=delay, suspect=suspect,
    )  # fmt: skip
    assert change is not None, f"{transition} of a {record.state} job"
    record.state = change.state
    record.attempts = change.attempts


def _fail(record: Record, message: str, now: int) -> None:
    record.last_error = message
    failure = Failure(record.attempts, now, record.worker, message)
    record.errors = (*record.errors, failure)[-ERRORS_KEPT:]


def _unclaim(record: Record, now: int) -> None:
    """Clear the claim of a job that waits again. A corrupt record is quarantined instead."""
    record.claimed_us = record.lease_us = record.worker = None
    record.claim = NO_CLAIM
    if record.corrupt is not None:
        quarantine(record, record.corrupt, now)


def _finish(record: Record, retention: RetentionTimes, now: int) -> None:
    kept = retention.of(record.state)
    record.finished_us = now
    record.lease_us = record.held_key = None
    record.remove_us = None if kept is None else now + kept
    record.removed = kept == 0
