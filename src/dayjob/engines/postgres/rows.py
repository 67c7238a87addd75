"""Between rows and jobs: strict for a claim; lenient, saying what is amiss, for a look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dayjob.engines.base import Insertion, RetentionByQueue, RetentionTimes, SettleOp
from dayjob.model.job import DedupUntil, Failure, Job, JobState, id_text

Row = Sequence[Any]

FOREVER = -1
"""A keep without end, as the statements have it."""

_STATES = {state.value: state for state in JobState}
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_decode_progress = msgspec.json.Decoder(tuple[float, str]).decode
_decode_failure = msgspec.json.Decoder(Failure).decode


class Corrupt(Exception):
    """A row that does not hold what it should; the text says which part."""


def json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def insertion_columns(jobs: Sequence[Insertion]) -> list[list[Any]]:
    """The parameters of ``insert.sql`` from the fifth on, in types that every driver can send."""
    return [
        [id_text(job.key) for job in jobs],
        [job.queue for job in jobs],
        [job.task for job in jobs],
        [job.payload for job in jobs],
        [job.priority for job in jobs],
        [job.max_attempts for job in jobs],
        [json_text(job.headers) if job.headers else None for job in jobs],
        [job.tenant for job in jobs],
        [job.run_at for job in jobs],
        [job.delay or 0 for job in jobs],
        [job.expires_at for job in jobs],
        [job.expires_in for job in jobs],
        [job.dedup_key for job in jobs],
        [job.dedup_until for job in jobs],
    ]


def claim_columns(ops: Sequence[SettleOp]) -> tuple[str, str, int]:
    """The parameters of ``succeed.sql`` from the second on; the driver would encode an array item by item."""
    keys = b"".join([op.key for op in ops]).hex(",", 16)
    epochs = ",".join([str(op.epoch) for op in ops])
    return f"{{{keys}}}", f"{{{epochs}}}", len(ops)


def verdict_columns(ops: Sequence[SettleOp]) -> list[list[Any]]:
    """The parameters of ``settle.sql`` from the third on."""
    return [
        [op.key for op in ops],
        [op.epoch for op in ops],
        [op.transition._value_ for op in ops],
        [op.error for op in ops],
        [op.delay for op in ops],
        [op.result for op in ops],
        [json_text(op.progress) if op.progress else None for op in ops],
        [kept(op.retention.done) for op in ops],
        [kept(op.retention.dead) for op in ops],
        [kept(op.retention.cancelled) for op in ops],
    ]


def kept(retention: int | None) -> int:
    return FOREVER if retention is None else retention


def keep_columns(retention: RetentionByQueue, state: JobState) -> tuple[list[str], list[int], int]:
    """Which queues have a keep of their own for jobs that end in the state, and the keep of the others."""

    def of(retention: RetentionTimes) -> int:
        return kept(retention.of(state))

    return (
        list(retention.queues),
        [of(retention) for retention in retention.queues.values()],
        of(retention.default),
    )


def claimed_job(row: Row, worker: str | None) -> Job:
    """A row of ``claim.sql``."""
    (key, queue, task, payload, headers, tenant, priority, attempts, max_attempts, epoch, enqueued, run,
     claimed, lease, expires, last_error, cancel_requested, _) = row  # fmt: skip
    return Job(
        key, queue, task, payload, {} if headers is None else _headers(headers), tenant, priority,
        JobState.RUNNING, attempts, max_attempts, epoch, enqueued, run, claimed, lease, None, expires,
        last_error, cancel_requested=cancel_requested, worker=worker,
    )  # fmt: skip


def full_job(row: Row) -> Job:
    """A row of ``find.sql``; what can't be decoded is left out, and ``last_error`` says so."""
    (key, queue, task, payload, headers, tenant, priority, state, attempts, max_attempts, epoch, enqueued,
     run, claimed, lease, finished, expires, last_error, errors, dedup_key, dedup_until, cancel_requested,
     worker, result, progress) = row  # fmt: skip
    decoded: dict[str, str] = {}
    if headers is not None:
        try:
            decoded = _headers(headers)
        except Corrupt as error:
            last_error = last_error or corrupt_text(error)
    return Job(
        key, queue, task, payload, decoded, tenant, priority, _STATES.get(state, JobState.DEAD), attempts,
        max_attempts, epoch, enqueued, run, claimed, lease, finished, expires, last_error,
        _errors(errors) if errors else (), dedup_key, _until(dedup_until), cancel_requested, worker, result,
        _progress(progress),
    )  # fmt: skip


def corrupt_text(what: object) -> str:
    return f"corrupt record: {what}"


def _headers(text: str) -> dict[str, str]:
    try:
        return _decode_headers(text)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the headers can't be decoded ({error})") from None


def _errors(texts: list[str | None]) -> tuple[Failure, ...]:
    """The history of failures; one that can't be read is nothing to hold a job up for."""
    failures = []
    for text in texts:
        try:
            failures.append(_decode_failure(text or ""))
        except msgspec.MsgspecError:
            continue
    return tuple(failures)


def _progress(text: str | None) -> tuple[float, str] | None:
    try:
        return None if text is None else _decode_progress(text)
    except msgspec.MsgspecError:
        return None


def _until(text: str) -> DedupUntil:
    return "settled" if text == "settled" else "claimed"
