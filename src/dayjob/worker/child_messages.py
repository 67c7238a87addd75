"""Messages between a worker and its child processes: msgpack in frames, never pickle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, msgpack, structs

from dayjob.broker.validation import error_text
from dayjob.model.durations import to_seconds_or_none
from dayjob.model.job import Job, JobState, NewJob
from dayjob.model.lifecycle import Transition
from dayjob.model.settlement import Settlement
from dayjob.runtime.stop_signal import Reason
from dayjob.worker.executor import AnyTask, OnUnknown

_HEAD = 4
_NOT_CLAIMED = {"errors", "progress", "result"}
_JOB_FIELDS = tuple(
    name for name in Job.__struct_fields__ if not name.startswith("_") and name not in _NOT_CLAIMED
)
"""The fields that a claim may fill in."""


class Message(Struct, array_like=True, tag=True):
    """The base of all messages."""


# From the worker.


class Start(Message):
    """Run this job. The child imports these modules in turn until one has registered the task."""

    modules: Sequence[str]
    task: str
    raw: bool
    app: tuple[str, str]
    job: dict[str, Any]
    cancelled: Reason | None
    shutting_down: Reason | None
    log_levels: dict[str, int]
    """The levels of the worker's loggers that have one of their own. The root logger's name is empty."""
    on_unknown: OnUnknown


class Cancelled(Message):
    """Stop the running job."""

    reason: Reason
    requested: bool


class ShuttingDown(Message):
    """The worker stops."""

    reason: Reason


# From the child.


class FromRun(Message):
    """A message of a run. The worker ignores it unless this is the claim that the child runs."""

    claim: bytes


class Started(FromRun):
    """The child started the job. From here on, the end of the process ends the attempt."""


class Called(FromRun):
    """The child calls the handler: the modules are imported, and the lifespan is entered."""


class Progressed(FromRun):
    fraction: float
    text: str


class Logged(Message):
    """A log record of any logger. A record of ``ctx.log`` has the fields of its job."""

    record: dict[str, Any]


class FollowUp(NewJob, frozen=True):
    """A ``NewJob`` with one wire type for each field, so that decoding checks it."""

    delay: float | None = None
    expires: float | datetime | None = None
    id: str | None = None


class Ended(FromRun):
    """The outcome of the job."""

    transition: Transition
    error: str | None
    delay: float | None
    result: bytes | None
    enqueue: list[FollowUp]
    kv: dict[bytes, bytes] | None
    charges: dict[str, int] | None = None


FromWorker = Start | Cancelled | ShuttingDown
FromChild = Started | Called | Progressed | Logged | Ended

from_worker: Callable[[bytes], FromWorker] = msgpack.Decoder(FromWorker).decode
from_child: Callable[[bytes], FromChild] = msgpack.Decoder(FromChild).decode


class Frames:
    """Splits a stream of bytes into messages, each preceded by its length."""

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


def claim_of(job: Job) -> bytes:
    """Return the name of a claim in messages: the job's key and the key of its claim."""
    return job.key + job.claim


def packed_job(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _JOB_FIELDS}


def unpacked_job(fields: dict[str, Any]) -> Job:
    return Job(**{**fields, "state": JobState(fields["state"])})


def packed(settlement: Settlement) -> Ended:
    """Return the message of a settlement. Raise if a follow-up job or a kv write is invalid."""
    error = settlement.error
    ended = Ended(
        claim=claim_of(settlement.job),
        transition=settlement.transition,
        error=None
        if error is None
        else error_text(error if isinstance(error, BaseException) else str(error)),
        delay=to_seconds_or_none(settlement.delay, "delay"),
        result=settlement.result,
        enqueue=[_follow_up(job) for job in settlement.enqueue],
        kv=None if settlement.kv is None else dict(settlement.kv),
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
        enqueue=ended.enqueue,
        kv=ended.kv,
        retention=task.config.retention,
        charges=ended.charges,
    )


def _follow_up(job: NewJob) -> FollowUp:
    expires = job.expires
    fields = structs.asdict(job) | {
        "delay": to_seconds_or_none(job.delay, "delay"),
        "expires": expires if isinstance(expires, datetime) else to_seconds_or_none(expires, "expires"),
        "headers": None if job.headers is None else dict(job.headers),
        "kv": None if job.kv is None else dict(job.kv),
        "id": None if job.id is None else str(job.id),
    }
    return FollowUp(**fields)
