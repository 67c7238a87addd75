"""Conversion between rows and records: strict for a claim, lenient for a listing."""

from __future__ import annotations

from typing import Any

import msgspec

from dayjob.engines.base import Insertion
from dayjob.engines.record import Facts, Record, corrupt_text, waiting_state
from dayjob.model.job import NORMAL, DedupUntil, Failure, Job, JobState

Row = tuple[Any, ...]

_STATES = {state.value: state for state in JobState}
_encode = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode
_decode_progress = msgspec.msgpack.Decoder(tuple[float, str]).decode
_decode_errors = msgspec.msgpack.Decoder(tuple[Failure, ...]).decode

_NOT_WHOLE = "a counter or a time is not a whole number"


class Corrupt(Exception):
    """A row with a value of the wrong type. The text names it."""


def insertion_row(job: Insertion, queue_id: int, run_at: int, expires_at: int | None, now: int) -> Row:
    """Return the parameters of ``insert.sql``."""
    return (
        job.key, queue_id, waiting_state(run_at, now)._value_, job.priority, job.max_attempts, now, run_at,
        expires_at, job.dedup_key, job.dedup_key, job.dedup_until, job.task, job.tenant,
        _encode(job.headers) if job.headers else None, job.payload,
    )  # fmt: skip


def claimed_job(row: Row, queue: str, now: int, lease: int, worker: str | None) -> Job:
    """Return a row of ``candidates.sql`` as the claimed job. Raise ``Corrupt`` if it can't be decoded."""
    (key, task, payload, headers, tenant, priority, attempts, max_attempts, epoch, enqueued, run, expires,
     last_error, cancel_requested) = row  # fmt: skip
    if type(payload) is not bytes:
        raise Corrupt(f"the payload is {type(payload).__name__}, not bytes")
    for name, text in (("task name", task), ("tenant", tenant), ("last error", last_error)):
        if type(text) is bytes:
            raise Corrupt(f"the {name} is not valid text")
    if not _whole(priority, attempts, max_attempts, epoch, run) or type(enqueued) is not int:
        raise Corrupt(_NOT_WHOLE)
    return Job(
        key, queue, task, payload, _headers(headers), tenant, priority, JobState.RUNNING, attempts + 1,
        max_attempts, epoch + 1, enqueued, run, claimed_us=now, lease_us=now + lease, expires_us=expires,
        last_error=last_error, cancel_requested=bool(cancel_requested), worker=worker,
    )  # fmt: skip


def record(row: Row, queue: str) -> Record:
    """Return a row of ``load.sql`` as a record. Numbers that are not are replaced."""
    (key, _, state, priority, attempts, max_attempts, epoch, run, claimed, lease, finished, expires, remove,
     last_error, errors, held_key, dedup_until, cancel_requested, worker, result) = row  # fmt: skip
    corrupt = None
    if not _whole(priority, attempts, max_attempts, epoch, run):
        priority, attempts, max_attempts, epoch, run = _replaced(priority, attempts, max_attempts, epoch, run)
        corrupt = corrupt_text(_NOT_WHOLE)
    return Record(
        key=key, queue=queue, state=_state(state), priority=priority, attempts=attempts,
        max_attempts=max_attempts, epoch=epoch, run_us=run, claimed_us=claimed, lease_us=lease,
        finished_us=finished, expires_us=expires, remove_us=remove, last_error=_text(last_error),
        errors=_errors(errors) if errors else (), held_key=held_key, dedup_until=dedup_until,
        cancel_requested=bool(cancel_requested), worker=worker, result=result, corrupt=corrupt,
    )  # fmt: skip


def record_row(record: Record) -> Row:
    """Return the parameters of ``save.sql``."""
    return (
        record.state._value_, record.priority, record.attempts, record.run_us, record.claimed_us,
        record.lease_us, record.finished_us, record.expires_us, record.remove_us, record.last_error,
        _encode(record.errors) if record.errors else None, record.held_key, record.cancel_requested,
        record.worker, record.result, progress_value(record.progress), record.key,
    )  # fmt: skip


def full_job(row: Row) -> Job:
    """Return a row of ``find.sql`` as a job. Values that can't be decoded are replaced.

    ``last_error`` then names them, unless it has a text of its own.
    """
    (key, queue, task, payload, headers, tenant, priority, state, attempts, max_attempts, epoch, enqueued,
     run, claimed, lease, finished, expires, last_error, errors, dedup_key, dedup_until, cancel_requested,
     worker, result, progress) = row  # fmt: skip
    corrupt: list[str] = []
    try:
        decoded = _headers(headers)
    except Corrupt as error:
        decoded = {}
        corrupt.append(str(error))
    if type(payload) is not bytes:
        corrupt.append(f"the payload is {type(payload).__name__}, not bytes")
        payload = b""
    if not _whole(priority, attempts, max_attempts, epoch, run):
        priority, attempts, max_attempts, epoch, run = _replaced(priority, attempts, max_attempts, epoch, run)
        corrupt.append(_NOT_WHOLE)
    if type(enqueued) is not int:
        enqueued = 0
        corrupt.append(_NOT_WHOLE)
    corrupt += [f"{text!r} is not valid text" for text in (task, tenant, last_error) if type(text) is bytes]
    if corrupt and last_error is None:
        last_error = corrupt_text("; ".join(corrupt))
    record = Record(
        key=key, queue=queue, state=_state(state), priority=priority, attempts=attempts,
        max_attempts=max_attempts, epoch=epoch, run_us=run, claimed_us=_time(claimed),
        lease_us=_time(lease), finished_us=_time(finished), expires_us=_time(expires),
        last_error=_text(last_error), errors=_errors(errors) if errors else (),
        dedup_until=_until(dedup_until), cancel_requested=bool(cancel_requested), worker=worker,
        result=result, progress=_progress(progress),
    )  # fmt: skip
    return record.to_job(Facts(_text(task) or "", payload, decoded, _text(tenant), enqueued, dedup_key))


def progress_value(progress: tuple[float, str] | None) -> bytes | None:
    return None if progress is None else _encode(progress)


def _progress(blob: Any) -> tuple[float, str] | None:
    try:
        return None if blob is None else _decode_progress(blob)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return None


def text_or_bytes(value: bytes) -> str | bytes:
    """A ``text_factory`` that returns text that is not UTF-8 as bytes, so that it can be detected."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _whole(priority: Any, attempts: Any, max_attempts: Any, epoch: Any, run: Any) -> bool:
    return type(priority) is type(attempts) is type(max_attempts) is type(epoch) is type(run) is int


def _int(value: Any, otherwise: int) -> int:
    return value if type(value) is int else otherwise


def _time(value: Any) -> int | None:
    return value if type(value) is int else None


def _replaced(
    priority: Any, attempts: Any, max_attempts: Any, epoch: Any, run: Any
) -> tuple[int, int, int, int, int]:
    if not type(attempts) is type(max_attempts) is int:
        attempts = max_attempts = 1
    return (_int(priority, NORMAL), attempts, max_attempts, _int(epoch, 0), _int(run, 0))


def _state(text: Any) -> JobState:
    """Return the state. A record in an unknown state counts as dead, so that nothing runs it."""
    return _STATES.get(text, JobState.DEAD)


def _text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _until(text: str) -> DedupUntil:
    return "settled" if text == "settled" else "claimed"


def _headers(blob: Any) -> dict[str, str]:
    if blob is None:
        return {}
    try:
        return _decode_headers(blob)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise Corrupt(f"the headers can't be decoded ({error})") from None


def _errors(blob: Any) -> tuple[Failure, ...]:
    """Return the history of failures. A history that can't be decoded does not hold up a job."""
    try:
        return _decode_errors(blob)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return ()
