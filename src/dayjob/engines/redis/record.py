"""Encoding and decoding of records; ``lua/shared/2_records.lua`` has the same layout.

A record is a fixed head, six strings whose sizes are in the head, the flow part of a job with limits or a
turn, and the facts, which never change and which no script reads. A small payload is one of the facts. A
larger one is stored apart, as is the result; the head has its size. ``NONE`` stands for a missing time.

Records, payloads stored apart, results and long errors end with a salt. Lua hashes one byte in
``size // 32 + 1`` of a string, beginning with the last. Without salts, thousands of alike jobs have one hash,
and each string that a script reads or makes is compared with all others of that hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct as Layout
from struct import error as LayoutError
from typing import Any
from zlib import crc32

import msgspec

from dayjob.engines.base import Insertion, RetentionTimes, SettleOp
from dayjob.engines.record import Corrupt, corrupt_text
from dayjob.model.codec import UNDECODABLE
from dayjob.model.job import EndedJob, Failure, Job, JobState
from dayjob.model.limits import Units

NONE = -(2**63)

SMALL = 1024
"""The largest payload that is part of the record, in bytes. Each transition reads and writes it."""

STATE_CODES = {
    JobState.SCHEDULED: 1, JobState.PENDING: 2, JobState.RUNNING: 3, JobState.DONE: 4, JobState.DEAD: 5,
    JobState.CANCELLED: 6, JobState.LIMITED: 0,
}  # fmt: skip
"""The stored codes. Scripts compare them: waiting states are below ``RUNNING``, final ones above."""

STATES = {code: state for state, code in STATE_CODES.items()}

LAST_ID = b"\xff" * 16
"""Precedes the turn of a job, so that the job follows those without a turn."""

TIME = Layout(">q")
RETENTION = Layout(">qqq")
NUMBERS = Layout(">BIIIqq")
_FORMAT = 2
_HEAD = Layout(">BBBIIIQ16sqqqqqqqHHHIIII")
_SIZE = Layout(">I")
_FAILURE = Layout(">IqH")
_FRACTION = Layout(">d")
_FLOW = Layout(">HQB")
_FLOW_ARGUMENT = Layout(">IH")
_DEBOUNCE = Layout(">Bqq")
_UNITS = Layout(">iH")

_CANCEL, _SETTLED, _ERROR, _RESULT, _HAS_FLOW, _SALTED_RESULT = 1, 4, 8, 16, 32, 64

REPORTED = 7
"""The values of a job in the reply of a verb that ends jobs without their workers."""

_SALTS = [bytes([size] * (size - 1) + [last]) for size in range(2, 10) for last in range(256)][:2039]
"""The salts differ in size or last byte, so that otherwise equal strings mostly have different hashes.

The last byte but one is the size. Their number is a prime, so that it shares no pattern with a checksum.
"""

_ALL_SALTS = frozenset(_SALTS)

_LONG = 32
"""The size in bytes from which Lua does not hash all bytes of a string."""

_END = b"\xff"
"""Precedes the salt of an error; no text has this byte."""


class Facts(msgspec.Struct, array_like=True, gc=False):
    """The fields that never change in a job's life. A payload that is stored apart is empty here.

    Stored records have no names, so a new field follows the last one. A record that has it must end with a
    salt of its own: see design note 0028.
    """

    task: str
    tenant: str | None = None
    headers: dict[str, str] | None = None
    payload: bytes = b""
    salt: bytes = b""
    """The end of the record, and of the payload if that is stored apart. Jobs of layout 5 have none."""


_encode = msgspec.msgpack.Encoder().encode
_decode_facts = msgspec.msgpack.Decoder(Facts).decode


class Unreadable(Exception):
    """The head of a record can't be read, so not even its state is known."""


def facts(job: Insertion) -> tuple[bytes, bytes]:
    """Return the facts of a new job, and its payload with the salt if that is stored apart."""
    payload, stored, salt = job.payload, b"", _salt(job.key)
    if len(payload) > SMALL:
        payload, stored = b"", payload + salt
    return _encode(Facts(job.task, job.tenant, job.headers or None, payload, salt)), stored


def _salt(key: bytes) -> bytes:
    return _SALTS[crc32(key) % len(_SALTS)]


def _unsalted(value: bytes) -> bytes:
    """Return a stored value without its salt. A damaged or repaired job may have a value without one."""
    size = int.from_bytes(value[-2:-1])
    return value[:-size] if value[-size:] in _ALL_SALTS else value


def result(op: SettleOp) -> bytes:
    """Return the result as it is stored."""
    return (op.result or b"") + _salt(op.key)


def error(op: SettleOp) -> bytes:
    """Return the error as it is stored."""
    text = (op.error or "").encode()
    return text if len(text) < _LONG else text + _END + _salt(op.key)


def _error_text(blob: bytes) -> bytes:
    return blob.partition(_END)[0]


def dedup(job: Insertion) -> str:
    """Return the dedup key as it is stored: a global one begins with NUL."""
    key = job.dedup_key or ""
    return "\0" + key if key and job.dedup_global else key


def debounce(job: Insertion) -> bytes:
    """Return the debounce of a new job for ``lua/shared/6_insert.lua``."""
    most = NONE if job.dedup_max_delay is None else job.dedup_max_delay
    return _DEBOUNCE.pack(job.dedup_latest, most, job.dedup_for or 0)


def flow(job: Insertion) -> bytes:
    """Return the flow control of a new job for ``lua/shared/6_insert.lua``."""
    tenant, step = job.fair or ("", 0)
    name = tenant.encode()
    return _FLOW_ARGUMENT.pack(step, len(name)) + name + units(job.limits)


def units(limits: Units) -> bytes:
    """Return the limits of a job, or the charges of a settlement."""
    named = [(bucket.encode(), amount) for bucket, amount in limits]
    return b"".join([_UNITS.pack(amount, len(bucket)) + bucket for bucket, amount in named])


def numbers(job: Insertion, bounded: bool) -> bytes:
    """Return the numbers of a new job for ``lua/shared/6_insert.lua``."""
    flags = 4 if job.dedup_until == "settled" else 0
    if job.limits or job.fair:
        flags |= 16
    if bounded:
        flags |= 32
    if job.debounced:
        flags |= 64
    if job.reserve_id:
        flags |= 8
    if job.run_at is None:
        flags |= 1
        run = job.delay or 0
    else:
        run = job.run_at
    expires = NONE
    if job.expires_in is not None:
        flags |= 2
        expires = job.expires_in
    elif job.expires_at is not None:
        expires = job.expires_at
    return NUMBERS.pack(flags, job.priority, job.max_attempts, len(job.kv) if job.kv else 0, run, expires)


@lru_cache(maxsize=1000)
def retention(retention: RetentionTimes) -> bytes:
    """Return the packed times for ``retention_of`` in ``lua/shared/5_rules.lua``."""
    return RETENTION.pack(
        *(NONE if time is None else time for time in (retention.done, retention.dead, retention.cancelled))
    )


def progress(fraction: float, message: str) -> bytes:
    return _FRACTION.pack(fraction) + message.encode()


def claimed_job(key: bytes, record: bytes, payload: bytes, facts: Facts | None = None) -> Job:
    """Return the job with the fields that a run needs. Raise ``Corrupt`` if it can't run.

    With ``facts``, those of the record are ignored, and the payload is not checked.
    """
    (_, _, flags, priority, attempts, max_attempts, epoch, claim, enqueued, run, claimed, lease, _, expires,
     _, queue_size, dedup_size, worker_size, error_size, errors_size, progress_size, payload_size
     ) = _HEAD.unpack_from(record)  # fmt: skip
    end = _HEAD.size + queue_size
    queue = record[_HEAD.size : end].decode("utf-8", "replace")
    worker_at = end + dedup_size
    error_at = worker_at + worker_size
    facts_at = error_at + error_size + errors_size + progress_size
    limits: Units = ()
    turn = line = 0
    if flags & _HAS_FLOW:
        size, turn, line = _FLOW.unpack_from(record, facts_at)
        facts_at += _FLOW.size + size
        limits = _limits(record[facts_at - size : facts_at])
    if facts is None:
        try:
            facts = _decode_facts(record[facts_at:])
        except UNDECODABLE as error:
            raise Corrupt(corrupt_text(str(error))) from None
        if len(payload) != payload_size:
            raise Corrupt(corrupt_text(f"its payload has {len(payload):,} of {payload_size:,} bytes"))
        if facts.salt and len(payload) > SMALL:
            payload = _unsalted(payload)
    job = Job(
        key=key, queue=queue, task=facts.task, payload=payload or facts.payload, headers=facts.headers or {},
        tenant=facts.tenant, priority=priority, state=JobState.RUNNING, attempts=attempts,
        max_attempts=max_attempts, epoch=epoch, enqueued_us=enqueued, run_us=run, claimed_us=claimed,
        lease_us=lease, claim=claim, limits=limits, turn=turn,
    )  # fmt: skip
    if 0 < line <= len(limits):
        job.limited_by = limits[line - 1][0]
    if worker_size:
        job.worker = record[worker_at:error_at].decode("utf-8", "replace")
    if expires != NONE:
        job.expires_us = expires
    if flags & _ERROR:
        job.last_error = _error_text(record[error_at : error_at + error_size]).decode("utf-8", "replace")
    if flags & _CANCEL:
        job.cancel_requested = True
    return job


@lru_cache(maxsize=1000)
def _limits(blob: bytes) -> Units:
    """Return the limits of a record. Many jobs have the same."""
    found: list[tuple[str, int]] = []
    start = 0
    while start + _UNITS.size <= len(blob):
        amount, size = _UNITS.unpack_from(blob, start)
        start += _UNITS.size + size
        found.append((blob[start - size : start].decode("utf-8", "replace"), amount))
    return tuple(found)


def place(job: Job) -> bytes:
    """Return the end of the job's entry in ``pending``, or in ``lines``."""
    return job.priority.to_bytes(4) + (LAST_ID + job.turn.to_bytes(8) if job.turn else b"") + job.key


def is_claimed_by(claim: bytes, record: bytes | None) -> bool:
    """Return whether the record of a job, if there is one, has this claim as its current one."""
    return record is not None and len(record) >= _HEAD.size and claim_of(record) == claim


def claim_of(record: bytes) -> bytes:
    claim: bytes = _HEAD.unpack_from(record)[7]
    return claim


def full_job(key: bytes, record: bytes, payload: bytes = b"", result: bytes | None = None) -> Job:
    """Return the public record. Facts that can't be decoded are empty, and ``last_error`` has the reason.

    Raise ``Unreadable`` if the head is damaged; the ``repair`` script makes a new one.
    """
    try:
        (format, state, flags, _, _, _, _, _, _, _, claimed, lease, finished, _, _, *sizes, _
         ) = _HEAD.unpack_from(record)  # fmt: skip
    except LayoutError:
        raise Unreadable from None
    least = _HEAD.size + sum(sizes) + (_FLOW.size if flags & _HAS_FLOW else 0)
    if format != _FORMAT or state not in STATES or least > len(record):
        raise Unreadable
    parts: list[bytes] = []
    start = _HEAD.size
    for size in sizes:
        parts.append(record[start : start + size])
        start += size
    _, dedup, _, _, errors, progress = parts
    try:
        job = claimed_job(key, record, payload)
    except Corrupt as error:
        job = claimed_job(key, record, payload, Facts(""))
        job.last_error = job.last_error or str(error)
    job.state = STATES[state]
    job.claimed_us = _time(claimed)
    job.lease_us = _time(lease)
    job.finished_us = _time(finished)
    job.errors = _failures(errors)
    job.dedup_key = dedup.removeprefix(b"\0").decode("utf-8", "replace") if dedup else None
    job.dedup_until = "settled" if flags & _SETTLED else "claimed"
    job.result = result if flags & _RESULT else None
    if job.result and flags & _SALTED_RESULT:
        job.result = _unsalted(job.result)
    job.progress = _progress(progress)
    return job


def ended_jobs(reply: Sequence[Any], reason: str | None = None) -> list[EndedJob]:
    """Return the jobs that ``report`` in ``lua/shared/5_rules.lua`` appended to a reply.

    Without a reason, it is the one in the reply.
    """
    ended: list[EndedJob] = []
    for start in range(0, len(reply), REPORTED):
        key, queue, task, old_state, state, attempts, error = reply[start : start + REPORTED]
        queue, task, error = (text.decode("utf-8", "replace") for text in (queue, task, error))
        old_state, state = STATES[int(old_state)], STATES[int(state)]
        ended.append(EndedJob(key, queue, task, old_state, state, int(attempts), reason or error))
    return ended


def quarantined_job(key: bytes, record: bytes, error: str) -> EndedJob:
    """Return a claimed job that is quarantined. The attempt does not count."""
    head = _HEAD.unpack_from(record)
    attempts, queue_size = head[4], head[15]
    queue = record[_HEAD.size : _HEAD.size + queue_size].decode("utf-8", "replace")
    return EndedJob(key, queue, "", JobState.PENDING, JobState.DEAD, max(attempts - 1, 0), error)


def is_torn(record: bytes, payload: bytes, result: bytes | None) -> bool:
    """Return whether the payload and the result do not belong to the record, which was read after them."""
    if len(record) < _HEAD.size:
        return False
    size: int = _SIZE.unpack_from(record, _HEAD.size - _SIZE.size)[0]
    return size != len(payload) or (record[2] & _RESULT > 0) != (result is not None)


def _time(value: int) -> int | None:
    return None if value == NONE else value


def _failures(blob: bytes) -> tuple[Failure, ...]:
    """Return the history of failures, or none if it can't be read: the job itself still runs."""
    found: list[Failure] = []
    start = 0
    try:
        while start < len(blob):
            (size,) = _SIZE.unpack_from(blob, start)
            start += _SIZE.size
            attempt, at, worker_size = _FAILURE.unpack_from(blob, start)
            worker_at = start + _FAILURE.size
            message_at = worker_at + worker_size
            worker = blob[worker_at:message_at].decode() if worker_size else None
            message = _error_text(blob[message_at : start + size]).decode()
            found.append(Failure(attempt, at, worker, message))
            start += size
    except (LayoutError, UnicodeDecodeError):
        return ()
    return tuple(found)


def _progress(blob: bytes) -> tuple[float, str] | None:
    if len(blob) < _FRACTION.size:
        return None
    return _FRACTION.unpack_from(blob)[0], blob[_FRACTION.size :].decode("utf-8", "replace")
