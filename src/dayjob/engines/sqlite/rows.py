"""Between rows and records: strict for a claim; lenient, saying what is amiss, for a look."""

from __future__ import annotations

from typing import Any

import msgspec

from dayjob.engines.base import Insertion, Progress
from dayjob.engines.record import Record, waiting_state
from dayjob.model.job import NORMAL, DedupUntil, Failure, Job, JobState

Row = tuple[Any, ...]

_STATES = {state.value: state for state in JobState}
_encode = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode
_decode_progress = msgspec.msgpack.Decoder(tuple[float, str]).decode
_decode_errors = msgspec.msgpack.Decoder(tuple[Failure, ...]).decode


_NOT_WHOLE = "a counter or a time is not a whole number"


class Corrupt(Exception):
    """A row that does not hold what it should; the text says which part."""


def insertion_row(job: Insertion, queue_id: int, now: int) -> Row:
    """The parameters of ``insert.sql``."""
    run_at, expires_at = job.times(now)
    return (
        job.key, queue_id, waiting_state(run_at, now)._value_, job.priority, job.max_attempts, now, run_at,
        expires_at, job.dedup_key, job.dedup_key, job.dedup_until, job.task, job.tenant,
        _encode(job.headers) if job.headers else None, job.payload,
    )  # fmt: skip


def claimed_job(row: Row, queue: str, now: int, lease: int, worker: str | None) -> Job:
    """A row of ``candidates.sql`` as the job that its claim makes of it."""
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
        max_attempts, epoch + 1, enqueued, run, now, now + lease, None, expires, last_error,
        cancel_requested=bool(cancel_requested), worker=worker,
    )  # fmt: skip


def record(row: Row, queue: str) -> Record:
    """A row of ``load.sql``; numbers that are none are replaced."""
    (key, _, state, priority, attempts, max_attempts, epoch, run, claimed, lease, finished, expires, remove,
     last_error, errors, held_key, dedup_until, cancel_requested, worker, result) = row  # fmt: skip
    corrupt = None
    if not _whole(priority, attempts, max_attempts, epoch, run):
        priority, attempts, max_attempts, epoch, run = _replaced(priority, attempts, max_attempts, epoch, run)
        corrupt = corrupt_text(_NOT_WHOLE)
    return Record(
        key, queue, _state(state), priority, attempts, max_attempts, epoch, run, claimed, lease, finished,
        expires, remove, _text(last_error), _errors(errors) if errors else (), held_key, dedup_until,
        bool(cancel_requested), worker, result, corrupt=corrupt,
    )  # fmt: skip


def record_row(record: Record) -> Row:
    """The parameters of ``save.sql``."""
    return (
        record.state._value_, record.priority, record.attempts, record.run_us, record.claimed_us,
        record.lease_us, record.finished_us, record.expires_us, record.remove_us, record.last_error,
        _encode(record.errors) if record.errors else None, record.held_key, record.cancel_requested,
        record.worker, record.result, _encode(record.progress) if record.progress else None, record.key,
    )  # fmt: skip


def full_job(row: Row) -> Job:
    """A row of ``find.sql``; what can't be decoded is left out, and ``last_error`` says so."""
    (key, queue, task, payload, headers, tenant, priority, state, attempts, max_attempts, epoch, enqueued,
     run, claimed, lease, finished, expires, last_error, errors, dedup_key, dedup_until, cancel_requested,
     worker, result, progress) = row  # fmt: skip
    amiss: list[str] = []
    try:
        decoded = _headers(headers)
    except Corrupt as error:
        decoded = {}
        amiss.append(str(error))
    if type(payload) is not bytes:
        amiss.append(f"the payload is {type(payload).__name__}, not bytes")
        payload = b""
    if not _whole(priority, attempts, max_attempts, epoch, run):
        priority, attempts, max_attempts, epoch, run = _replaced(priority, attempts, max_attempts, epoch, run)
        amiss.append(_NOT_WHOLE)
    claimed, lease, finished, expires = map(_time, (claimed, lease, finished, expires))
    if type(enqueued) is not int:
        enqueued = 0
        amiss.append(_NOT_WHOLE)
    amiss += [f"{text!r} is not valid text" for text in (task, tenant, last_error) if type(text) is bytes]
    if amiss and last_error is None:
        last_error = corrupt_text("; ".join(amiss))
    return Job(
        key, queue, _text(task) or "", payload, decoded, _text(tenant), priority, _state(state), attempts,
        max_attempts, epoch, enqueued, run, claimed, lease, finished, expires, _text(last_error),
        _errors(errors) if errors else (), dedup_key, _until(dedup_until), bool(cancel_requested), worker,
        result, _progress(progress),
    )  # fmt: skip


def report_row(report: Progress) -> Row:
    """The parameters of ``report.sql``."""
    return (_encode((report.fraction, report.message)), report.key, report.epoch)


def corrupt_text(what: str) -> str:
    return f"corrupt record: {what}"


def _progress(blob: Any) -> tuple[float, str] | None:
    try:
        return None if blob is None else _decode_progress(blob)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return None


def text_or_bytes(value: bytes) -> str | bytes:
    """A ``text_factory`` that lets through what is not UTF-8, so that it can be told from the rest."""
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
    """A record in no known state is out of the way, as a dead one is."""
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
    """The history of failures; one that can't be read is nothing to hold a job up for."""
    try:
        return _decode_errors(blob)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return ()
