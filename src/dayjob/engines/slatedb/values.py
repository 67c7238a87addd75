"""The values of the keys: a version byte, then parts, each but the last after its length.

A job is stored in parts, so that one damaged part leaves the others readable. The ``Head`` has the fields
that the queue needs, the ``Body`` those that a run needs, and ``Changed`` those that change.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from dayjob.engines.base import Insertion
from dayjob.engines.record import Corrupt, Facts, Record, corrupt_text
from dayjob.model.codec import UNDECODABLE
from dayjob.model.job import NO_CLAIM, DedupUntil, Failure, Job, JobState, QueueStats
from dayjob.model.limits import Units
from dayjob.runtime.process import Process

VERSION = 1
UNREADABLE = "unreadable"
"""The queue of a job whose own can't be decoded."""

_encode = msgspec.msgpack.Encoder().encode
_CODES = {
    JobState.SCHEDULED: 0, JobState.PENDING: 1, JobState.RUNNING: 2, JobState.DONE: 3, JobState.DEAD: 4,
    JobState.CANCELLED: 5, JobState.LIMITED: 6,
}  # fmt: skip
_STATES = {code: state for state, code in _CODES.items()}


class Head(Struct, array_like=True, frozen=True, gc=False):
    """The job as it was enqueued, without the fields that only a run needs."""

    queue: str
    priority: int
    max_attempts: int
    enqueued_us: int
    run_us: int
    scheduled: bool
    expires_us: int | None = None
    dedup_key: str | None = None
    dedup_until: DedupUntil = "claimed"
    limits: Units = ()
    limited_by: str | None = None
    turn: int = 0
    dedup_global: bool = False


class Body(Struct, array_like=True, frozen=True, gc=False):
    """The fields that only a run needs."""

    payload: bytes
    task: str = ""
    headers: dict[str, str] = {}
    tenant: str | None = None


class Changed(Struct, array_like=True, frozen=True, gc=False):
    """The fields that change. ``session`` is the one of the claim, if the job runs."""

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
    claim: bytes = NO_CLAIM
    max_attempts: int | None = None
    """None: as in the head."""
    limited_by: str | None = None


class Claimed(Struct, array_like=True, frozen=True, gc=False):
    """One claim of several jobs: its key, and ``(id, epoch, lease)`` of each job."""

    session: int
    now: int
    worker: str | None
    entries: list[tuple[bytes, int, int]]
    key: bytes = NO_CLAIM


class Queue(Struct, array_like=True, frozen=True, gc=False):
    paused: bool
    stats: tuple[int, ...]


class Owner(Struct, array_like=True, frozen=True):
    """The process that writes. ``beat_us`` is its last heartbeat, repeated every ``interval_us``.

    ``tried_store`` names the store that was found to honour conditional writes. ``layout`` is the version of
    the layout that it writes. On a bucket, each commit has this record.
    """

    session: int
    process: Process
    beat_us: int
    interval_us: int
    closed: bool = False
    tried_store: str = ""
    layout: int = 0


class Removal(Struct, array_like=True, frozen=True, gc=False):
    state: int
    queue: str
    finished_us: int | None = None


class StoredDocument(Struct, array_like=True, frozen=True, gc=False):
    written_us: int
    value: bytes


class Bucket(Struct, array_like=True, frozen=True, gc=False):
    """The rate of a bucket. The units of running jobs are counted again by opening."""

    tat: int
    due: int | None = None


class Turn(Struct, array_like=True, frozen=True, gc=False):
    turn: int


UNREADABLE_HEAD = Head(queue=UNREADABLE, priority=0, max_attempts=1, enqueued_us=0, run_us=0, scheduled=False)

_NAMES: dict[type[Struct], str] = {
    Head: "head", Body: "body", Changed: "state", Claimed: "claim", Queue: "queue's counters", Owner: "owner",
    Removal: "removal", StoredDocument: "document", Bucket: "bucket", Turn: "turn",
}  # fmt: skip
"""The parts, as errors name them."""

_decoders: dict[type[Struct], Any] = {kind: msgspec.msgpack.Decoder(kind).decode for kind in _NAMES}
_decode_head = msgspec.msgpack.Decoder(Head).decode

Part = TypeVar("Part", bound=Struct)


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


def _read(kind: type[Part], part: bytes) -> Part:
    try:
        decoded: Part = _decoders[kind](part)
    except UNDECODABLE as error:
        raise Corrupt(f"the {_NAMES[kind]} can't be decoded ({error})") from None
    return decoded


def encode(part: Struct) -> bytes:
    """Return a value of one part."""
    return _join(_encode(part))


def decode(kind: type[Part], value: bytes) -> Part:
    """Return the only part of a value. Raise ``Corrupt`` if it can't be decoded."""
    return _read(kind, _split(value, 1)[0])


# A job that waits or runs.


def head_of(record: Record, enqueued_us: int) -> Head:
    """Return the head of a job that was not claimed yet, or one for a job whose own can't be decoded."""
    return Head(
        queue=record.queue, priority=record.priority, max_attempts=record.max_attempts,
        enqueued_us=enqueued_us, run_us=record.run_us, scheduled=record.state is JobState.SCHEDULED,
        expires_us=record.expires_us, dedup_key=record.held_key, dedup_until=record.dedup_until,
        limits=record.limits, limited_by=record.limited_by, turn=record.turn,
        dedup_global=record.dedup_global,
    )  # fmt: skip


def new_job(head: Head, job: Insertion) -> bytes:
    """Return the value of a job with this head and the call of the new job."""
    body = Body(payload=job.payload, task=job.task, headers=job.headers, tenant=job.tenant)
    return _join(_encode(head), _encode(body))


def job_value(head: Head, body: bytes) -> bytes:
    return _join(_encode(head), body)


def job_head(value: bytes) -> Head:
    """Return the head only. This is fast, since opening reads a million of them."""
    try:
        if value[0] == VERSION:
            return _decode_head(value[5 : 5 + int.from_bytes(value[1:5], "big")])
    except (IndexError, *UNDECODABLE):
        pass
    return _read(Head, _split(value, 2)[0])


def job_parts(value: bytes) -> tuple[Head, bytes]:
    """Return the head, and the body still encoded."""
    head, body = _split(value, 2)
    return _read(Head, head), body


def facts(value: bytes) -> Facts:
    """Return the constant part of a job from its value. Raise ``Corrupt`` if it can't be decoded."""
    head, part = job_parts(value)
    return _facts(head, _read(Body, part))


def task(value: bytes) -> str:
    """Return the task of a job from its value; empty if it can't be decoded."""
    try:
        return _read(Body, _split(value, 2)[1]).task
    except Corrupt:
        return ""


def _facts(head: Head, body: Body) -> Facts:
    return Facts(
        task=body.task, payload=body.payload, headers=body.headers, tenant=body.tenant,
        enqueued_us=head.enqueued_us, dedup_key=head.dedup_key,
    )  # fmt: skip


def new_record(key: bytes, head: Head) -> Record:
    """Return the record of the job as it was enqueued."""
    state = JobState.SCHEDULED if head.scheduled else JobState.PENDING
    if head.limited_by is not None:
        state = JobState.LIMITED
    return Record(
        key, head.queue, state, head.priority, 0, head.max_attempts, 0, head.run_us,
        expires_us=head.expires_us, held_key=head.dedup_key, dedup_until=head.dedup_until, limits=head.limits,
        limited_by=head.limited_by, turn=head.turn, dedup_global=head.dedup_global,
    )  # fmt: skip


# Its state.


def changed_value(record: Record, session: int) -> bytes:
    return _join(_changed(record, session))


def _changed(record: Record, session: int) -> bytes:
    return _encode(
        Changed(
            state=_CODES[record.state], priority=record.priority, attempts=record.attempts,
            epoch=record.epoch, run_us=record.run_us, session=session, claimed_us=record.claimed_us,
            lease_us=record.lease_us, finished_us=record.finished_us, expires_us=record.expires_us,
            remove_us=record.remove_us, last_error=record.last_error, errors=record.errors,
            held_key=record.held_key, cancel_requested=record.cancel_requested, worker=record.worker,
            result=record.result, progress=record.progress, claim=record.claim,
            max_attempts=record.max_attempts, limited_by=record.limited_by,
        )
    )  # fmt: skip


_COPIED = [name for name in Changed.__struct_fields__ if name not in ("state", "session", "max_attempts")]


def apply(record: Record, change: Changed) -> None:
    record.state = _STATES.get(change.state, JobState.DEAD)
    for name in _COPIED:
        setattr(record, name, getattr(change, name))
    if change.max_attempts is not None:
        record.max_attempts = change.max_attempts


# A finished job.


def finished_value(record: Record, head: Head, body: bytes) -> bytes:
    return _join(_encode(head), _changed(record, 0), body)


class Finished(Struct, gc=False):
    """A stored finished job. ``corrupt`` names the part that could not be decoded."""

    record: Record
    head: Head
    body: bytes
    corrupt: str | None = None

    def to_job(self) -> Job:
        return full_job(self.record, self.head, self.body, self.corrupt)

    @property
    def task(self) -> str:
        try:
            return _read(Body, self.body).task
        except Corrupt:
            return ""


def finished(key: bytes, state: JobState, value: bytes) -> Finished:
    """Return the stored job. Parts that can't be decoded are replaced."""
    try:
        head_part, change_part, body = _split(value, 3)
        head = _read(Head, head_part)
        record = new_record(key, head)
        apply(record, _read(Changed, change_part))
    except Corrupt as error:
        head = UNREADABLE_HEAD
        record = new_record(key, head)
        record.state = state
        return Finished(record, head, value, str(error))
    record.state = state
    return Finished(record, head, body)


def full_job(record: Record, head: Head, part: bytes, corrupt: str | None = None) -> Job:
    """Return the public record. A body that can't be decoded is empty, and ``last_error`` names the part."""
    try:
        body = _read(Body, part)
    except Corrupt as error:
        body = Body(b"")
        corrupt = corrupt or str(error)
    job = record.to_job(_facts(head, body))
    if corrupt is not None and job.last_error is None:
        job.last_error = corrupt_text(corrupt)
    return job


# The rest.


def queue_value(stats: QueueStats, paused: bool) -> bytes:
    return encode(Queue(paused, astuple(stats)))


def removal_value(record: Record) -> bytes:
    return encode(Removal(_CODES[record.state], record.queue, record.finished_us))


def removal_record(key: bytes, time: int, value: bytes) -> Record:
    """Return a finished job with the fields that its removal needs."""
    found = decode(Removal, value)
    record = new_record(key, UNREADABLE_HEAD)
    record.queue, record.state = found.queue, _STATES[found.state]
    record.finished_us, record.remove_us = found.finished_us, time
    return record


def layout_value(version: int) -> bytes:
    return _encode({"layout": version})


def layout(value: bytes) -> Any:
    """Return the version of the layout, or None if it can't be decoded."""
    try:
        return msgspec.msgpack.decode(value)["layout"]
    except (*UNDECODABLE, TypeError, KeyError):
        return None
