"""Between records and jobs; ``lua/shared/2_records.lua`` is the other side of this layout.

A record is a fixed head, seven strings whose sizes are in the head, and the facts, which never change and
which no script reads. ``NONE`` stands for a time that is not there.
"""

from __future__ import annotations

from struct import Struct as Layout
from struct import error as LayoutError

import msgspec

from dayjob.engines.base import Insertion, RetentionTimes
from dayjob.model.job import Failure, Job, JobState

NONE = -(2**63)

STATES = (
    None, JobState.SCHEDULED, JobState.PENDING, JobState.RUNNING, JobState.DONE, JobState.DEAD,
    JobState.CANCELLED,
)  # fmt: skip
CODES = {state: code for code, state in enumerate(STATES) if state is not None}

TIME = Layout(">q")
KEEP = Layout(">qqq")
NUMBERS = Layout(">BIIIqq")
_FORMAT = 1
_HEAD = Layout(">BBBIIIIqqqqqqqHHHIIII")
_FAILURE_SIZE = Layout(">I")
_FAILURE = Layout(">IqH")
_FRACTION = Layout(">d")

_CANCEL, _SETTLED, _ERROR, _RESULT = 1, 4, 8, 16


class Facts(msgspec.Struct, array_like=True, gc=False):
    """What never changes in a job's life."""

    task: str
    payload: bytes
    tenant: str | None = None
    headers: dict[str, str] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_facts = msgspec.msgpack.Decoder(Facts).decode


class Corrupt(Exception):
    """The facts of a record can't be decoded; the text says why."""


class Unreadable(Exception):
    """The head of a record can't be read: not even its state is known."""


def facts(job: Insertion) -> bytes:
    return _encode(Facts(job.task, job.payload, job.tenant, job.headers or None))


def numbers(job: Insertion) -> bytes:
    """The numbers of a new job for ``lua/shared/5_insertion.lua``."""
    flags = 4 if job.dedup_until == "settled" else 0
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


def retention(retention: RetentionTimes) -> bytes:
    """How long finished jobs are kept, for ``keep_of`` in ``lua/shared/4_rules.lua``."""
    return KEEP.pack(
        *(NONE if time is None else time for time in (retention.done, retention.dead, retention.cancelled))
    )


def progress(fraction: float, message: str) -> bytes:
    return _FRACTION.pack(fraction) + message.encode()


def claimed_job(key: bytes, record: bytes) -> Job:
    """What running the job needs; ``Corrupt`` if that can't be decoded."""
    (_, _, flags, priority, attempts, max_attempts, epoch, enqueued, run, claimed, lease, _, expires, _,
     queue_size, dedup_size, worker_size, error_size, errors_size, result_size, progress_size
     ) = _HEAD.unpack_from(record)  # fmt: skip
    end = _HEAD.size + queue_size
    queue = record[_HEAD.size : end].decode()
    worker_at = end + dedup_size
    error_at = worker_at + worker_size
    facts_at = error_at + error_size + errors_size + result_size + progress_size
    try:
        found = _decode_facts(record[facts_at:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(corrupt_text(str(error))) from None
    return Job(
        key, queue, found.task, found.payload, found.headers or {}, found.tenant, priority,
        JobState.RUNNING, attempts, max_attempts, epoch, enqueued, run, claimed, lease, None,
        None if expires == NONE else expires,
        record[error_at : error_at + error_size].decode("utf-8", "replace") if flags & _ERROR else None,
        cancel_requested=flags & _CANCEL > 0,
        worker=record[worker_at:error_at].decode() if worker_size else None,
    )  # fmt: skip


def epoch_of(record: bytes) -> int:
    epoch: int = _HEAD.unpack_from(record)[6]
    return epoch


def asks_to_stop(record: bytes) -> bool:
    """Whether the job runs and is asked to stop."""
    _, state, flags = record[:3]
    return STATES[state] is JobState.RUNNING and flags & _CANCEL > 0


def full_job(key: bytes, record: bytes) -> Job:
    """The public record; facts that can't be decoded are left out, and ``last_error`` says so.

    ``Unreadable`` if the head is damaged: the ``mend`` script makes a new one.
    """
    try:
        (format, state, flags, priority, attempts, max_attempts, epoch, enqueued, run, claimed, lease,
         finished, expires, _, *sizes) = _HEAD.unpack_from(record)  # fmt: skip
    except LayoutError:
        raise Unreadable from None
    if format != _FORMAT or not 0 < state < len(STATES) or _HEAD.size + sum(sizes) > len(record):
        raise Unreadable
    parts: list[bytes] = []
    start = _HEAD.size
    for size in sizes:
        parts.append(record[start : start + size])
        start += size
    queue, dedup, worker, error, errors, result, progress = parts
    last_error = error.decode("utf-8", "replace") if flags & _ERROR else None
    try:
        found = _decode_facts(record[start:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as amiss:
        found = Facts("", b"")
        last_error = last_error or corrupt_text(str(amiss))
    state_now = STATES[state]
    assert state_now is not None
    return Job(
        key, queue.decode("utf-8", "replace"), found.task, found.payload, found.headers or {}, found.tenant,
        priority, state_now, attempts, max_attempts, epoch, enqueued, run, _time(claimed), _time(lease),
        _time(finished), _time(expires), last_error, _failures(errors),
        dedup.decode("utf-8", "replace") if dedup else None, "settled" if flags & _SETTLED else "claimed",
        flags & _CANCEL > 0, worker.decode("utf-8", "replace") if worker else None,
        result if flags & _RESULT else None, _progress(progress),
    )  # fmt: skip


def corrupt_text(what: str) -> str:
    return f"corrupt record: {what}"


def _time(value: int) -> int | None:
    return None if value == NONE else value


def _failures(blob: bytes) -> tuple[Failure, ...]:
    """The history of failures; one that can't be read is nothing to hold a job up for."""
    found: list[Failure] = []
    start = 0
    try:
        while start < len(blob):
            (size,) = _FAILURE_SIZE.unpack_from(blob, start)
            start += _FAILURE_SIZE.size
            attempt, at, worker_size = _FAILURE.unpack_from(blob, start)
            worker_at = start + _FAILURE.size
            message_at = worker_at + worker_size
            worker = blob[worker_at:message_at].decode() if worker_size else None
            found.append(Failure(attempt, at, worker, blob[message_at : start + size].decode()))
            start += size
    except (LayoutError, UnicodeDecodeError):
        return ()
    return tuple(found)


def _progress(blob: bytes) -> tuple[float, str] | None:
    if len(blob) < _FRACTION.size:
        return None
    return _FRACTION.unpack_from(blob)[0], blob[_FRACTION.size :].decode("utf-8", "replace")
