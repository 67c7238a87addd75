"""What a worker and its child processes say to each other: msgpack in frames, never pickle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, msgpack

from dayjob.broker.validation import error_text
from dayjob.model.durations import SECOND, Duration, to_micros
from dayjob.model.job import DedupUntil, Job, JobState, NewJob
from dayjob.model.lifecycle import Transition
from dayjob.model.settlement import Settlement
from dayjob.runtime.stop_signal import Reason
from dayjob.worker.outcome import AnyTask

_HEAD = 4
_CLAIMED = (
    "key", "queue", "task", "payload", "headers", "tenant", "priority", "state", "attempts", "max_attempts",
    "epoch", "enqueued_us", "run_us", "claimed_us", "lease_us", "expires_us", "last_error",
    "cancel_requested", "worker",
)  # fmt: skip
"""The fields that a claim fills in."""


class Message(Struct, array_like=True, tag=True):
    """The base of all that is said."""


# From the worker.


class Start(Message):
    """Run this job. The task is found by its name after importing these modules, the first that has it."""

    modules: Sequence[str]
    task: str
    raw: bool
    app: tuple[str, str]
    job: dict[str, Any]
    cancelled: Reason | None
    shutting_down: Reason | None
    log_level: int


class Cancelled(Message):
    """The running job is to stop."""

    reason: Reason
    requested: bool


class ShuttingDown(Message):
    """The worker stops."""

    reason: Reason


# From the child.


class Began(Message):
    """The job was taken: from here on, the end of the process is the end of its attempt."""


class Progressed(Message):
    fraction: float
    text: str


class Logged(Message):
    """A record of ``ctx.log``."""

    level: int
    text: str


class FollowUp(Struct, frozen=True, array_like=True):
    """A ``NewJob``, with times of one type each."""

    queue: str
    payload: bytes
    task: str
    priority: int | None
    run_at: datetime | None
    delay: float | None
    expires_in: float | None
    expires_at: datetime | None
    max_attempts: int | None
    dedup_key: str | None
    dedup_until: DedupUntil
    headers: dict[str, str] | None
    tenant: str | None
    kv: dict[bytes, bytes] | None
    id: str | None


class Ended(Message):
    """What came of the job."""

    transition: Transition
    error: str | None
    delay: float | None
    result: bytes | None
    enqueue: list[FollowUp]
    kv: dict[bytes, bytes] | None


FromWorker = Start | Cancelled | ShuttingDown
FromChild = Began | Progressed | Logged | Ended

_from_worker: msgpack.Decoder[FromWorker] = msgpack.Decoder(FromWorker)
_from_child: msgpack.Decoder[FromChild] = msgpack.Decoder(FromChild)


class Frames:
    """Cuts a stream of bytes into messages; each has its length before it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _HEAD:
            end = _HEAD + int.from_bytes(buffer[:_HEAD], "big")
            if len(buffer) < end:
                return
            frame = bytes(buffer[_HEAD:end])
            del buffer[:end]
            yield frame


def frame(message: Message) -> bytes:
    body = msgpack.encode(message)
    return len(body).to_bytes(_HEAD, "big") + body


def from_worker(data: bytes) -> FromWorker:
    return _from_worker.decode(data)


def from_child(data: bytes) -> FromChild:
    return _from_child.decode(data)


def packed_job(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _CLAIMED}


def unpacked_job(fields: dict[str, Any]) -> Job:
    return Job(**{**fields, "state": JobState(fields["state"])})


def packed(settlement: Settlement) -> Ended:
    """A settlement on its way to the worker; a follow-up that makes no sense is an error here."""
    error = settlement.error
    ended = Ended(
        settlement.transition,
        None if error is None else error_text(error if isinstance(error, BaseException) else str(error)),
        _seconds(settlement.delay, "delay"),
        settlement.result,
        [_packed_new_job(job) for job in settlement.enqueue],
        None if settlement.kv is None else dict(settlement.kv),
    )
    if ended.enqueue or ended.kv:
        from_child(msgpack.encode(ended))
    return ended


def unpacked(ended: Ended, task: AnyTask, job: Job) -> Settlement:
    return Settlement(
        job,
        ended.transition,
        error=ended.error,
        delay=ended.delay,
        result=ended.result,
        enqueue=[_unpacked_new_job(follow_up) for follow_up in ended.enqueue],
        kv=ended.kv,
        retention=task.config.retention,
    )


def _packed_new_job(job: NewJob) -> FollowUp:
    expires = job.expires
    at = expires if isinstance(expires, datetime) else None
    return FollowUp(
        job.queue, job.payload, job.task, job.priority, job.run_at, _seconds(job.delay, "delay"),
        None if isinstance(expires, datetime) else _seconds(expires, "expires"), at,
        job.max_attempts, job.dedup_key, job.dedup_until,
        None if job.headers is None else dict(job.headers), job.tenant,
        None if job.kv is None else dict(job.kv), None if job.id is None else str(job.id),
    )  # fmt: skip


def _unpacked_new_job(job: FollowUp) -> NewJob:
    return NewJob(
        job.queue, job.payload, job.task, job.priority, job.run_at, job.delay,
        job.expires_in if job.expires_at is None else job.expires_at,
        job.max_attempts, job.dedup_key, job.dedup_until, job.headers, job.tenant, job.kv, job.id,
    )  # fmt: skip


def _seconds(duration: Duration | None, name: str) -> float | None:
    return None if duration is None else to_micros(duration, name) / SECOND
