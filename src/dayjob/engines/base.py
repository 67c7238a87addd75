"""The contract between the broker and a storage engine.

Every verb takes many and does them in one round trip and one commit, all or nothing; a single
operation is a batch of one. What a verb gets is validated already, so a verb fails only as a whole
and only because of the storage: with ``EngineUnavailable`` (may be repeated), ``EngineFenced`` or
``Closed``. Answers come in the order of the questions.

``now`` is the time to act at, in microseconds since 1970; None means the engine's own clock, which
decides about leases, due times and retention. Delays and leases are therefore relative.

An engine publishes to its ``signals``, on the loop that opened it, after the commit: ``queue_topic``
when a job may have become claimable, ``job_topic`` when one may have finished, ``CANCEL`` when a
running job was asked to stop, ``DUE`` when the next due time may have become earlier, ``notes_topic`` when
notes were written that others are to hear of; or ``publish_all`` when it only knows that something changed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from dayjob.errors import EngineUnavailable
from dayjob.model.job import CancelOutcome, DedupUntil, Enqueued, Job, JobState, QueueStats
from dayjob.model.lifecycle import Transition
from dayjob.runtime.ids import new_key
from dayjob.runtime.signals import Signals

BATCH = 10_000
"""The most jobs that one commit takes in or hands out."""


class Contended(EngineUnavailable):
    """What was to be written is locked by somebody's open transaction; nothing was, and others may go on."""


class Capabilities(Struct, frozen=True):
    """What an engine can do beyond the verbs; a missing one gives a clear error or a documented fallback."""

    persistent: bool
    """Jobs outlive the process: they can be reopened, and are stored in encoded form."""

    multi_process: bool
    """Several processes may open the same URL at once."""

    transactional_enqueue: bool
    """``enqueue(connection=...)`` joins the caller's own database transaction."""

    knows_orphans: bool
    """``reap`` finds claims of processes that died on this host before their leases expire."""


class RetentionTimes(Struct, frozen=True):
    """How long a finished job is kept, in microseconds: 0 is not at all, None is for ever."""

    done: int | None = 0
    dead: int | None = None
    cancelled: int | None = 0

    def of(self, state: JobState) -> int | None:
        if state is JobState.DONE:
            return self.done
        return self.dead if state is JobState.DEAD else self.cancelled


class RetentionByQueue(Struct, frozen=True):
    """``Keep`` by queue, for verbs that meet jobs of any queue."""

    default: RetentionTimes
    queues: Mapping[str, RetentionTimes] = {}

    def of(self, queue: str) -> RetentionTimes:
        return self.queues.get(queue, self.default)


class Insertion(Struct, gc=False):
    """A validated job to be stored. At most one of each pair of times, absolute and relative, is set."""

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
    kv: Mapping[bytes, bytes] | None = None

    def times(self, now: int) -> tuple[int, int | None]:
        """When the job runs and when it expires, as instants."""
        run_at = now + (self.delay or 0) if self.run_at is None else self.run_at
        expires_at = self.expires_at if self.expires_in is None else now + self.expires_in
        return run_at, expires_at


class WaitingClaim:
    """Where jobs arrive that enqueues in other processes have claimed for a claim that waits.

    ``arrived`` is called with each; ``give_back`` gets those that come when nobody waits any more.
    """

    __slots__ = ("_arrived", "_jobs", "give_back", "left", "name")

    def __init__(self, arrived: Callable[[Job], None], give_back: Callable[[list[Job]], None]) -> None:
        self.name = new_key()
        self.left = False
        self._arrived = arrived
        self.give_back = give_back
        self._jobs: list[Job] = []

    def hand(self, job: Job) -> None:
        if self.left:
            self.give_back([job])
        else:
            self._jobs.append(job)
            self._arrived(job)

    def take(self, others: list[Job], limit: int) -> list[Job]:
        """What has arrived and the others, the limit at most."""
        if not self._jobs:
            return others
        jobs = self._jobs + others
        self._jobs = []
        self.give_back(jobs[limit:])
        return jobs[:limit]

    def leave(self) -> None:
        self.left = True
        self.give_back(self._jobs)
        self._jobs = []


class ClaimRequest(Struct, frozen=True):
    """At most ``limit`` jobs from the queues in the order given, each with the lease of its queue.

    With a ``seat``, whoever asks for one queue waits if there is nothing, and looks again when it is woken:
    an engine may claim a job for it meanwhile, and put it there.
    """

    queues: tuple[tuple[str, int], ...]
    limit: int
    worker: str | None
    waiting: WaitingClaim | None = None


class SettleOp(Struct, gc=False):
    """A settlement of the claim ``(key, epoch)``, ready to apply: delay resolved, texts cleaned.

    ``transition`` is one of ``lifecycle.SETTLEMENTS``. ``insert`` and ``kv`` are
    written only if it is applied.
    """

    key: bytes
    epoch: int
    transition: Transition
    retention: RetentionTimes
    error: str | None = None
    delay: int = 0
    result: bytes | None = None
    insert: tuple[Insertion, ...] = ()
    kv: Mapping[bytes, bytes] | None = None
    progress: tuple[float, str] | None = None

    @property
    def plain(self) -> bool:
        """Whether it is a success that leaves nothing behind."""
        return (
            self.transition is Transition.ACK and self.retention.done == 0 and not self.insert and not self.kv
        )


class Renewal(Struct, frozen=True, gc=False):
    """Set the lease of the claim ``(key, epoch)`` to ``lease`` microseconds from now."""

    key: bytes
    epoch: int
    lease: int


class Renewed(Struct, frozen=True, gc=False):
    """The new end of the lease, or None if the claim is no longer current."""

    lease_us: int | None
    cancel_requested: bool = False


class Progress(Struct, frozen=True, gc=False):
    """How far the run of the claim ``(key, epoch)`` is."""

    key: bytes
    epoch: int
    fraction: float
    message: str


class JobQuery(Struct, frozen=True):
    """Which jobs to list, in id order; ``after`` is an exclusive cursor in the direction of travel."""

    limit: int
    queue: str | None = None
    state: JobState | None = None
    task: str | None = None
    after: bytes | None = None
    newest_first: bool = False


class Reschedule(Struct, frozen=True):
    key: bytes
    run_at: int | None
    priority: int | None


class Document(Struct, frozen=True, gc=False):
    """A small record of dayjob's own: a schedule, a worker, who has the duties."""

    name: str
    value: bytes
    written_us: int
    """When it was written, by the engine's clock."""


class DocumentWrite(Struct, frozen=True, gc=False):
    """Replace what is noted under a kind and a name, if it is still as expected.

    ``kind`` is one of the broker's own words, ``name`` any text without NUL. None stands for no such note.
    """

    kind: str
    name: str
    expected: bytes | None
    value: bytes | None


class Diagnostic(Struct, frozen=True):
    """What ``dayjob doctor`` says of a storage: what was checked, and what to do if it is not well."""

    check: str
    level: Literal["ok", "warning", "error"]
    text: str
    remedy: str | None = None


class Engine(Protocol):
    """A storage backend, opened on one event loop and used from it only."""

    capabilities: Capabilities
    signals: Signals

    async def open(self) -> None:
        """Connect; create the layout or migrate an older one; refuse a newer one with ``ConfigError``."""
        ...

    async def close(self) -> None:
        """Finish what was begun and let go of the storage. Claims stay as they are."""
        ...

    async def insert(self, jobs: Sequence[Insertion], now: int | None = None) -> list[Enqueued]:
        """Store the jobs with their kv writes.

        A job whose id exists (answered with that id) or whose dedup key is held on its queue (answered
        with the holder's id) is not stored and its kv is not written; within the batch as well.
        """
        ...

    def insert_tx(
        self, connection: Any, jobs: Sequence[Insertion], now: int | None = None
    ) -> Coroutine[Any, Any, list[Enqueued]]:
        """``insert`` inside the open transaction of the caller's connection, which decides its fate.

        With a synchronous connection the coroutine ends without waiting, so that any thread can run it.
        """
        ...

    async def claim(self, requests: Sequence[ClaimRequest], now: int | None = None) -> list[list[Job]]:
        """Hand out pending jobs in ``(priority, id)`` order: running, attempts and epoch one up, lease set.

        Skips paused queues, and jobs whose ``expires_at`` has come before their first counted run. Lets go
        of dedup keys held until the claim. A record that can't be decoded ends dead and is passed over.
        """
        ...

    async def insert_and_claim(
        self, jobs: Sequence[Insertion], requests: Sequence[ClaimRequest], now: int | None = None
    ) -> tuple[list[Enqueued], list[list[Job]]]:
        """``insert``, then ``claim``, in one commit."""
        ...

    async def settle(self, ops: Sequence[SettleOp], now: int | None = None) -> list[JobState | None]:
        """Apply each verdict whose claim is current, by the rules of the lifecycle: the new state.

        None if the claim was lost; then nothing of the verdict was written.
        """
        ...

    async def renew(self, renewals: Sequence[Renewal], now: int | None = None) -> list[Renewed]:
        """Set new leases for the claims that are current; keeps a cancel request and tells of it."""
        ...

    async def record_progress(self, reports: Sequence[Progress]) -> None:
        """Store the progress of the claims that are current; a claim starts with none."""
        ...

    async def cancel(
        self, keys: Sequence[bytes], retention: RetentionByQueue, now: int | None = None
    ) -> list[CancelOutcome]:
        """End waiting jobs as cancelled; flag running ones."""
        ...

    async def cancel_requests(self) -> list[tuple[bytes, int]]:
        """The claims ``(key, epoch)`` of all running jobs that are asked to stop."""
        ...

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        """The full records."""
        ...

    async def find(self, listing: JobQuery) -> list[Job]:
        """Full records in id order."""
        ...

    async def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        """Full records of dead jobs, the latest failure first: by time of finish, then by id, downwards.

        ``before`` is the time and the id of the last one seen.
        """
        ...

    async def requeue(self, keys: Sequence[bytes], now: int | None = None) -> list[bool]:
        """Dead jobs become pending with no attempts, error, finish or expiry; false for any other job."""
        ...

    async def requeue_dead(self, queue: str, limit: int, now: int | None = None) -> int:
        """Requeue up to ``limit`` dead jobs of the queue, in id order; how many there were."""
        ...

    async def purge_dead(self, queue: str | None, limit: int) -> int:
        """Remove up to ``limit`` dead jobs, of the queue or of all; how many there were."""
        ...

    async def purge(self, keys: Sequence[bytes]) -> int:
        """Remove those of the jobs that are dead; how many they were."""
        ...

    async def reschedule(self, changes: Sequence[Reschedule], now: int | None = None) -> list[bool]:
        """Change due time or priority of waiting jobs; false for any other job."""
        ...

    async def stats(self, queues: Sequence[str] | None = None) -> dict[str, QueueStats]:
        """The counters of the queues (of all ever used, if None), in name order, without unknown ones."""
        ...

    async def position(self, key: bytes, limit: int) -> int:
        """How many pending jobs of its queue go before a pending job, counted up to ``limit``; else 0."""
        ...

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    async def kv_write(self, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put the values; None deletes."""
        ...

    async def pause(self, queue: str, paused: bool) -> None:
        """Stop or start handing out the queue's jobs, in all processes. The queue counts as used."""
        ...

    async def paused(self) -> set[str]: ...

    async def promote(
        self, limit: int, retention: RetentionByQueue, now: int | None = None
    ) -> tuple[int, int]:
        """Make due jobs pending, and cancel those that were not started before they expired.

        Up to ``limit`` of each kind; how many of each there were.
        """
        ...

    async def next_due(self, now: int | None = None) -> int | None:
        """Microseconds until the next job is due or expires (0 if one is), or None if there is none."""
        ...

    async def reap(self, limit: int, retention: RetentionByQueue, now: int | None = None) -> int:
        """End up to ``limit`` claims whose lease has expired or whose process is known to be gone."""
        ...

    async def reclaim(
        self, workers: Sequence[str], limit: int, retention: RetentionByQueue, now: int | None = None
    ) -> int:
        """End up to ``limit`` claims of workers that are gone, as if their leases had expired; how many."""
        ...

    async def sweep(self, limit: int, now: int | None = None) -> int:
        """Remove up to ``limit`` finished jobs whose time of removal has come."""
        ...

    async def sweep_finished(
        self, state: JobState, age: int, after: bytes | None, limit: int, now: int | None = None
    ) -> tuple[int, bytes | None]:
        """Remove jobs in ``state`` that finished ``age`` microseconds ago or earlier.

        Examines up to ``limit`` jobs after the cursor; how many it removed, and the next cursor or None.
        """
        ...

    async def documents(self, kind: str, now: int | None = None) -> tuple[int, list[Document]]:
        """The engine's time, and what is noted under the kind, in the order of the names' bytes."""
        ...

    async def compare_and_set(
        self,
        writes: Sequence[DocumentWrite],
        jobs: Sequence[Insertion] = (),
        announce: bool = False,
        now: int | None = None,
    ) -> bool:
        """Write the notes and ``insert`` the jobs, in one commit, if all notes are as expected; else nothing.

        No two of the writes are for the same note. ``announce`` publishes the ``notes_topic`` of their kinds.
        """
        ...

    async def diagnose(self) -> list[Diagnostic]:
        """The version of the layout, and the settings of the storage that jobs depend on."""
        ...
