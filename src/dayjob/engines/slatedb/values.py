"""The values behind the keys: a version byte, then parts, each but the last with its length before it.

A job is stored in parts so that one damaged part leaves the others readable: the ``Head`` has what the
queue needs to know of it, the ``Body`` what running it needs, and ``Changed`` what has happened to it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from dayjob.engines.base import Insertion
from dayjob.engines.record import Record
from dayjob.model.job import DedupUntil, Failure, Job, JobState, QueueStats
from dayjob.runtime.process import Process

VERSION = 1
UNREADABLE = "unreadable"
"""The queue of a job whose own can't be read any more."""

_encode = msgspec.msgpack.Encoder().encode
_STATES = tuple(JobState)
_NUMBERS = {state: number for number, state in enumerate(_STATES)}


class Corrupt(Exception):
    """A value that does not hold what it should; the text says which part."""


class Head(Struct, array_like=True, frozen=True, gc=False):
    """The job as it was enqueued, without what only its run needs."""

    queue: str
    priority: int
    max_attempts: int
    enqueued_us: int
    run_us: int
    scheduled: bool
    expires_us: int | None = None
    dedup_key: str | None = None
    dedup_until: DedupUntil = "claimed"


class Body(Struct, array_like=True, frozen=True, gc=False):
    """What a run needs."""

    payload: bytes
    task: str = ""
    headers: dict[str, str] = {}
    tenant: str | None = None


class Changed(Struct, array_like=True, frozen=True, gc=False):
    """What has changed since the job was enqueued; ``session`` is that of the claim, if there is one."""

    state: int
    priority: int
    attempts: int
    epoch: int
    run_us: int
    session: int = 0
    claimed_us: int | None = None
    lease_us: int | None = None
    finished_us: int | None = None
    expires_us: int | None = None
    remove_us: int | None = None
    last_error: str | None = None
    errors: tuple[Failure, ...] = ()
    held_key: str | None = None
    cancel_requested: bool = False
    worker: str | None = None
    result: bytes | None = None
    progress: tuple[float, str] | None = None


class Claimed(Struct, array_like=True, frozen=True, gc=False):
    """One claim of several jobs: ``(id, epoch, lease)`` of each."""

    session: int
    now: int
    worker: str | None
    entries: list[tuple[bytes, int, int]]


class Queue(Struct, array_like=True, frozen=True, gc=False):
    paused: bool
    stats: tuple[int, int, int, int, int, int]


class Owner(Struct, array_like=True, frozen=True):
    """The process that writes; ``beat_us`` is its last sign of life, repeated each ``interval_us``."""

    session: int
    process: Process
    beat_us: int
    interval_us: int
    closed: bool = False


class Removal(Struct, array_like=True, frozen=True, gc=False):
    state: int
    queue: str
    finished_us: int | None = None


class Noted(Struct, array_like=True, frozen=True, gc=False):
    written_us: int
    value: bytes


_heads = msgspec.msgpack.Decoder(Head)
_decode_head = _heads.decode
_bodies = msgspec.msgpack.Decoder(Body)
_changes = msgspec.msgpack.Decoder(Changed)
_claims = msgspec.msgpack.Decoder(Claimed)
_queues = msgspec.msgpack.Decoder(Queue)
_owners = msgspec.msgpack.Decoder(Owner)
_removals = msgspec.msgpack.Decoder(Removal)
_notes = msgspec.msgpack.Decoder(Noted)

Part = TypeVar("Part")


def _join(*parts: bytes) -> bytes:
    *measured, last = parts
    return b"".join([b"\x01", *(len(part).to_bytes(4, "big") + part for part in measured), last])


def _split(value: bytes, count: int) -> list[bytes]:
    if value[:1] != b"\x01":
        raise Corrupt(f"it begins with {value[:1]!r}, not with the version {VERSION}")
    parts, start = [], 1
    for _ in range(count - 1):
        end = start + 4 + int.from_bytes(value[start : start + 4], "big")
        if end > len(value):
            raise Corrupt("it is cut short")
        parts.append(value[start + 4 : end])
        start = end
    return [*parts, value[start:]]


def _read(decoder: msgspec.msgpack.Decoder[Part], part: bytes, name: str) -> Part:
    try:
        return decoder.decode(part)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corrupt(f"the {name} can't be decoded ({error})") from None


# A job that waits or runs.


def new_job(job: Insertion, now: int, run_at: int, expires_at: int | None) -> tuple[Head, bytes]:
    """The head of a new job, and the whole of its value."""
    head = Head(
        job.queue, job.priority, job.max_attempts, now, run_at, run_at > now, expires_at, job.dedup_key,
        job.dedup_until,
    )  # fmt: skip
    body = Body(job.payload, job.task, job.headers, job.tenant)
    return head, _join(_encode(head), _encode(body))


def job_value(head: Head, body: bytes) -> bytes:
    return _join(_encode(head), body)


def job_head(value: bytes) -> Head:
    """The head alone: opening reads a million of them."""
    try:
        if value[0] == VERSION:
            return _decode_head(value[5 : 5 + int.from_bytes(value[1:5], "big")])
    except (IndexError, msgspec.MsgspecError, ValueError):
        pass
    return _read(_heads, _split(value, 2)[0], "head")


def job_parts(value: bytes) -> tuple[Head, bytes]:
    """The head, and the body still encoded."""
    head, body = _split(value, 2)
    return _read(_heads, head, "head"), body


def body_of(part: bytes) -> Body:
    return _read(_bodies, part, "body")


def new_record(key: bytes, head: Head) -> Record:
    """The job as it was enqueued."""
    return Record(
        key, head.queue, JobState.SCHEDULED if head.scheduled else JobState.PENDING, head.priority, 0,
        head.max_attempts, 0, head.run_us, expires_us=head.expires_us, held_key=head.dedup_key,
        dedup_until=head.dedup_until,
    )  # fmt: skip


def substitute_head(record: Record) -> Head:
    """What is known of a job whose own head can't be read."""
    return Head(
        record.queue, record.priority, record.max_attempts, record.run_us, record.run_us, False,
        record.expires_us, record.held_key, record.dedup_until,
    )  # fmt: skip


# What has happened to it.


def changed_value(record: Record, session: int) -> bytes:
    return _join(_changed(record, session))


def _changed(record: Record, session: int) -> bytes:
    return _encode(
        Changed(
            _NUMBERS[record.state], record.priority, record.attempts, record.epoch, record.run_us, session,
            record.claimed_us, record.lease_us, record.finished_us, record.expires_us, record.remove_us,
            record.last_error, record.errors, record.held_key, record.cancel_requested, record.worker,
            record.result, record.progress,
        )
    )  # fmt: skip


def changed(value: bytes) -> Changed:
    return _read(_changes, _split(value, 1)[0], "state")


def apply(record: Record, change: Changed) -> None:
    """Bring the record to what is stored of it."""
    record.state = _STATES[change.state] if 0 <= change.state < len(_STATES) else JobState.DEAD
    record.priority = change.priority
    record.attempts = change.attempts
    record.epoch = change.epoch
    record.run_us = change.run_us
    record.claimed_us = change.claimed_us
    record.lease_us = change.lease_us
    record.finished_us = change.finished_us
    record.expires_us = change.expires_us
    record.remove_us = change.remove_us
    record.last_error = change.last_error
    record.errors = change.errors
    record.held_key = change.held_key
    record.cancel_requested = change.cancel_requested
    record.worker = change.worker
    record.result = change.result
    record.progress = change.progress


# A finished job.


def finished_value(record: Record, head: Head, body: bytes) -> bytes:
    return _join(_encode(head), _changed(record, 0), body)


class Finished(Struct, gc=False):
    """A finished job as it is stored; ``amiss`` says what of it could not be read."""

    record: Record
    head: Head
    body: bytes
    amiss: str | None = None

    def to_job(self) -> Job:
        return full_job(self.record, self.head, self.body, self.amiss)


def finished(key: bytes, state: JobState, value: bytes) -> Finished:
    """Lenient: what can't be read is replaced, and said to be amiss."""
    try:
        head_part, change_part, body = _split(value, 3)
        head = _read(_heads, head_part, "head")
        record = new_record(key, head)
        apply(record, _read(_changes, change_part, "state"))
    except Corrupt as error:
        head = Head(UNREADABLE, 0, 1, 0, 0, False)
        record = new_record(key, head)
        record.state = state
        return Finished(record, head, value, str(error))
    record.state = state
    return Finished(record, head, body)


def full_job(record: Record, head: Head, part: bytes, amiss: str | None = None) -> Job:
    """The public record; what of the body can't be decoded is left out, and ``last_error`` says so."""
    try:
        body = body_of(part)
    except Corrupt as error:
        body = Body(b"")
        amiss = amiss or str(error)
    job = record.to_job(
        body.task, body.payload, body.headers, body.tenant, head.enqueued_us, head.dedup_key
    )  # fmt: skip
    if amiss is not None and job.last_error is None:
        job.last_error = corrupt_text(amiss)
    return job


def corrupt_text(what: str) -> str:
    return f"corrupt record: {what}"


# The rest.


def claim_value(claimed: Claimed) -> bytes:
    return _join(_encode(claimed))


def claimed(value: bytes) -> Claimed:
    return _read(_claims, _split(value, 1)[0], "claim")


def queue_value(stats: QueueStats, paused: bool) -> bytes:
    counts = (stats.pending, stats.scheduled, stats.running, stats.done, stats.dead, stats.cancelled)
    return _join(_encode(Queue(paused, counts)))


def queue(value: bytes) -> Queue:
    return _read(_queues, _split(value, 1)[0], "queue's counters")


def owner_value(owner: Owner) -> bytes:
    return _join(_encode(owner))


def owner(value: bytes) -> Owner:
    return _read(_owners, _split(value, 1)[0], "owner")


def removal_value(record: Record) -> bytes:
    return _join(_encode(Removal(_NUMBERS[record.state], record.queue, record.finished_us)))


def removal(value: bytes) -> tuple[JobState, str, int | None]:
    """The state, the queue, and when the job ended."""
    found = _read(_removals, _split(value, 1)[0], "time of removal")
    return _STATES[found.state], found.queue, found.finished_us


def note_value(value: bytes, now: int) -> bytes:
    return _join(_encode(Noted(now, value)))


def noted(value: bytes) -> Noted:
    return _read(_notes, _split(value, 1)[0], "note")


def layout_value(version: int) -> bytes:
    return _encode({"layout": version})


def layout(value: bytes) -> Any:
    """The version of the layout; None if it can't be read."""
    try:
        return msgspec.msgpack.decode(value)["layout"]
    except (msgspec.MsgspecError, TypeError, KeyError, ValueError):
        return None
