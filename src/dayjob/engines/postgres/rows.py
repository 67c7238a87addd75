"""Conversion between jobs and rows: strict for a claim; lenient for a read, which reports corrupt parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dayjob.engines.base import Insertion, RetentionByQueue, RetentionTimes, SettleOp
from dayjob.engines.postgres.statements import FOREVER
from dayjob.model.job import DedupUntil, Failure, Job, JobState, id_text

Row = Sequence[Any]

_STATES = {state.value: state for state in JobState}
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_decode_progress = msgspec.json.Decoder(tuple[float, str]).decode
_decode_failure = msgspec.json.Decoder(Failure).decode


class Corrupt(Exception):
    """A part of a row can't be decoded; the text names it."""


def json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def insertion_columns(jobs: Sequence[Insertion]) -> list[list[Any]]:
    """Return the parameters of ``insert.sql`` from the fifth on, in types that every driver can send."""
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


def ack_columns(ops: Sequence[SettleOp]) -> tuple[str, str, int]:
    """Return the parameters of ``ack.sql`` from the second on; the driver encodes arrays item by item."""
    keys = b"".join([op.key for op in ops]).hex(",", 16)
    epochs = ",".join([str(op.epoch) for op in ops])
    return f"{{{keys}}}", f"{{{epochs}}}", len(ops)


def settle_columns(ops: Sequence[SettleOp]) -> list[list[Any]]:
    """Return the parameters of ``settle.sql`` from the third on."""
    return [
        [op.key for op in ops],
        [op.epoch for op in ops],
        [op.transition._value_ for op in ops],
        [op.error for op in ops],
        [op.delay for op in ops],
        [op.result for op in ops],
        [json_text(op.progress) if op.progress else None for op in ops],
        [_retention(op.retention.done) for op in ops],
        [_retention(op.retention.dead) for op in ops],
        [_retention(op.retention.cancelled) for op in ops],
    ]


def _retention(time: int | None) -> int:
    return FOREVER if time is None else time


def retention_columns(retention: RetentionByQueue, state: JobState) -> tuple[list[str], list[int], int]:
    """Return the queues with a retention of their own for the state, these times, and that of others."""

    def of(times: RetentionTimes) -> int:
        return _retention(times.of(state))

    return (
        list(retention.queues),
        [of(times) for times in retention.queues.values()],
        of(retention.default),
    )


def claimed_job(row: Row, worker: str | None) -> Job:
    """Decode a row of ``claim.sql``. Raise ``Corrupt`` if it can't be decoded."""
    (key, queue, task, payload, headers, tenant, priority, attempts, max_attempts, epoch, enqueued, run,
     claimed, lease, expires, last_error, cancel_requested, _) = row  # fmt: skip
    return Job(
        key=key, queue=queue, task=task, payload=payload,
        headers={} if headers is None else _headers(headers), tenant=tenant, priority=priority,
        state=JobState.RUNNING, attempts=attempts, max_attempts=max_attempts, epoch=epoch,
        enqueued_us=enqueued, run_us=run, claimed_us=claimed, lease_us=lease, expires_us=expires,
        last_error=last_error, cancel_requested=cancel_requested, worker=worker,
    )  # fmt: skip


def full_job(row: Row) -> Job:
    """Decode a row of ``find.sql``. A corrupt part is left out and reported in ``last_error``."""
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
        key=key, queue=queue, task=task, payload=payload, headers=decoded, tenant=tenant, priority=priority,
        state=_STATES.get(state, JobState.DEAD), attempts=attempts, max_attempts=max_attempts, epoch=epoch,
        enqueued_us=enqueued, run_us=run, claimed_us=claimed, lease_us=lease, finished_us=finished,
        expires_us=expires, last_error=last_error, errors=_errors(errors) if errors else (),
        dedup_key=dedup_key, dedup_until=_until(dedup_until), cancel_requested=cancel_requested,
        worker=worker, result=result, progress=_progress(progress),
    )  # fmt: skip


def corrupt_text(error: Corrupt) -> str:
    return f"corrupt record: {error}"


def _headers(text: str) -> dict[str, str]:
    try:
        return _decode_headers(text)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the headers can't be decoded ({error})") from None


def _errors(texts: list[str | None]) -> tuple[Failure, ...]:
    """Return the failures that can be decoded. The others must not hold up the job."""
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
