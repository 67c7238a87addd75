"""The contract between the broker and a storage engine.

Every verb takes a batch and applies it in one round trip and one commit, all or nothing. A single
operation is a batch of one. The broker validates arguments before the call, so a verb fails only as a
whole and only because of the storage: with ``Transient`` (the broker repeats the call), another
``EngineUnavailable`` (final for this call), ``EngineFenced`` or ``Closed``. Replies come in the order of the
arguments.

A verb acts at the time of the clock that the engine was created with. Without one, an engine across a
network acts at the time of its server, which determines lease, due and retention times. Delays and leases
are therefore relative. Times are microseconds since 1970.

``token`` names a write. An engine across a network stores the reply with the token in the same commit. A
repeated call with that token gets the stored reply and changes nothing, so a lost reply never applies a
write twice. Engines without a network ignore it.

An engine publishes to its ``signals`` after the commit, on the loop that opened it: ``queue_topic`` when a
job may have become claimable, ``job_topic`` when one may have finished, ``CANCEL`` when a cancel was
requested for a running job, ``DUE`` when the next due time may have become earlier, ``documents_topic`` when
announced documents were written. It calls ``publish_all`` if the changed topics are unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

from dayjob.errors import EngineUnavailable
from dayjob.model.durations import SECOND
from dayjob.model.job import CancelOutcome, DedupUntil, EndedJob, Enqueued, Job, JobState, QueueStats
from dayjob.model.lifecycle import ACK, Transition
from dayjob.model.limits import LimitInfo, Units
from dayjob.runtime.ids import new_key
from dayjob.runtime.signals import Signals

Reply = TypeVar("Reply")

KvWrite = tuple[bytes, bytes | None]
"""A key and its value; None deletes."""

Death = tuple[int, bytes]
"""The finish time and the id of a dead job: a place in the order of their failures."""

BATCH = 10_000
"""The largest number of jobs in one commit."""

BATCH_BYTES = 8 * 1024 * 1024
"""The largest number of payload, result and kv bytes in one commit, unless a single item is larger."""

ID_RESERVATION = 3600 * SECOND
"""Microseconds after its insert for which an id that the caller gave counts as existing."""

LIMITS = "limit"
"""The kind of the documents with the stored limits, by name."""

MOST_BLOCKED = 1000
"""The largest number of jobs that one request of a claim moves to lines, by queue."""


class Transient(EngineUnavailable):
    """A try failed, and the next may succeed. The broker repeats the call with the same token.

    ``commit_unknown``: the write may have been applied before the failure, so the repetition must read
    the stored reply first.
    """

    def __init__(self, message: str, *, commit_unknown: bool = False) -> None:
        super().__init__(message)
        self.commit_unknown = commit_unknown


class Contended(EngineUnavailable):
    """An open transaction of another client locks the rows to write. This try changed nothing."""


class Token(Struct, frozen=True, gc=False):
    """The name of one write, the same for each try of it.

    ``key`` is unique. ``client``, ``slot`` and ``number`` let an engine bound its stored replies: a client
    has at most one write under way per slot, and ``number`` grows within it, so the last reply of each slot
    is enough. ``repeated`` is true if an earlier try may have been applied. The jobs that a write claims run
    under its ``key``. A job that Redis hands off runs under the name of its waiting claim.
    """

    key: bytes
    client: bytes
    slot: int
    number: int
    repeated: bool = False


def claim_key(token: Token | None) -> bytes:
    """Return the key of the claims that a call makes. One call never claims a job twice."""
    return new_key() if token is None else token.key


class Capabilities(Struct, frozen=True):
    """Optional features of an engine. A missing one raises an error or has a documented fallback."""

    persistent: bool = False
    """Jobs outlive the process: they can be reopened, and are stored in encoded form."""

    multi_process: bool = False
    """Several processes may open the same URL at once."""

    transactional_enqueue: bool = False
    """``enqueue(connection=...)`` joins the caller's own database transaction."""

    knows_orphans: bool = False
    """``reap`` finds claims of processes that died on this host before their leases expire."""

    stores_replies: bool = False
    """The reply of every write is stored with its token, because the network may lose it on the way."""

    concurrent_commits: bool = False
    """Other writes go on while one waits for its commit."""

    claim_batch: int = BATCH
    """The most jobs that a worker claims at once."""


class RetentionTimes(Struct, frozen=True):
    """How long a finished job is kept, in microseconds: 0 removes it at once, None keeps it indefinitely."""

    done: int | None = 0
    dead: int | None = None
    cancelled: int | None = 0

    def of(self, state: JobState) -> int | None:
        if state is JobState.DONE:
            return self.done
        return self.dead if state is JobState.DEAD else self.cancelled


class RetentionByQueue(Struct, frozen=True):
    """``RetentionTimes`` by queue, for verbs that change jobs of any queue."""

    default: RetentionTimes = RetentionTimes()
    queues: Mapping[str, RetentionTimes] = {}

    def of(self, queue: str) -> RetentionTimes:
        return self.queues.get(queue, self.default)


class Insertion(Struct, gc=False):
    """A validated job to store. Of each pair of times, absolute and relative, at most one is set."""

    key: bytes
    queue: str
    task: str
    payload: bytes
    priority: int
    max_attempts: int
    headers: dict[str, str]
    tenant: str | None = None
    run_at: int | None = None
    delay: int | None = None
    expires_at: int | None = None
    expires_in: int | None = None
    dedup_key: str | None = None
    dedup_until: DedupUntil = "claimed"
    dedup_latest: bool = False
    """Whether a waiting holder of the key gets the call and the due time of this job."""
    dedup_max_delay: int | None = None
    dedup_for: int | None = None
    """How long its key has a window."""
    dedup_global: bool = False
    kv: Mapping[bytes, bytes] | None = None
    limits: Units = ()
    fair: tuple[str, int] | None = None
    """On a fair queue: the tenant, and the turns that one of its jobs takes."""
    max_pending: int | None = None
    turn: int = 0
    """The engine sets it, for a fair queue."""
    limited_by: str | None = None
    """The engine sets it, for a job that joins a line."""
    reserve_id: bool = False
    """Whether the caller gave the id, so that it is reserved for ``ID_RESERVATION``."""

    @property
    def debounced(self) -> bool:
        """Whether it may replace the call of a waiting job, or opens a window."""
        return self.dedup_latest or self.dedup_for is not None

    @property
    def dedup_scope(self) -> str:
        """The queue on which one job holds the dedup key; empty for all queues."""
        return "" if self.dedup_global else self.queue

    @property
    def window(self) -> bytes:
        """The name of its key's window: a hash, of the size of an id."""
        return sha256(f"{self.dedup_scope}\0{self.dedup_key}".encode()).digest()[:16]

    def state(self, now: int) -> JobState:
        """Return the state of the new job."""
        if self.limited_by is not None:
            return JobState.LIMITED
        return JobState.SCHEDULED if self.times(now)[0] > now else JobState.PENDING

    def times(self, now: int) -> tuple[int, int | None]:
        """Return the due time and the expiry as instants."""
        run_at = now + (self.delay or 0) if self.run_at is None else self.run_at
        expires_at = self.expires_at if self.expires_in is None else now + self.expires_in
        return run_at, expires_at


class WaitingClaim:
    """A claim that waits, and the jobs that were claimed for it meanwhile.

    ``event`` wakes it. ``on_job`` is called for each delivered job. ``give_back`` releases the jobs that are
    delivered after the claim was closed, or beyond its limit. ``handoff`` is pending while an insert in this
    process claims for it. With ``is_last`` its time is over: it claims once more, and no job is claimed for
    it from then on.
    """

    __slots__ = ("_jobs", "_on_job", "closed", "event", "give_back", "handoff", "is_last", "name", "request")

    def __init__(
        self,
        event: asyncio.Event,
        on_job: Callable[[Job], None],
        give_back: Callable[[list[Job]], None],
    ) -> None:
        self.name = new_key()
        self.closed = False
        self.is_last = False
        self.event = event
        self.request: ClaimRequest | None = None
        self.handoff: asyncio.Future[None] | None = None
        self._on_job = on_job
        self.give_back = give_back
        self._jobs: list[Job] = []

    def deliver(self, job: Job) -> None:
        if self.closed:
            self.give_back([job])
        else:
            self._jobs.append(job)
            self._on_job(job)
            self.event.set()

    def take(self, others: list[Job], limit: int) -> list[Job]:
        """Return the delivered jobs and the others, up to the limit."""
        if not self._jobs:
            return others
        jobs = self._jobs + others
        self._jobs = []
        self.give_back(jobs[limit:])
        return jobs[:limit]

    def close(self) -> None:
        """Give back the jobs that are left, and end the cycle with the request: no garbage is left."""
        self.closed = True
        self.request = None
        self.give_back(self._jobs)
        self._jobs = []


class ClaimRequest(Struct, frozen=True):
    """Claim at most ``limit`` jobs from the queues in the order given, each with the lease of its queue.

    With ``waiting``, the caller waits if there is no job and claims again after a signal. An engine may
    claim a job for it in between and deliver it there.
    """

    queues: tuple[tuple[str, int], ...]
    limit: int
    worker: str | None
    waiting: WaitingClaim | None = None


class SettleOp(Struct, gc=False):
    """A settlement of the claim ``(key, claim)``, ready to apply: delay resolved, texts cleaned.

    ``transition`` is one of ``lifecycle.SETTLEMENTS``. ``insert`` and ``kv`` are written only if the
    settlement is applied.
    """

    key: bytes
    claim: bytes
    transition: Transition
    retention: RetentionTimes
    error: str | None = None
    delay: int = 0
    result: bytes | None = None
    insert: tuple[Insertion, ...] = ()
    kv: Mapping[bytes, bytes] | None = None
    progress: tuple[float, str] | None = None
    max_attempts: int | None = None
    """The limit to store for the job, with a nack. None: as it is."""
    charges: Units = ()
    """Units to add to the rates of buckets of the job, less than 0 to give units back."""

    @property
    def plain(self) -> bool:
        """Whether this is an ack of a job that is not kept, without follow-up jobs or kv writes."""
        return (
            self.transition is ACK
            and self.retention.done == 0
            and not (self.insert or self.kv or self.charges)
        )


class Renewal(Struct, frozen=True, gc=False):
    """Set the lease of the claim ``(key, claim)`` to ``lease`` microseconds from now."""

    key: bytes
    claim: bytes
    lease: int


class Renewed(Struct, frozen=True, gc=False):
    """The new end of the lease, or None if the claim is no longer current."""

    lease_us: int | None
    cancel_requested: bool = False


class Progress(Struct, frozen=True, gc=False):
    """The progress of the run of the claim ``(key, claim)``."""

    key: bytes
    claim: bytes
    fraction: float
    message: str


class JobQuery(Struct, frozen=True):
    """Which jobs to list, in id order. ``after`` is an exclusive cursor in the direction of travel."""

    limit: int
    queue: str | None = None
    state: JobState | None = None
    task: str | None = None
    after: bytes | None = None
    newest_first: bool = False


class Reschedule(Struct, frozen=True):
    """Set the due time or the priority of a waiting job; None leaves the value as it is."""

    key: bytes
    run_at: int | None
    priority: int | None


class Document(Struct, frozen=True, gc=False):
    """A small record that the broker keeps: a schedule, a worker, the lead, a sample of counters."""

    name: str
    value: bytes
    written_us: int
    """The time of the last write, by the engine's clock."""


class DocumentWrite(Struct, frozen=True, gc=False):
    """A compare-and-set of the document with this kind and name. None stands for no document.

    ``kind`` is a constant of the broker, ``name`` any text without NUL.
    """

    kind: str
    name: str
    expected: bytes | None
    value: bytes | None


class Diagnostic(Struct, frozen=True):
    """One finding of ``dayjob doctor`` about a storage, with the remedy if something is wrong."""

    check: str
    level: Literal["ok", "warning", "error"]
    text: str
    remedy: str | None = None


class Engine(Protocol):
    """A storage backend, opened on one event loop and used from it only."""

    capabilities: Capabilities
    signals: Signals
    timeout: float
    """Seconds for which the broker repeats a call that fails with ``Transient``."""
    retention: RetentionByQueue
    """How long finished jobs are kept, unless a settlement has its own times. The broker sets it."""
    ended: deque[EndedJob]
    """Jobs that calls of this engine have quarantined, cancelled before they started, or requeued. The broker
    takes them out and reports them."""
    skipped: set[bytes]
    """Keys of the jobs of ``settle`` and ``compare_and_set`` that were not stored: the id existed, or the
    dedup key was held. The broker takes them out."""

    def __init__(self, timeout: float = 0.0) -> None:
        self.signals = Signals()
        self.timeout = timeout
        self.retention = RetentionByQueue()
        self.ended = deque()
        self.skipped = set()

    async def open(self) -> None:
        """Connect; create the layout or migrate an older one; refuse a newer one with ``ConfigError``."""

    async def close(self) -> None:
        """Finish the calls under way and release the storage. Claims stay as they are."""

    async def insert(self, jobs: Sequence[Insertion], token: Token | None = None) -> list[Enqueued]:
        """Store the jobs with their kv writes.

        A job is not stored, and its kv is not written, if its id exists (the reply has that id), its dedup
        key is held in its scope (the reply has the holder's id), or the key has a window (the reply has the
        id of its job). Earlier jobs of the batch count. With ``dedup_latest``, a waiting holder gets the call
        and the due time of the job: see ``docs/design/0026-debounce-and-windows.md``. Raise
        ``QueueFull``, and store nothing, if a queue would have more pending and limited jobs than the
        ``max_pending`` of its jobs. Each new job that is due counts. A job with limits may join a line: see
        ``docs/design/0025-flow-control.md``. A job with ``reserve_id`` reserves its id in the same commit.
        Until the reservation ends, the id counts as existing for such jobs, even if the job was removed.
        """

    def insert_tx(self, connection: Any, jobs: Sequence[Insertion]) -> Coroutine[Any, Any, list[Enqueued]]:
        """``insert`` inside the open transaction of the caller's connection, which commits or rolls back.

        With a synchronous connection the coroutine ends without waiting, so that any thread can run it.
        """

    async def claim(self, requests: Sequence[ClaimRequest], token: Token | None = None) -> list[list[Job]]:
        """Claim pending jobs in ``(priority, turn, id)`` order.

        A job with limits gets room in all of them in this commit, or joins the line of the first one without
        room and is limited.

        Sets the state to running, increments attempts, sets the lease, and stores the key of the token as the
        job's claim. The epoch becomes the time in microseconds, or one more than before if that is larger.
        Skips paused queues, and jobs whose ``expires_at`` passed before their first counted run. Releases
        dedup keys held until the claim. Quarantines a record that can't be decoded and claims another. A
        request ends when its payloads reach ``BATCH_BYTES``, so that the size of a reply is bounded.
        """

    async def insert_and_claim(
        self, jobs: Sequence[Insertion], requests: Sequence[ClaimRequest], token: Token | None = None
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        """``insert``, then ``claim``, in one call.

        One commit where that is faster, else two. If the claim fails, the jobs are stored and none is
        claimed.
        """

    def wake_others(self, queues: Sequence[str]) -> None:
        """Wake claims of other processes, as a new job does: these queues may have jobs that are left.

        Without effect where a new job wakes every waiting claim.
        """

    async def settle(self, ops: Sequence[SettleOp], token: Token | None = None) -> list[JobState | None]:
        """Apply each settlement whose claim is current, by the rules of the lifecycle. Return the new states.

        None means that the claim was lost; then nothing of that settlement was written. Every verb that ends
        a run gives its room back and wakes the lines of its limits, in the same commit.
        """

    async def renew(self, renewals: Sequence[Renewal], token: Token | None = None) -> list[Renewed]:
        """Set new leases for the claims that are current. A cancel request stays, and is in the reply."""

    async def record_progress(self, reports: Sequence[Progress], token: Token | None = None) -> None:
        """Store the progress of the claims that are current. A new claim starts with none."""

    async def cancel(self, keys: Sequence[bytes], token: Token | None = None) -> list[CancelOutcome]:
        """End waiting jobs as cancelled; store a cancel request for running ones."""

    async def cancel_requests(self) -> list[tuple[bytes, bytes]]:
        """Return the claims ``(key, claim)`` of all running jobs with a cancel request."""

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        """Return the full records."""

    async def find(self, query: JobQuery) -> list[Job]:
        """Return full records in id order."""

    async def find_dead(self, queue: str | None, before: Death | None, limit: int) -> list[Job]:
        """Return full records of dead jobs, the latest failure first: by finish time, then by id, descending.

        ``before`` is an exclusive cursor: the finish time and the id of the last one seen.
        """

    async def requeue(self, keys: Sequence[bytes], token: Token | None = None) -> list[bool]:
        """Make dead jobs pending, without attempts, error, finish time or expiry. False for any other job."""

    async def requeue_dead(self, queue: str, limit: int, token: Token | None = None) -> int:
        """Requeue up to ``limit`` dead jobs of the queue, in id order. Return their number."""

    async def purge_dead(self, queue: str | None, limit: int, token: Token | None = None) -> int:
        """Remove up to ``limit`` dead jobs, of the queue or of all queues. Return their number."""

    async def purge(self, keys: Sequence[bytes], token: Token | None = None) -> int:
        """Remove those of the jobs that are dead. Return their number."""

    async def reschedule(self, changes: Sequence[Reschedule], token: Token | None = None) -> list[bool]:
        """Change the due time or the priority of waiting jobs. False for any other job."""

    async def stats(self) -> dict[str, QueueStats]:
        """Return the counters of every queue ever used, in name order."""

    async def pending_queues(self) -> list[str]:
        """Return the queues with pending jobs, in name order. Idle queues should cost little."""

    async def position(self, key: bytes, limit: int) -> int:
        """Count the pending jobs of its queue that precede a pending job, up to ``limit``; else 0.

        For a limited job, count the jobs of its queue that precede it in its line.
        """

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    async def kv_write(self, writes: Sequence[KvWrite], token: Token | None = None) -> None:
        """Put the values, and delete the keys without one."""

    async def pause(self, queue: str, paused: bool, token: Token | None = None) -> None:
        """Stop or start claims from the queue, in all processes. The queue counts as used."""

    async def paused(self) -> set[str]: ...

    async def promote(self, limit: int, token: Token | None = None) -> tuple[int, list[EndedJob]]:
        """Make due jobs pending, wake due lines, and cancel jobs that expired before they started.

        Up to ``limit`` of each kind. Return how many jobs became pending, and the jobs that ended.
        """

    async def next_due(self) -> int | None:
        """Return microseconds until the next job or line is due or the next job expires: 0 if one is.

        None if there is none.
        """

    async def reap(
        self, limit: int, expired_by: int | None = None, token: Token | None = None
    ) -> list[EndedJob]:
        """End up to ``limit`` claims whose lease had expired at ``expired_by``, or whose process is gone.

        None stands for now, and so does a later time: the clock may have been set back since the caller read
        it, and renewals written. With 0 no lease has expired, so only claims of dead processes end. With a
        time, the call succeeds only while renewals can be written, even if there is no claim to end.
        """

    async def reclaim(self, workers: Sequence[str], limit: int, token: Token | None = None) -> list[EndedJob]:
        """End up to ``limit`` claims of dead workers, as if their leases had expired."""

    async def sweep(
        self, limit: int, over_by: int | None = None, token: Token | None = None
    ) -> tuple[int, int]:
        """Remove finished jobs whose retention was over at ``over_by``, and ended reservations.

        Those are reservations of ids, and windows of dedup keys. None stands for now. Up to ``limit`` jobs
        and as many reservations. Return the number of each.
        """

    async def sweep_finished(
        self, state: JobState, age: int, after: bytes | None, limit: int, token: Token | None = None
    ) -> tuple[int, bytes | None]:
        """Remove jobs in ``state`` that finished ``age`` microseconds ago or earlier.

        Examines up to ``limit`` jobs after the cursor. Return the number removed, and the next cursor if any.
        """

    async def set_limit(self, name: str, value: bytes | None, token: Token | None = None) -> int:
        """Write the document ``(LIMITS, name)`` and wake the lines of its buckets, up to ``BATCH`` jobs.

        None removes it. Return the number of jobs that became pending. Repeat the call if it is ``BATCH``.
        """

    async def limits(self) -> list[LimitInfo]:
        """Return the stored limits by name, each with the units and the limited jobs of all its buckets."""

    async def bucket_due(self, name: str) -> int | None:
        """Return the time at which the next job of a bucket's lines gets its tokens, if one waits."""

    async def documents(self, kind: str) -> tuple[int, list[Document]]:
        """Return the engine's time, and the documents of the kind, in the byte order of their names."""

    async def compare_and_set(
        self,
        writes: Sequence[DocumentWrite],
        jobs: Sequence[Insertion] = (),
        announce: bool = False,
        token: Token | None = None,
    ) -> bool:
        """Write the documents and ``insert`` the jobs in one commit, if all documents are as expected.

        Return False, and write nothing, otherwise. No two writes are for the same document. ``announce``
        publishes the ``documents_topic`` of their kinds.
        """

    async def diagnose(self) -> list[Diagnostic]:
        """Return the version of the layout, and the settings of the storage that jobs depend on."""
