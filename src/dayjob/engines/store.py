"""The store port: the operations on stored jobs that the verbs are written over.

Three engines implement it: memory, SQLite and SlateDB. A store only stores. The verbs (``engines.verbs``)
apply the rules of the lifecycle, move the counters and collect the topics to publish.

SlateDB may have to read from its object store in the operations that are coroutines. Memory and SQLite
never wait in them, so ``run_now`` runs a verb to its end. Verbs of one store never run at the same time. A
read may fail, so a verb awaits all its reads before its first change.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dayjob.engines.base import Death, Document, Insertion, JobQuery, KvWrite, Reply, SettleOp
from dayjob.engines.limits import Limiter, LimitStore
from dayjob.engines.record import Record
from dayjob.model.job import EndedJob, Job, JobState, QueueStats
from dayjob.runtime.signals import Topic

Deltas = Mapping[tuple[str, JobState], int]
"""Changes of the counters, by queue and state."""


class Store(LimitStore, Protocol):
    """The jobs, counters, kv pairs and documents of one storage."""

    topics: set[Topic]
    """The topics to publish after the commit."""
    quarantined: list[EndedJob]
    """Jobs that were quarantined. The next claim takes them out."""
    _limiter: Limiter | None

    def __init__(self) -> None:
        self.topics = set()
        self.quarantined = []
        self._limiter = None

    # Limits and turns.

    def limiter(self, now: int) -> Limiter:
        """Return the limits of the verb that runs."""
        if self._limiter is None:
            self._limiter = Limiter(self, now)
        return self._limiter

    def finish_limits(self) -> None:
        """Apply the wake-ups of the verb. It calls this after its last change."""
        if self._limiter is not None:
            self._limiter.finish()
            self._limiter = None

    def backlog(self, queue: str) -> int:
        """Return the number of pending and limited jobs of a queue."""

    def next_turn(self, queue: str, tenant: str) -> int:
        """Return the turn of the tenant's next job: that of the queue, or a later one."""

    def save_turn(self, queue: str, tenant: str | None, turn: int) -> None:
        """Store the first turn that is free for the tenant, or the turn of the queue. It never goes back."""

    # New jobs.

    async def prepare_insert(self, jobs: Iterable[Insertion]) -> None:
        """Read which of the ids exist, and the jobs to replace, if ``add`` can't do so itself."""
        return

    def add_all(self, jobs: Sequence[Insertion], times: Sequence[tuple[int, int | None]], now: int) -> bool:
        """Store jobs without dedup keys in one operation, or none if an id exists. Return whether it did.

        ``times`` are the due time and the expiry of each. A store may decline with False.
        """
        return False

    def add(self, job: Insertion, run_at: int, expires_at: int | None, now: int) -> bytes | None:
        """Store the job. If its id exists or its dedup key is held, store nothing and return the other id."""

    def reserved_ids(self, keys: Sequence[bytes], now: int) -> Collection[bytes]:
        """Return those of the ids that are reserved."""

    def reserve_ids(self, keys: Sequence[bytes], until: int) -> None: ...

    def hold_key(self, job: Insertion, until: int) -> None:
        """Open a window for the dedup key of a new job."""

    def replace_call(self, key: bytes, job: Insertion) -> int:
        """Give a waiting job the call of the new one: its task, its payload and all that belongs to them.

        Return the time at which the waiting job was enqueued.
        """

    def free_ids(self, limit: int, now: int) -> int:
        """Remove reservations of ids and keys that have ended. Return their number."""

    # Jobs by id. A record is changed in place and then saved.

    def load(self, keys: Sequence[bytes]) -> Mapping[bytes, Record]:
        """Return the records of those of the jobs that wait or run, and maybe of other jobs."""

    async def load_finished(self, keys: Sequence[bytes]) -> Mapping[bytes, Record]:
        """Return the records of those of the jobs that are finished, and maybe of other jobs."""
        return self.load(keys)

    def tasks(self, records: Sequence[Record]) -> list[str]:
        """Return the tasks of jobs that a verb ends. A name that can't be decoded is empty."""

    async def prepare_finish(self, keys: Sequence[bytes]) -> None:
        """Read the data that ``save`` needs to store these jobs as finished."""
        return

    def save_lease(self, record: Record) -> None:
        """Store the new lease of a running job."""

    def save_progress(self, record: Record) -> None:
        """Store the new progress of a running job."""

    def remove(self, record: Record) -> None:
        """Delete a finished job."""

    # Claims.

    async def claim_from(
        self, queue: str, limit: int, room: int, lease: int, worker: str | None, key: bytes, now: int
    ) -> list[Job]:
        """Claim pending jobs that have not expired under the key, in ``(priority, turn, id)`` order.

        A job with limits is claimed only if ``limiter(now).admit`` takes room for it. After ``MOST_BLOCKED``
        jobs without room, stop and add the queue's topic, so that the claim is repeated. Stop when the
        payloads reach ``room`` bytes. Quarantine records that can't be decoded.
        """

    def ack_plain(self, ops: Sequence[SettleOp], now: int) -> list[str | None] | None:
        """Delete the jobs of plain acks whose claims are current. Return the queue of each, None if lost.

        Give back the room of those with limits.
        A store without a fast path for this declines with None.
        """
        return None

    async def claimed_by(self, workers: Sequence[str], limit: int) -> Sequence[Record]:
        """Return running jobs of the workers."""

    async def cancel_requests(self) -> list[tuple[bytes, bytes]]: ...

    # Jobs by time. Each is returned once: the verb changes or removes it.

    def next_due(self) -> int | None:
        """Return the time at which the next scheduled job or line is due or the next waiting job expires."""

    async def expired(self, limit: int, now: int) -> Sequence[Record]:
        """Return waiting jobs whose expiry has passed before a counted run."""

    def due(self, limit: int, now: int) -> Sequence[Record]:
        """Return scheduled jobs that are due."""

    async def lapsed(self, limit: int, now: int) -> Sequence[Record]:
        """Return running jobs whose lease has expired or whose process is known to be gone."""

    async def removable(self, limit: int, now: int) -> Sequence[Record]:
        """Return finished jobs whose retention is over."""

    async def finished_in(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int
    ) -> Sequence[Record]:
        """Return finished jobs in the state, in id order after the cursor."""

    # Listings.

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]: ...

    async def find(self, query: JobQuery) -> list[Job]: ...

    async def find_dead(self, queue: str | None, before: Death | None, limit: int) -> list[Job]: ...

    async def position(self, key: bytes, limit: int) -> int: ...

    # Queues.

    async def stats(self) -> dict[str, QueueStats]: ...

    def pause(self, queue: str, paused: bool) -> None:
        """Store whether the queue is paused. A new queue is added."""

    def is_paused(self, queue: str) -> bool: ...

    async def paused(self) -> set[str]: ...

    # Kv pairs and documents.

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def kv_write(self, writes: Iterable[KvWrite]) -> None: ...

    def document(self, kind: str, name: str) -> bytes | None: ...

    def write_document(self, kind: str, name: str, value: bytes | None, now: int) -> None: ...

    async def documents(self, kind: str) -> list[Document]: ...


def run_now(verb: Coroutine[Any, Any, Reply]) -> Reply:
    """Run a coroutine that never waits to its end, without an event loop."""
    try:
        verb.send(None)
    except StopIteration as stop:
        reply: Reply = stop.value
        return reply
    verb.close()
    raise RuntimeError(f"{verb!r} waits, but its store can't")
