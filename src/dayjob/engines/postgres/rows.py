"""Conversion between jobs and rows: strict for a claim; lenient for a read, which reports corrupt parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from dayjob.engines.base import Insertion, Progress, Renewal, RetentionByQueue, SettleOp
from dayjob.engines.record import Corrupt, corrupt_text
from dayjob.model.codec import UNDECODABLE
from dayjob.model.job import NO_CLAIM, RUNNING, EndedJob, Failure, Job, JobState, id_key
from dayjob.model.lifecycle import ACK
from dayjob.model.limits import Units
from dayjob.runtime.signals import DUE, Topic, queue_topic

Row = Sequence[Any]
Rows = Sequence[Row]
Value = TypeVar("Value")
Locking = TypeVar("Locking", SettleOp, Renewal, Progress)

FOREVER = -1
"""Retention without end; 0 is not at all."""

_TOPIC = "0 "
"""The first characters of a text in a reply that stands for a topic. Settlements are numbered from 1 on."""

_STATES = {state.value: state for state in JobState}
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_decode_progress = msgspec.json.Decoder(tuple[float, str]).decode
_decode_limits = msgspec.json.Decoder(Units).decode
_decode_failure = msgspec.json.Decoder(Failure).decode
_decode_ended = msgspec.json.Decoder(tuple[str, str, str, JobState, JobState, int]).decode


def json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


_INSERT = {
    "queue": ("text", "queue"),
    "task": ("text", "task"),
    "payload": ("bytea", "payload"),
    "priority": ("bigint", "priority"),
    "max_attempts": ("integer", "max_attempts"),
    "dedup_until": ("text", "dedup_until"),
    "reserve_id": ("boolean", None),
    "turn": ("bigint", "turn"),
    "headers": ("text", "headers::jsonb"),
    "tenant": ("text", "tenant"),
    "run_at": ("bigint", "due"),
    "delay": ("bigint", None),
    "expires_at": ("bigint", "expiry"),
    "expires_in": ("bigint", None),
    "dedup_key": ("text", "dedup_key"),
    "dedup_scope": ("text", "dedup_scope"),
    "limits": ("text", "limits::jsonb"),
}
"""The arrays that ``insert.sql`` gets, with an item for each job. Each array has the name of a field.

The type is one that every driver can send. The second text is the SQL value of the column of that name.
"""

_REQUIRED = tuple(_INSERT)[:8]
"""The fields that are never None. If all jobs have the same value, the array has it once."""

_ARRAYS = {name: f"${number}::{type}[]" for number, (name, (type, _)) in enumerate(_INSERT.items(), 8)}

INSERT_LISTS = {
    "INSERT_ARRAYS": ", ".join(_ARRAYS.values()),
    "INSERT_NAMES": ", ".join(_INSERT),
    "INSERT_FIELDS": ", ".join(
        f"coalesce(job.{name}, ({_ARRAYS[name]})[1]) AS {name}" if name in _REQUIRED else f"job.{name}"
        for name in _INSERT
    ),
    "INSERT_COLUMNS": ", ".join(name for name, (_, value) in _INSERT.items() if value),
    "INSERT_VALUES": ", ".join(value for _, value in _INSERT.values() if value),
}

_GETTERS: dict[str, Callable[[Insertion], Any]] = {
    **{name: attrgetter(name) for name in _INSERT},
    "headers": lambda job: json_text(job.headers) if job.headers else None,
    "limits": lambda job: json_text(job.limits) if job.limits else None,
    "dedup_scope": lambda job: "" if job.dedup_global else None,
}


def insertion_columns(jobs: Sequence[Insertion]) -> list[Any]:
    """Return the parameters of ``insert.sql`` from the sixth on.

    The driver encodes arrays item by item, so an array has one item if all jobs have the same value.
    """
    columns: list[Any] = [len(jobs), _ids_text([job.key for job in jobs])]
    for name, getter in _GETTERS.items():
        column = list(map(getter, jobs))
        first = column[0]
        same = (first is None or name in _REQUIRED) and column.count(first) == len(column)
        columns.append(column[:1] if same else column)
    return columns


_OPTIONS = Insertion.__struct_fields__.index("headers")
"""The fields of an insertion from here on are None, False or empty unless the job has options."""

_NO_OPTIONS = astuple(Insertion(b"", "", "", b"", 0, 0, {}))[_OPTIONS:]


def plain_columns(jobs: Sequence[Insertion]) -> list[Any] | None:
    """Return the parameters of ``insert_plain.sql`` from the fifth on. None if it can't store the jobs."""
    first = jobs[0]
    queue, task, priority, max_attempts = first.queue, first.task, first.priority, first.max_attempts
    shared = (priority, max_attempts, *_NO_OPTIONS)
    keys, payloads = [], []
    for job in jobs:
        fields = astuple(job)
        if fields[4:] != shared or fields[1] != queue or fields[2] != task:
            return None
        keys.append(fields[0])
        payloads.append(fields[3])
    return [len(jobs), _ids_text(keys), payloads, queue, task, priority, max_attempts]


_CALL = ("task", "payload", "headers", "tenant")
"""The call of a job. A debounced job gets that of the last one."""

CALL_LISTS = {
    "CALL_ARRAYS": ", ".join(f"${number}::{_INSERT[name][0]}[]" for number, name in enumerate(_CALL, 6)),
    "CALL_NAMES": ", ".join(_CALL),
    "CALL_FIELDS": ", ".join(f"call.{name}" for name in _CALL),
    "CALL_VALUES": ", ".join(f"{name} = given.{_INSERT[name][1]}" for name in _CALL),
}


def call_columns(calls: Mapping[str, Insertion]) -> list[list[Any]]:
    """Return the parameters of ``replace_calls.sql`` from the second on. The calls are by the holder's id."""
    jobs = list(calls.values())
    due = ([job.run_at for job in jobs], [job.delay for job in jobs], [job.dedup_max_delay for job in jobs])
    return [list(calls), *due, *([_GETTERS[name](job) for job in jobs] for name in _CALL)]


def _ids_text(keys: Sequence[bytes]) -> str:
    """Return ids as one text, which the server converts to an array."""
    return f"{{{b''.join(keys).hex(',', 16)}}}"


def in_lock_order(items: Iterable[Locking]) -> list[Locking]:
    """Return the items by job id. Statements lock the jobs in the order of their parameters.

    Without one order, two batches with the same jobs would wait for each other.
    """
    return sorted(items, key=attrgetter("key"))


def are_acks(ops: Sequence[SettleOp]) -> bool:
    """Whether all are acks with one retention that store results only, so that ``ack.sql`` applies them."""
    retention = ops[0].retention.done
    return all(
        op.transition is ACK and op.retention.done == retention
        and not (op.insert or op.kv or op.charges) and (op.progress is None or retention == 0)
        for op in ops
    )  # fmt: skip


def ack_columns(ops: Sequence[SettleOp]) -> tuple[str, str, int, int, list[bytes | None] | None]:
    """Return the parameters of ``ack.sql`` from the third on. Most batches have one result: that of None."""
    keys, claims = _ids_text([op.key for op in ops]), _ids_text([op.claim for op in ops])
    retention = _retention(ops[0].retention.done)
    if retention == 0:
        return keys, claims, len(ops), retention, None
    results = [op.result for op in ops]
    same = results.count(results[0]) == len(results)
    return keys, claims, len(ops), retention, results[:1] if same else results


def settle_columns(settlements: Sequence[SettleOp], first: int = 1) -> list[list[Any]]:
    """Return the parameters of ``settle.sql`` from the third on. They are numbered from ``first`` on."""
    numbered = sorted(enumerate(settlements, first), key=lambda item: item[1].key)  # The lock order.
    ops = [op for _, op in numbered]
    return [
        [op.key for op in ops],
        [op.claim for op in ops],
        [op.transition._value_ for op in ops],
        [op.error for op in ops],
        [op.delay for op in ops],
        [op.result for op in ops],
        [json_text(op.progress) if op.progress else None for op in ops],
        [_retention(op.retention.done) for op in ops],
        [_retention(op.retention.dead) for op in ops],
        [_retention(op.retention.cancelled) for op in ops],
        [op.max_attempts for op in ops],
        [number for number, _ in numbered],
        [json_text(op.charges) if op.charges else None for op in ops],
    ]


def _retention(time: int | None) -> int:
    return FOREVER if time is None else time


def retention_columns(retention: RetentionByQueue, state: JobState) -> tuple[list[str], list[int], int]:
    """Return the queues with a retention of their own for the state, these times, and that of others."""
    own = [_retention(times.of(state)) for times in retention.queues.values()]
    return list(retention.queues), own, _retention(retention.default.of(state))


CLAIM_COLUMNS = (
    "id, queue, task, payload, headers, tenant, priority, attempts, max_attempts, epoch, enqueued_at, "
    "run_at, claimed_at, lease_expires_at, expires_at, last_error, cancel_requested, turn, limits"
)
JOB_COLUMNS = (
    "state, finished_at, errors, dedup_key, dedup_until, worker, claim, result, progress, limited_by, "
    + CLAIM_COLUMNS
)
KEY, QUEUE, TASK, PAYLOAD, HEADERS, PRIORITY, ATTEMPTS, LIMITS = 0, 1, 2, 3, 4, 6, 7, 18
"""Positions in ``CLAIM_COLUMNS``."""


def claimed_job(row: Row, worker: str | None, claim: bytes) -> Job:
    """Decode the columns of a claim. Raise ``Corrupt`` if they can't be decoded.

    Fields that every claim has are positional, and the others are set where they differ from the default:
    keywords for all of them would cost each claim half a microsecond. A slice of the driver's row is a tuple,
    which is faster to unpack.
    """
    (key, queue, task, payload, headers, tenant, priority, attempts, max_attempts, epoch, enqueued, run,
     claimed, lease, expires, last_error, cancel_requested, turn, limits) = row[: LIMITS + 1]  # fmt: skip
    job = Job(
        key, queue, task, payload, {} if headers is None else _decoded(_decode_headers, headers, "headers"),
        tenant, priority, RUNNING, attempts, max_attempts, epoch, enqueued, run, claimed, lease,
    )  # fmt: skip
    job.worker = worker
    job.claim = claim
    if expires is not None:
        job.expires_us = expires
    if last_error is not None:
        job.last_error = last_error
    if cancel_requested:
        job.cancel_requested = True
    if turn:
        job.turn = turn
    if limits is not None:
        job.limits = _decoded(_decode_limits, limits, "limits")
    return job


def full_job(row: Row) -> Job:
    """Decode the columns of a job. Headers that are corrupt are left out and reported in ``last_error``."""
    state, finished, errors, dedup_key, dedup_until, worker, claim, result, progress, limited_by, *rest = row
    claim = claim or NO_CLAIM
    try:
        job = claimed_job(rest, worker, claim)
    except Corrupt as error:
        rest[HEADERS] = rest[LIMITS] = None
        job = claimed_job(rest, worker, claim)
        job.last_error = job.last_error or corrupt_text(str(error))
    job.state = _STATES.get(state, JobState.DEAD)
    job.finished_us = finished
    failures = [_readable(_decode_failure, text) for text in errors or ()]
    job.errors = tuple([failure for failure in failures if failure is not None])
    job.dedup_key = dedup_key
    job.dedup_until = "settled" if dedup_until == "settled" else "claimed"
    job.result = result
    job.progress = _readable(_decode_progress, progress)
    job.limited_by = limited_by
    return job


def split_topics(reply: Sequence[str]) -> tuple[list[str], set[Topic]]:
    """Return a reply without the texts of ``leave_limits``, and the topics that these stand for."""
    rest: list[str] = []
    topics: set[Topic] = set()
    for text in reply:
        if not text.startswith(_TOPIC):
            rest.append(text)
        else:
            _, state, queue = text.split(" ", 2)
            topics.add(queue_topic(queue) if state == JobState.PENDING.value else DUE)
    return rest, topics


def ended_jobs(reply: Sequence[str], error: str) -> list[EndedJob]:
    """Return the jobs in a reply of ``end_claims``, ``expire``, ``cancel`` or ``requeue``."""
    return [
        EndedJob(id_key(id), queue, task, old_state, state, attempts, error)
        for id, queue, task, old_state, state, attempts in map(_decode_ended, reply)
    ]


def quarantined_job(row: Row, error: str) -> EndedJob:
    """Return a claimed job that is quarantined. The attempt does not count."""
    key, queue, task, attempts = row[KEY], row[QUEUE], row[TASK], max(row[ATTEMPTS] - 1, 0)
    return EndedJob(key, queue, task, JobState.PENDING, JobState.DEAD, attempts, error)


def _decoded(decode: Callable[[str], Value], text: str, name: str) -> Value:
    try:
        return decode(text)
    except UNDECODABLE as error:
        raise Corrupt(f"the {name} can't be decoded ({error})") from None


def _readable(decode: Callable[[str], Value], text: str | None) -> Value | None:
    """Return the decoded value, or None: a part that can't be decoded must not hold up the job."""
    try:
        return None if text is None else decode(text)
    except UNDECODABLE:
        return None
