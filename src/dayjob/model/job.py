"""The job model: the stored record, new jobs, and the replies of the broker.

Instants are stored as integers (microseconds since 1970, the fields that end in ``_us``). They become aware
UTC datetimes on access, so that a claim does not build ten of them.
"""

from __future__ import annotations

import re
from binascii import hexlify
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from struct import iter_unpack
from typing import TYPE_CHECKING, Literal, TypedDict
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from dayjob.errors import InvalidState
from dayjob.model.durations import Duration, to_datetime, to_datetime_or_none, to_micros
from dayjob.model.limits import QUEUE, Units, limit_name

if TYPE_CHECKING:
    from dayjob.broker.held_claims import CancelToken, HeldClaims

HIGH = 100
NORMAL = 1000
LOW = 10000
MAX_PRIORITY = 2**32 - 1

ERRORS_KEPT = 10

NO_CLAIM = bytes(16)
"""Stands for no claim. No claim has this key."""

LEASE_EXPIRED = "lease expired"
WORKER_GONE = "worker gone"

CRASHES = frozenset({LEASE_EXPIRED, WORKER_GONE})
"""The errors of runs that ended with their worker."""

DedupUntil = Literal["claimed", "settled"]
DedupScope = Literal["queue", "global"]
Latest = Literal["latest"]


_UUID = re.compile(r"(?:urn:uuid:|\{)?([0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12})\}?", re.I | re.A)


class JobState(StrEnum):
    """The state of a job. Every job is in exactly one."""

    SCHEDULED = "scheduled"
    PENDING = "pending"
    LIMITED = "limited"
    """Pending, and a limit has no room for it."""
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        return self in FINISHED


RUNNING = JobState.RUNNING
"""A global for code that each job passes: Python 3.11 calls a function for each access to a member."""

FINISHED = frozenset({JobState.DONE, JobState.DEAD, JobState.CANCELLED})
WAITING = frozenset({JobState.SCHEDULED, JobState.PENDING, JobState.LIMITED})


class CancelOutcome(StrEnum):
    """The result of a cancel."""

    REMOVED = "removed"
    REQUESTED = "requested"
    NOT_FOUND = "not_found"

    @property
    def acted(self) -> bool:
        return self is not CancelOutcome.NOT_FOUND


class Failure(Struct, frozen=True, array_like=True, gc=False):
    """One failed run, an item of ``Job.errors``."""

    attempt: int
    at_us: int
    worker: str | None
    message: str

    @property
    def time(self) -> datetime:
        return to_datetime(self.at_us)


class Job(Struct, weakref=True):
    """A durable record: a payload on a named queue, with a state.

    A claim fills in the fields that a run needs. ``get`` and the listings fill in all, including ``errors``,
    ``dedup_key`` and ``result``.
    """

    key: bytes
    queue: str
    task: str
    payload: bytes
    headers: dict[str, str]
    tenant: str | None
    priority: int
    state: JobState
    attempts: int
    max_attempts: int
    epoch: int
    """A number that grows with each claim, also if the id is used again. See ``Context.epoch``."""
    enqueued_us: int
    run_us: int
    claimed_us: int | None = None
    lease_us: int | None = None
    finished_us: int | None = None
    expires_us: int | None = None
    last_error: str | None = None
    errors: tuple[Failure, ...] = ()
    dedup_key: str | None = None
    dedup_until: DedupUntil = "claimed"
    cancel_requested: bool = False
    worker: str | None = None
    result: bytes | None = None
    progress: tuple[float, str] | None = None
    limits: Units = ()
    """The buckets that it takes room from while it runs, each with its units."""
    limited_by: str | None = None
    """The bucket that it waits for, if it is limited."""
    turn: int = 0
    """The place of the job on a fair queue, within its priority. 0 on other queues."""
    claim: bytes = NO_CLAIM
    """The key of the claim that the job runs under: the fence. Without meaning unless it runs."""
    _tokens: HeldClaims | None = None
    _token: CancelToken | None = None
    _watcher: Callable[[], None] | None = None
    """Called when a cancel is requested. A worker uses it instead of a token for each job."""

    @property
    def id(self) -> str:
        """The job's id: UUID text, lower case, dashed."""
        return id_text(self.key)

    @property
    def enqueued_at(self) -> datetime:
        return to_datetime(self.enqueued_us)

    @property
    def run_at(self) -> datetime:
        """The due time of the job."""
        return to_datetime(self.run_us)

    @property
    def claimed_at(self) -> datetime | None:
        return to_datetime_or_none(self.claimed_us)

    @property
    def lease_expires_at(self) -> datetime | None:
        return to_datetime_or_none(self.lease_us)

    @property
    def finished_at(self) -> datetime | None:
        return to_datetime_or_none(self.finished_us)

    @property
    def expires_at(self) -> datetime | None:
        return to_datetime_or_none(self.expires_us)

    @property
    def suspect(self) -> bool:
        """Whether its last run ended with the worker. The job may have caused the crash, so it runs alone."""
        return self.last_error in CRASHES and self.state not in FINISHED

    @property
    def cancel_token(self) -> CancelToken:
        """Fires when a cancel of this claim is requested, in any process."""
        if self._tokens is None:
            raise InvalidState(
                f"job {self.id} was not claimed by a broker in this process, so it has no cancel token: "
                "use the Job that claim() returned"
            )
        return self._tokens.token(self)

    def __repr__(self) -> str:
        return (
            f"Job(id={self.id!r}, queue={self.queue!r}, task={self.task!r}, state={self.state.value!r}, "
            f"attempts={self.attempts}/{self.max_attempts}, epoch={self.epoch})"
        )


class JobOptions(TypedDict, total=False):
    """The options of ``Broker.enqueue`` and of ``Task.using``: the fields of a ``NewJob``."""

    priority: int | None
    run_at: datetime | None
    delay: Duration | None
    expires: Duration | datetime | None
    max_attempts: int | None
    dedup_key: str | None
    dedup_until: DedupUntil
    dedup: Latest | None
    dedup_max_delay: Duration | None
    dedup_for: Duration | None
    dedup_scope: DedupScope
    headers: Mapping[str, str] | None
    tenant: str | None
    kv: Mapping[bytes, bytes] | None
    id: str | UUID | None
    limits: Sequence[str]
    units: Mapping[str, int] | None


class NewJob(Struct, frozen=True, gc=False):
    """A job to enqueue, with the options of ``Broker.enqueue``."""

    queue: str
    payload: bytes = b""
    task: str = ""
    priority: int | None = None
    run_at: datetime | None = None
    delay: Duration | None = None
    expires: Duration | datetime | None = None
    max_attempts: int | None = None
    dedup_key: str | None = None
    dedup_until: DedupUntil = "claimed"
    dedup: Latest | None = None
    """``"latest"``: a waiting holder of the key gets the payload and the run time of this job."""
    dedup_max_delay: Duration | None = None
    """With ``"latest"``: the run time of the holder never moves further than this from its enqueue."""
    dedup_for: Duration | None = None
    """The key is also held for this long from the enqueue, even if the job has ended."""
    dedup_scope: DedupScope = "queue"
    """``"global"``: one job holds the key over all queues."""
    headers: Mapping[str, str] | None = None
    tenant: str | None = None
    kv: Mapping[bytes, bytes] | None = None
    id: str | UUID | None = None
    limits: Sequence[str] = ()
    """The limits to take room from: ``name``, or ``name:key``. The limit of the queue is added."""
    units: Mapping[str, int] | None = None
    """How much it takes from each limit, by the name of the limit. 1 unless given."""
    reserve_id: bool = True
    """Whether the ``id`` is reserved. False: it is a new one, which no other job has."""


ATTEMPTS_HEADER = "dayjob-attempts"
"""Marks a job whose attempts are those of its task, in the code of the worker that runs it."""


def by_name(job: NewJob) -> NewJob:
    """Return the job for a caller without its task: unless given, its attempts are those of the task."""
    if not job.task or job.max_attempts is not None:
        return job
    return replace(job, headers={**(job.headers or {}), ATTEMPTS_HEADER: "task"})


def new_job_like(job: Job) -> NewJob:
    """Return a new job with the payload and the options of a stored one, due at once."""
    return NewJob(
        job.queue, job.payload, job.task, priority=job.priority, max_attempts=job.max_attempts,
        headers=job.headers, tenant=job.tenant,
        limits=[bucket for bucket, _ in job.limits if limit_name(bucket) != QUEUE],
        units={limit_name(bucket): units for bucket, units in job.limits},
    )  # fmt: skip


def check_dedup(dedup: object, max_delay: Duration | None, window: Duration | None, scope: object) -> None:
    """Raise ``ValueError`` or ``TypeError`` for options of dedup that can't be applied."""
    if dedup not in (None, "latest"):
        raise ValueError(f"dedup={dedup!r}: pass 'latest', or None to drop the new job")
    if scope not in ("queue", "global"):
        raise ValueError(f"dedup_scope={scope!r}: pass 'queue' or 'global'")
    if max_delay is not None:
        to_micros(max_delay, "dedup_max_delay")
        if dedup != "latest":
            raise ValueError(f"dedup_max_delay={max_delay!r} has no effect without dedup='latest': pass both")
    if window is not None and to_micros(window, "dedup_for") == 0:
        raise ValueError("dedup_for=0: pass some seconds, or None for no window")


class Enqueued(Struct, frozen=True, gc=False):
    """The reply to an enqueue. ``created`` is false if the id existed or was reserved, or the key held."""

    id: str
    created: bool


class Waited(Struct, frozen=True):
    """The reply to ``wait``. ``job`` is the stored record, or None if it is not kept."""

    status: Literal["completed", "timed_out", "not_found"]
    job: Job | None = None


class EndedJob(Struct, frozen=True, gc=False):
    """A job that changed its state without a worker: lease expired, worker gone, job expired, record corrupt,
    cancelled before it started, or requeued.

    ``state`` is pending if the job runs again. ``error`` is the reason.
    """

    key: bytes
    queue: str
    task: str
    old_state: JobState
    state: JobState
    attempts: int
    error: str

    @property
    def id(self) -> str:
        return id_text(self.key)


class QueueStats(Struct):
    """The number of jobs of a queue in each state. ``done`` counts all successes ever."""

    pending: int = 0
    scheduled: int = 0
    running: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    limited: int = 0


def id_text(key: bytes) -> str:
    """Return the 16 bytes of an id as dashed text."""
    text = key.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def id_texts(keys: Sequence[bytes]) -> list[str]:
    """Return ids as dashed texts, in half the time of ``id_text`` for each."""
    groups = iter_unpack("8s4s4s4s12s", hexlify(b"".join(keys)))
    return b",".join(map(b"-".join, groups)).decode().split(",") if keys else []


def id_key(id: str | UUID) -> bytes:
    """Return the 16 bytes of an id given in any spelling of a UUID."""
    if isinstance(id, UUID):
        return id.bytes
    if not isinstance(id, str):
        raise ValueError(f"id={id!r} is a {type(id).__name__}: pass a UUID, as text or as uuid.UUID")
    match = _UUID.fullmatch(id)
    if match is None:
        raise ValueError(f"id={id!r} is not a UUID: pass one, or leave out id to get a new one")
    return bytes.fromhex(match[1].replace("-", ""))


def explained(error: str) -> str:
    """Return the error. Add the meaning if it is one of ``CRASHES``."""
    meaning = ": the worker process died or was cut off while it ran the job"
    return error + meaning if error in CRASHES else error


def known_key(id: object) -> bytes | None:
    """Return the 16 bytes of an id, or None if it is not a UUID and so the id of no job."""
    try:
        return id_key(id)  # type: ignore[arg-type]
    except ValueError:
        return None
