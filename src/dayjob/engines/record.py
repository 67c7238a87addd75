"""What changes in a job's life, and the functions that change it.

Engines that run their rules in Python load a ``Record``, call one function, and store what it became;
each function asks the lifecycle table what happens and only fills in the fields that go with it.
"""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct

from dayjob.engines.base import Reschedule, RetentionTimes, SettleOp
from dayjob.model.job import ERRORS_KEPT, FINISHED, CancelOutcome, DedupUntil, Failure, Job, JobState
from dayjob.model.lifecycle import EXPIRED, LEASE_EXPIRED, Transition, next_state


class Record(Struct, gc=False):
    """The changeable part of a job.

    ``removed`` says that it is not kept: the engine deletes it. ``corrupt`` says what the engine could not
    decode and had to replace: such a job is set aside as dead instead of going back to its queue.
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
    cancel_requested: bool = False
    worker: str | None = None
    result: bytes | None = None
    progress: tuple[float, str] | None = None
    removed: bool = False
    corrupt: str | None = None

    @property
    def claimable(self) -> bool:
        return self.state is JobState.PENDING

    def expired(self, now: int) -> bool:
        """Whether the job's time to start has passed without a run that counts."""
        return self.expires_us is not None and self.expires_us <= now and self.attempts == 0

    def to_job(
        self,
        task: str,
        payload: bytes,
        headers: dict[str, str],
        tenant: str | None,
        enqueued_us: int,
        dedup_key: str | None,
    ) -> Job:
        """The public record."""
        return Job(
            self.key, self.queue, task, payload, headers, tenant, self.priority, self.state, self.attempts,
            self.max_attempts, self.epoch, enqueued_us, self.run_us, self.claimed_us, self.lease_us,
            self.finished_us, self.expires_us, self.last_error, self.errors, dedup_key, self.dedup_until,
            self.cancel_requested, self.worker, self.result, self.progress,
        )  # fmt: skip


class Tally:
    """How many jobs moved between states, by queue: what the counters of a commit change by."""

    def __init__(self) -> None:
        self.deltas: defaultdict[tuple[str, JobState], int] = defaultdict(int)

    def add(self, queue: str, state: JobState, jobs: int = 1) -> None:
        self.deltas[queue, state] += jobs

    def drop(self, queue: str, state: JobState) -> None:
        """``done`` counts successes ever, so it never goes down."""
        if state is not JobState.DONE:
            self.deltas[queue, state] -= 1

    def move(self, before: JobState, record: Record) -> None:
        self.drop(record.queue, before)
        if not record.removed or record.state is JobState.DONE:
            self.add(record.queue, record.state)


def claim(record: Record, now: int, lease: int, worker: str | None) -> None:
    _change(record, Transition.CLAIM)
    record.epoch += 1
    record.claimed_us = now
    record.lease_us = now + lease
    record.worker = worker
    record.progress = None
    if record.dedup_until == "claimed":
        record.held_key = None


def settle(record: Record, op: SettleOp, now: int) -> bool:
    """Apply the verdict if its claim is current: the fence that every settlement passes."""
    if not is_current(record, op.epoch):
        return False
    event = op.transition
    if op.progress is not None:
        record.progress = op.progress
    if event is Transition.NACK or event is Transition.DEAD_LETTER:
        _fail(record, op.error or "", now)
    elif event is Transition.SNOOZE and op.error is not None:
        record.last_error = op.error
    _change(record, event, op.delay)
    if record.state in FINISHED:
        record.result = op.result
        _finish(record, op.retention, now)
    else:
        if event is not Transition.RELEASE:
            record.run_us = now + op.delay
        _wait_again(record, now)
    return True


def is_current(record: Record, epoch: int) -> bool:
    return current(record.state, record.epoch, epoch)


def current(state: str, epoch: int, claimed: int) -> bool:
    """The fence: whether a claim with epoch ``claimed`` is the one that a job is running under."""
    return state == JobState.RUNNING and epoch == claimed


def lapse(record: Record, retention: RetentionTimes, now: int, reason: str = LEASE_EXPIRED) -> None:
    """The lease ran out, or its worker is gone: another run, or dead when none is left."""
    _fail(record, reason, now)
    _change(record, Transition.LEASE_EXPIRED)
    if record.state is JobState.DEAD:
        _finish(record, retention, now)
    else:
        _wait_again(record, now)


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
    _wait_again(record, now)


def requeue(record: Record, now: int) -> bool:
    if record.state is not JobState.DEAD:
        return False
    _change(record, Transition.REQUEUE)
    record.run_us = now
    record.last_error = record.finished_us = record.remove_us = record.expires_us = None
    record.cancel_requested = False
    _wait_again(record, now)
    return True


def reschedule(record: Record, change: Reschedule, now: int) -> bool:
    if record.state is not JobState.PENDING and record.state is not JobState.SCHEDULED:
        return False
    if change.priority is not None:
        record.priority = change.priority
    if change.run_at is not None:
        record.run_us = change.run_at
        record.state = waiting_state(change.run_at, now)
    return True


def quarantine(record: Record, error: str, now: int) -> None:
    """End a record that can't be decoded as dead, whatever it was, and keep it until it is purged."""
    _fail(record, error, now)
    record.state = JobState.DEAD
    _finish(record, RetentionTimes(dead=None), now)


def waiting_state(run_at: int, now: int) -> JobState:
    return JobState.SCHEDULED if run_at > now else JobState.PENDING


def _change(record: Record, event: Transition, delay: int = 0) -> None:
    change = next_state(
        record.state, event, attempts=record.attempts, max_attempts=record.max_attempts,
        cancel_requested=record.cancel_requested, delay=delay,
    )  # fmt: skip
    assert change is not None, f"{event} of a {record.state} job"
    record.state = change.state
    record.attempts = change.attempts


def _fail(record: Record, message: str, now: int) -> None:
    record.last_error = message
    failure = Failure(record.attempts, now, record.worker, message)
    record.errors = (*record.errors, failure)[-ERRORS_KEPT:]


def _wait_again(record: Record, now: int) -> None:
    """The job waits for a claim, with none of its own."""
    record.claimed_us = record.lease_us = record.worker = None
    if record.corrupt is not None:
        quarantine(record, record.corrupt, now)


def _finish(record: Record, retention: RetentionTimes, now: int) -> None:
    kept = retention.of(record.state)
    record.finished_us = now
    record.lease_us = record.held_key = None
    record.remove_us = None if kept is None else now + kept
    record.removed = kept == 0
