"""The store port on one SQLite connection, inside a transaction that the caller begins and ends.

The same code serves the writer thread, the reader thread and a caller's own connection. Changed records are
buffered and written in few statements by ``flush``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain

from dayjob.engines import record as records
from dayjob.engines import verbs
from dayjob.engines.base import MOST_BLOCKED, Document, Insertion, KvWrite, SettleOp
from dayjob.engines.record import Corrupt, Record
from dayjob.engines.sqlite import rows
from dayjob.engines.sqlite.queries import Queries
from dayjob.engines.sqlite.rows import Row
from dayjob.engines.sqlite.statements import insert_chunks, insert_of, key_chunks, keyed, statement
from dayjob.model.job import Job, JobState
from dayjob.runtime.process import Process, is_gone
from dayjob.runtime.signals import queue_topic

_NO_QUEUE = 0

_BLOCKED_WIDTH = 100
"""The number of jobs that a claim reads at once, after jobs without room."""


class Owner:
    """The process that claims, and the id of its row in ``dayjob_owners``. All its engines share the row."""

    def __init__(self, process: Process) -> None:
        identity = f"{process.host}\0{process.pid}\0{process.started}"
        self.process = process
        self.id = int.from_bytes(sha256(identity.encode()).digest()[:8]) >> 2
        self.claimed = False
        """Whether this engine has claimed jobs, and so added the row."""


class SqliteStore(Queries):
    """One database through one connection. Claims made through it belong to ``owner``."""

    def __init__(self, connection: sqlite3.Connection, owner: Owner) -> None:
        super().__init__(connection)
        self.owner = owner
        self._saved: list[Row] = []
        self._removed: list[bytes] = []
        self._leases: list[Row] = []
        self._progress: list[Row] = []
        self._gone: list[int] = []
        """Owners to remove with their last claim."""

    def _each(self, name: str, keys: Sequence[bytes], *given: object) -> list[Row]:
        """Run a statement for the keys in chunks, with these parameters before them. Return all rows."""
        found: list[Row] = []
        for width, some in key_chunks(keys):
            found += self._cursor.execute(keyed(name, width), (*given, *some)).fetchall()
        return found

    def flush(self) -> None:
        self._each("remove", self._removed)
        self._removed.clear()
        changes = {"save": self._saved, "save_lease": self._leases, "save_progress": self._progress}
        for name, changed in changes.items():
            if changed:
                self._cursor.executemany(statement(name), changed)
                changed.clear()
        for owner in self._gone:
            self.remove_owner(owner)
        self._gone.clear()

    def discard(self) -> None:
        super().discard()
        for buffer in (self._saved, self._removed, self._leases, self._progress, self._gone):
            buffer.clear()

    # New jobs.

    def add_all(self, jobs: Sequence[Insertion], times: Sequence[tuple[int, int | None]], now: int) -> bool:
        self.flush()
        seen: set[bytes] = set()
        values = [
            rows.insertion_row(job, self._queue_of(job, seen), *at, now)
            for job, at in zip(jobs, times, strict=True)
        ]
        self._cursor.execute("SAVEPOINT dayjob_insert")
        complete = all(
            self._cursor.execute(insert_of(len(some)), [*chain(*some)]).rowcount == len(some)
            for some in insert_chunks(values)
        )
        if not complete:
            self._cursor.execute("ROLLBACK TO dayjob_insert")
        self._cursor.execute("RELEASE dayjob_insert")
        return complete

    def _queue_of(self, job: Insertion, seen: set[bytes]) -> int:
        """Return the id of the job's queue. A job that exists, or is in the batch, adds no new queue."""
        found = self._queue_id(job.queue)
        if found is None and (job.key in seen or self._exists(job.key)):
            return _NO_QUEUE
        seen.add(job.key)
        return self._make_queue_id(job.queue) if found is None else found

    def add(self, job: Insertion, run_at: int, expires_at: int | None, now: int) -> bytes | None:
        self.flush()
        if job.dedup_key is not None:
            other = self._holder(rows.ALL_QUEUES, job) if job.dedup_global else None
            if other is None and (found := self._one("window", job.window, now)) is not None:
                other = found[0]
            if other is not None:
                return job.key if self._exists(job.key) else other
        queue_id = self._queue_of(job, set())
        if queue_id == _NO_QUEUE:
            return job.key
        row = rows.insertion_row(job, queue_id, run_at, expires_at, now)
        insert = insert_of(1)
        if job.limits or job.fair is not None or job.dedup_global:
            insert, row = insert_of(1, rows.PLACED_INSERT_COLUMNS), rows.placed_row(row, job)
        if self._cursor.execute(insert, row).rowcount == 1:
            return None
        if self._exists(job.key):
            return job.key
        holder = self._holder(queue_id, job)
        assert holder is not None, "an insert that conflicts with nothing"
        return holder

    def _holder(self, scope: int, job: Insertion) -> bytes | None:
        row = self._one("holder", scope, job.dedup_key)
        return None if row is None else row[0]

    def _exists(self, key: bytes) -> bool:
        return self._one("exists", key) is not None

    def reserved_ids(self, keys: Sequence[bytes], now: int) -> Collection[bytes]:
        return {row[0] for row in self._each("reserved_ids", keys, now)}

    def reserve_ids(self, keys: Sequence[bytes], until: int) -> None:
        self._cursor.executemany(statement("reserve_id"), [(key, until, None) for key in keys])

    def hold_key(self, job: Insertion, until: int) -> None:
        self._execute("reserve_id", job.window, until, job.key)

    def replace_call(self, key: bytes, job: Insertion) -> int:
        row = self._one("enqueued_at", key)
        assert row is not None
        self._execute("replace_call", *rows.call_row(job), key)
        return rows.int_or(row[0], 0)

    def free_ids(self, limit: int, now: int) -> int:
        ended = self._keys("ended_reservations", now, limit)
        self._each("free_ids", ended)
        return len(ended)

    # Jobs by id.

    def load(self, keys: Sequence[bytes]) -> Mapping[bytes, Record]:
        return {row[0]: rows.record(row, self._queue_name(row[1])) for row in self._each("load", keys)}

    def _load_in_order(self, keys: Sequence[bytes]) -> list[Record]:
        found = self.load(keys)
        return [found[key] for key in dict.fromkeys(keys) if key in found]

    def save(self, record: Record, before: JobState) -> None:
        if record.removed:
            self._removed.append(record.key)
        else:
            self._saved.append(rows.record_row(record))

    def save_lease(self, record: Record) -> None:
        self._leases.append((record.lease_us, record.key))

    def save_progress(self, record: Record) -> None:
        self._progress.append((rows.progress_value(record.progress), record.key))

    def remove(self, record: Record) -> None:
        self._removed.append(record.key)

    def tasks(self, records: Sequence[Record]) -> list[str]:
        found: dict[bytes, object] = dict(self._each("tasks", [record.key for record in records]))
        tasks = [found[record.key] for record in records]
        return [task if isinstance(task, str) else "" for task in tasks]

    # Claims.

    async def claim_from(
        self, queue: str, limit: int, room: int, lease: int, worker: str | None, key: bytes, now: int
    ) -> list[Job]:
        if self._queue_id(queue) is None:
            return []
        jobs, blocked, width = list[Job](), 0, limit
        while True:
            found = self._candidates(queue, width, room, lease, worker, key, now)
            admitted = found
            if any(job.limits for job in found):
                admitted, examined = self._admitted(found, limit - len(jobs), now)
                blocked += examined - len(admitted)
            elif width > limit - len(jobs):
                found = admitted = found[: limit - len(jobs)]
            self._claim(admitted, lease, worker, key, now)
            if admitted is found:
                return jobs + found
            jobs += admitted
            room -= sum(len(job.payload) for job in admitted)
            if blocked >= MOST_BLOCKED:
                self.topics.add(queue_topic(queue))
            if len(found) < width or len(jobs) == limit or room <= 0 or blocked >= MOST_BLOCKED:
                return jobs
            width = max(limit - len(jobs), _BLOCKED_WIDTH)
            self.flush()

    def _admitted(self, found: Sequence[Job], limit: int, now: int) -> tuple[list[Job], int]:
        """Take room for the jobs in order. Return up to ``limit`` that got it, and how many were tried."""
        limiter = self.limiter(now)
        admitted: list[Job] = []
        for examined, job in enumerate(found):
            if len(admitted) == limit:
                return admitted, examined
            place = (job.priority, job.turn, job.key)
            blocked_by = limiter.take(job.limits, job.queue, place) if job.limits else None
            if blocked_by is None:
                admitted.append(job)
            else:
                limiter.block(self.load([job.key])[job.key], blocked_by)
        return admitted, len(found)

    def _candidates(
        self, queue: str, limit: int, room: int, lease: int, worker: str | None, key: bytes, now: int
    ) -> list[Job]:
        jobs: list[Job] = []
        corrupt: dict[bytes, str] = {}
        left = room
        for row in self._execute("candidates", self._queue_id(queue), now, limit):
            try:
                job = rows.claimed_job(row, queue, now, lease, worker, key)
            except Corrupt as error:
                corrupt[row[0]] = str(error)
                continue
            jobs.append(job)
            left -= len(job.payload)
            if left <= 0:
                break
        if not corrupt:
            return jobs
        found = self._load_in_order(list(corrupt))
        verbs.quarantine(self, now, [(record, corrupt[record.key]) for record in found])
        self.flush()
        return self._candidates(queue, limit, room, lease, worker, key, now)

    def _claim(self, jobs: Sequence[Job], lease: int, worker: str | None, key: bytes, now: int) -> None:
        if jobs:
            process = self.owner.process
            self._execute("add_owner", self.owner.id, process.host, process.pid, process.started)
            self.owner.claimed = True
        given = (now, key, now, now + lease, worker, self.owner.id)
        self._each("claim", [job.key for job in jobs], *given)

    def ack_plain(self, ops: Sequence[SettleOp], now: int) -> list[str | None]:
        """Most settlements are plain acks. They need the fence and a delete, not the record."""
        found = {row[0]: row for row in self._each("fence", [op.key for op in ops])}
        queues: list[str | None] = []
        for op in ops:
            row = found.pop(op.key, None)
            if row is None or not records.current(row[2], row[3], op.claim):
                queues.append(None)
            else:
                queues.append(self._queue_name(row[1]))
                if row[4] is not None:
                    self.limiter(now).give_back(rows.decode_limits(row[4]))
                self._removed.append(op.key)
        return queues

    async def claimed_by(self, workers: Sequence[str], limit: int) -> Sequence[Record]:
        found: list[bytes] = []
        for width, some in key_chunks(list(dict.fromkeys(workers))):
            held = self._cursor.execute(keyed("claims_of", width), (*some, limit - len(found)))
            found += [row[0] for row in held.fetchall()]
        return self._load_in_order(found)

    async def cancel_requests(self) -> list[tuple[bytes, bytes]]:
        return self._execute("cancel_requests").fetchall()

    # Jobs by time.

    def next_due(self) -> int | None:
        row = self._one("next_due")
        return min((time for time in row or () if time is not None), default=None)

    async def expired(self, limit: int, now: int) -> Sequence[Record]:
        return self._load_in_order(self._keys("expired", now, limit))

    def due(self, limit: int, now: int) -> Sequence[Record]:
        self.flush()
        return self._load_in_order(self._keys("due", now, limit))

    async def lapsed(self, limit: int, now: int) -> Sequence[Record]:
        keys = self._keys("lapsed", now, limit)
        self._gone = self._gone_owners()
        for owner in self._gone:
            keys += self._keys("orphans", owner, limit)
        return self._load_in_order(list(dict.fromkeys(keys))[:limit])

    async def removable(self, limit: int, now: int) -> Sequence[Record]:
        return self._load_in_order(self._keys("removable", now, limit))

    async def finished_in(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int
    ) -> Sequence[Record]:
        return self._load_in_order(await self.finished_keys(state, queue, after, limit))

    # Checks for work. They run on the reader, so that a duty without work does not take the write lock.

    async def must_reap(self, expired_by: int) -> bool:
        return bool(self._keys("lapsed", expired_by, 1)) or bool(self._gone_owners())

    async def must_sweep(self, now: int) -> bool:
        return any(self._keys(name, now, 1) for name in ("removable", "ended_reservations"))

    # Owners.

    def remove_owner(self, owner: int) -> None:
        self._execute("remove_owner", owner)

    def _gone_owners(self) -> list[int]:
        """Return the owners whose process is gone; and those of other hosts that have no claims.

        A process of another host can't be examined. If it lives, its next claim adds the row again.
        """
        here = self.owner.process.host
        owners = self._execute("owners", here, here).fetchall()
        return [id for id, is_here, pid, started in owners if not is_here or is_gone(pid, started)]

    async def position(self, key: bytes, limit: int) -> int:
        row = self._one("position", key, limit, key, limit)
        assert row is not None
        position: int = row[0]
        return position

    # Kv pairs and documents.

    async def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None if (row := self._one("kv_get", key)) is None else row[0] for key in keys]

    def kv_write(self, writes: Iterable[KvWrite]) -> None:
        for key, value in writes:
            if value is None:
                self._execute("kv_delete", key)
            else:
                self._execute("kv_put", key, value)

    def document(self, kind: str, name: str) -> bytes | None:
        row = self._one("document", kind, name)
        return None if row is None else row[0]

    def write_document(self, kind: str, name: str, value: bytes | None, now: int) -> None:
        if value is None:
            self._execute("remove_document", kind, name)
        else:
            self._execute("write_document", kind, name, now, value)

    async def documents(self, kind: str) -> list[Document]:
        return [Document(*row) for row in self._execute("documents", kind).fetchall()]
