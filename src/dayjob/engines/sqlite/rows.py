"""Conversion between rows and records: strict for a claim, lenient for a listing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from dayjob.engines.base import Insertion
from dayjob.engines.record import Corrupt, Record, corrupt_text, new_state, next_epoch
from dayjob.model.codec import UNDECODABLE
from dayjob.model.job import NO_CLAIM, NORMAL, RUNNING, Failure, Job, JobState
from dayjob.model.limits import Units

Row = tuple[Any, ...]
Value = TypeVar("Value")
Default = TypeVar("Default")

_STATES = {state.value: state for state in JobState}
_encode = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode
_decode_progress = msgspec.msgpack.Decoder(tuple[float, str]).decode
_decode_limits = msgspec.msgpack.Decoder(Units).decode
_decode_errors = msgspec.msgpack.Decoder(tuple[Failure, ...]).decode

ALL_QUEUES = 0
"""The ``dedup_scope`` of a global dedup key. No queue has this id."""

_NOT_WHOLE = "a counter or a time is not a whole number"


CALL_COLUMNS = ("task", "tenant", "headers", "payload")
"""The call of a job. A debounced job gets that of the last one."""


def call_row(job: Insertion) -> Row:
    """Return the values of ``CALL_COLUMNS``."""
    return (job.task, job.tenant, _encode(job.headers) if job.headers else None, job.payload)


INSERT_COLUMNS = (
    "id", "queue_id", "state", "priority", "max_attempts", "enqueued_at", "run_at", "expires_at", "held_key",
    "dedup_key", "dedup_until", *CALL_COLUMNS,
)  # fmt: skip


def insertion_row(job: Insertion, queue_id: int, run_at: int, expires_at: int | None, now: int) -> Row:
    """Return the values of ``INSERT_COLUMNS``."""
    return (
        job.key, queue_id, new_state(job, run_at, now)._value_, job.priority, job.max_attempts, now, run_at,
        expires_at, job.dedup_key, job.dedup_key, job.dedup_until, *call_row(job),
    )  # fmt: skip


PLACED_INSERT_COLUMNS = (*INSERT_COLUMNS, "turn", "limits", "limited_by", "dedup_scope")
"""For a job with limits or a global dedup key, or on a fair queue. Others do not pay for the columns."""


def placed_row(row: Row, job: Insertion) -> Row:
    """Return the values of ``PLACED_INSERT_COLUMNS``."""
    limits = _encode(job.limits) if job.limits else None
    return (*row, job.turn, limits, job.limited_by, ALL_QUEUES if job.dedup_global else None)


CLAIM_COLUMNS = (
    "id", "task", "payload", "headers", "tenant", "priority", "attempts", "max_attempts", "epoch",
    "enqueued_at", "run_at", "expires_at", "last_error", "cancel_requested", "turn", "limits",
)  # fmt: skip


def _job(row: Row, queue: str) -> tuple[Job, list[str]]:
    """Return ``CLAIM_COLUMNS`` as a job, and the values that can't be decoded and were replaced."""
    (key, task, payload, headers, tenant, priority, attempts, max_attempts, epoch, enqueued, run, expires,
     last_error, cancel_requested, turn, limits) = row  # fmt: skip
    corrupt: list[str] = []
    decoded = {} if headers is None else _headers(headers, corrupt)
    if type(payload) is not bytes:
        corrupt.append(f"the payload is {type(payload).__name__}, not bytes")
        payload = b""
    if bytes in (type(task), type(tenant), type(last_error)):
        texts = {"task name": task, "tenant": tenant, "last error": last_error}
        corrupt += [f"the {name} is not valid text" for name, text in texts.items() if type(text) is bytes]
        task, tenant, last_error = map(text_of, texts.values())
    if not _whole(priority, attempts, max_attempts, epoch, run) or type(enqueued) is not int:
        corrupt.append(_NOT_WHOLE)
        priority, attempts, max_attempts, epoch, run = _replaced(priority, attempts, max_attempts, epoch, run)
        enqueued = int_or(enqueued, 0)
    job = Job(
        key, queue, task, payload, decoded, tenant, priority, RUNNING, attempts, max_attempts, epoch,
        enqueued, run, expires_us=expires, last_error=last_error, cancel_requested=bool(cancel_requested),
        turn=turn,
    )  # fmt: skip
    if limits is not None:
        job.limits = _decoded(_decode_limits, limits, ())
    return job, corrupt


def claimed_job(row: Row, queue: str, now: int, lease: int, worker: str | None, key: bytes) -> Job:
    """Return a row of ``candidates.sql`` as the claimed job. Raise ``Corrupt`` if it can't be decoded."""
    job, corrupt = _job(row, queue)
    if corrupt:
        raise Corrupt("; ".join(corrupt))
    job.attempts += 1
    job.epoch = next_epoch(job.epoch, now)
    job.claim = key
    job.claimed_us = now
    job.lease_us = now + lease
    job.worker = worker
    return job


JOB_COLUMNS = (
    "state", "claimed_at", "lease_expires_at", "finished_at", "errors", "dedup_key", "dedup_until", "worker",
    "claim", "result", "progress", "limited_by", *CLAIM_COLUMNS,
)  # fmt: skip


def full_job(row: Row) -> Job:
    """Return a row of ``find.sql`` as a job. Values that can't be decoded are replaced.

    ``last_error`` then names them, unless it has a text of its own.
    """
    (queue, state, claimed, lease, finished, errors, dedup_key, dedup_until, worker, claim, result,
     progress, limited_by, *rest) = row  # fmt: skip
    job, corrupt = _job(tuple(rest), queue)
    if corrupt and job.last_error is None:
        job.last_error = corrupt_text("; ".join(corrupt))
    job.state = _state(state)
    job.claimed_us = int_or(claimed, None)
    job.lease_us = int_or(lease, None)
    job.finished_us = int_or(finished, None)
    job.expires_us = int_or(job.expires_us, None)
    job.errors = _decoded(_decode_errors, errors, ())
    job.dedup_key = text_of(dedup_key)
    job.dedup_until = "settled" if dedup_until == "settled" else "claimed"
    job.worker = text_of(worker)
    job.claim = claim or NO_CLAIM
    job.result = result.encode() if isinstance(result, str) else result
    job.progress = _decoded(_decode_progress, progress, None)
    job.limited_by = text_of(limited_by)
    return job


RECORD_COLUMNS = (
    "id", "queue_id", "state", "priority", "attempts", "max_attempts", "epoch", "run_at", "claimed_at",
    "lease_expires_at", "finished_at", "expires_at", "remove_at", "last_error", "errors", "held_key",
    "dedup_until", "cancel_requested", "worker", "claim", "result", "turn", "limits", "limited_by",
)  # fmt: skip


def record(row: Row, queue: str) -> Record:
    """Return a row of ``load.sql`` as a record. Values that should be numbers and are not are replaced."""
    (key, _, state, priority, attempts, max_attempts, epoch, run, claimed, lease, finished, expires, remove,
     last_error, errors, held_key, dedup_until, cancel_requested, worker, claim, result, turn, limits,
     limited_by) = row  # fmt: skip
    corrupt = None
    if not _whole(priority, attempts, max_attempts, epoch, run):
        priority, attempts, max_attempts, epoch, run = _replaced(priority, attempts, max_attempts, epoch, run)
        corrupt = corrupt_text(_NOT_WHOLE)
    return Record(
        key=key, queue=queue, state=_state(state), priority=priority, attempts=attempts,
        max_attempts=max_attempts, epoch=epoch, run_us=run, claimed_us=claimed, lease_us=lease,
        finished_us=finished, expires_us=expires, remove_us=remove, last_error=text_of(last_error),
        errors=_decoded(_decode_errors, errors, ()), held_key=held_key, dedup_until=dedup_until,
        cancel_requested=bool(cancel_requested), worker=worker, claim=claim or NO_CLAIM, result=result,
        turn=int_or(turn, 0), limits=_decoded(_decode_limits, limits, ()), limited_by=limited_by,
        corrupt=corrupt,
    )  # fmt: skip


def record_row(record: Record) -> Row:
    """Return the parameters of ``save.sql``."""
    return (
        record.state._value_, record.priority, record.attempts, record.max_attempts, record.run_us,
        record.claimed_us, record.lease_us, record.finished_us, record.expires_us, record.remove_us,
        record.last_error, _encode(record.errors) if record.errors else None, record.held_key,
        record.cancel_requested, record.worker, record.claim, record.result, record.limited_by,
        progress_value(record.progress), record.key,
    )  # fmt: skip


def progress_value(progress: tuple[float, str] | None) -> bytes | None:
    return None if progress is None else _encode(progress)


def decode_limits(blob: Any) -> Units:
    return _decoded(_decode_limits, blob, ())


def text_or_bytes(value: bytes) -> str | bytes:
    """A ``text_factory`` that returns text that is not UTF-8 as bytes, so that it can be detected."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _whole(priority: Any, attempts: Any, max_attempts: Any, epoch: Any, run: Any) -> bool:
    return type(priority) is type(attempts) is type(max_attempts) is type(epoch) is type(run) is int


def int_or(value: Any, otherwise: Default) -> int | Default:
    return value if type(value) is int else otherwise


def _replaced(
    priority: Any, attempts: Any, max_attempts: Any, epoch: Any, run: Any
) -> tuple[int, int, int, int, int]:
    if not type(attempts) is type(max_attempts) is int:
        attempts = max_attempts = 1
    return (int_or(priority, NORMAL), attempts, max_attempts, int_or(epoch, 0), int_or(run, 0))


def _state(text: Any) -> JobState:
    """Return the state. A record in an unknown state counts as dead, so that nothing runs it."""
    return _STATES.get(text, JobState.DEAD)


def text_of(value: Any) -> str | None:
    """Return a column as text, also if it is stored as another type."""
    if value is None or isinstance(value, str):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _headers(blob: Any, corrupt: list[str]) -> dict[str, str]:
    try:
        return _decode_headers(blob)
    except (*UNDECODABLE, TypeError) as error:
        corrupt.append(f"the headers can't be decoded ({error})")
        return {}


def _decoded(decode: Callable[[bytes], Value], blob: Any, otherwise: Default) -> Value | Default:
    """Return the decoded value, or the other one if it is missing or can't be decoded."""
    try:
        return otherwise if blob is None else decode(blob)
    except (*UNDECODABLE, TypeError):
        return otherwise
