"""Between rows and jobs: strict for a claim; lenient, saying what is amiss, for a look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dayjob.engines.base import Insertion, Keep, Keeps, Verdict
from dayjob.job import DedupUntil, Failure, Job, JobState, id_text

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


def claim_columns(verdicts: Sequence[Verdict]) -> tuple[str, str, int]:
    """The parameters of ``succeed.sql`` from the second on; the driver would encode an array item by item."""
    keys = b"".join([verdict.key for verdict in verdicts]).hex(",", 16)
    epochs = ",".join([str(verdict.epoch) for verdict in verdicts])
    return f"{{{keys}}}", f"{{{epochs}}}", len(verdicts)


def verdict_columns(verdicts: Sequence[Verdict]) -> list[list[Any]]:
    """The parameters of ``settle.sql`` from the third on."""
    return [
        [verdict.key for verdict in verdicts],
        [verdict.epoch for verdict in verdicts],
        [verdict.event._value_ for verdict in verdicts],
        [verdict.error for verdict in verdicts],
        [verdict.delay for verdict in verdicts],
        [verdict.result for verdict in verdicts],
        [json_text(verdict.progress) if verdict.progress else None for verdict in verdicts],
        [kept(verdict.keep.done) for verdict in verdicts],
        [kept(verdict.keep.dead) for verdict in verdicts],
        [kept(verdict.keep.cancelled) for verdict in verdicts],
    ]


def kept(keep: int | None) -> int:
    return FOREVER if keep is None else keep


def keep_columns(keeps: Keeps, state: JobState) -> tuple[list[str], list[int], int]:
    """Which queues have a keep of their own for jobs that end in the state, and the keep of the others."""

    def of(keep: Keep) -> int:
        return kept(keep.of(state))

    return list(keeps.queues), [of(keep) for keep in keeps.queues.values()], of(keeps.default)


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
