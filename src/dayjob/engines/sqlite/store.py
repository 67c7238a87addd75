"""The verbs of the engine on one SQLite connection, inside a transaction that the caller begins and ends.

The same code serves the writer thread and a caller's own connection. It notes in ``topics`` what is
worth a look once the transaction has committed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

from dayjob.engines import record as records
from dayjob.engines.base import (
    ClaimRequest,
    Document,
    DocumentWrite,
    Insertion,
    JobQuery,
    Progress,
    Renewal,
    Renewed,
    Reschedule,
    RetentionByQueue,
    SettleOp,
)
from dayjob.engines.record import Record, Tally
from dayjob.engines.sqlite import rows
from dayjob.engines.sqlite.changes import Changes
from dayjob.engines.sqlite.documents import Documents
from dayjob.engines.sqlite.listing import Lister
from dayjob.engines.sqlite.queues import Queues
from dayjob.engines.sqlite.rows import Row
from dayjob.engines.sqlite.statements import (
    Statements,
    insert_chunks,
    insert_of,
    key_chunks,
    keyed,
    statement,
)
from dayjob.model.job import CancelOutcome, Enqueued, Job, JobState, QueueStats, id_text
from dayjob.model.lifecycle import LEASE_EXPIRED, WORKER_GONE
from dayjob.runtime.process import Process, is_gone
from dayjob.runtime.signals import CANCEL, DUE, Topic, documents_topic, queue_topic

Answer = TypeVar("Answer")

_NO_QUEUE = 0


class Store:
    """All that is in one database, as one connection sees it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._cursor = connection.cursor()
        self._cursor.row_factory = None
        self._statements = statements = Statements(self._cursor)
        self._queues = Queues(statements)
        self._lister = Lister(statements, self._queues)
        self._notes = Documents(statements)
        self.topics: set[Topic] = set()

    def forget(self) -> None:
        """After a rollback: drop what was learned or noted in it."""
        self._queues.forget()
        self.topics.clear()

    # Queues.

    def stats(self) -> dict[str, QueueStats]:
        return self._queues.stats()

    def pause(self, queue: str, paused: bool) -> None:
        self._queues.pause(queue, paused)
        if not paused:
            self.topics.add(queue_topic(queue))

    def paused(self) -> set[str]:
        return self._queues.paused()

    # In.

    def insert(self, jobs: Sequence[Insertion], now: int) -> list[Enqueued]:
        seen: set[bytes] = set()
        values = [rows.insertion_row(job, self._queue_for(job, seen), now) for job in jobs]
        plain = not any(job.dedup_key is not None or job.kv for job in jobs)
        if plain and len(jobs) > 1 and self._insert_all(values):
            created = [Enqueued(id_text(job.key), True) for job in jobs]
        else:
            created = [self._insert_one(job, row) for job, row in zip(jobs, values, strict=True)]
        self._announce_new(jobs, values, created)
        return created

    def _queue_for(self, job: Insertion, seen: set[bytes]) -> int:
        """The id of the job's queue. A job that exists, or is in the batch, makes no new queue known."""
        found = self._queues.id_of(job.queue)
        if found is None and (job.key in seen or self._statements.one("exists", job.key) is not None):
            return _NO_QUEUE
        seen.add(job.key)
        return self._queues.own_id_of(job.queue) if found is None else found

    def _insert_all(self, values: list[Row]) -> bool:
        """All jobs in one sweep; if any of them was there already, none."""
        self._cursor.execute("SAVEPOINT dayjob_insert")
        whole = all(
            self._cursor.execute(insert_of(len(some)), [*chain(*some)]).rowcount == len(some)
            for some in insert_chunks(values)
        )
        if not whole:
            self._cursor.execute("ROLLBACK TO dayjob_insert")
        self._cursor.execute("RELEASE dayjob_insert")
        return whole

    def _insert_one(self, job: Insertion, row: Row) -> Enqueued:
        if row[1] == _NO_QUEUE and self._statements.one("exists", job.key) is None:
            # Its namesake in the batch was not stored, as another job holds that one's dedup key.
            row = (row[0], self._queues.own_id_of(job.queue), *row[2:])
        if self._cursor.execute(insert_of(1), row).rowcount == 1:
            self._put(job.kv.items() if job.kv else ())
            return Enqueued(id_text(job.key), True)
        if self._statements.one("exists", job.key) is not None:
            return Enqueued(id_text(job.key), False)
        holder = self._statements.one("holder", row[1], job.dedup_key)
        assert holder is not None, "an insert that conflicts with nothing"
        return Enqueued(id_text(holder[0]), False)

    def _announce_new(self, jobs: Sequence[Insertion], values: list[Row], created: list[Enqueued]) -> None:
        tally = Tally()
        for job, row, answer in zip(jobs, values, created, strict=True):
            if answer.created:
                state = JobState.PENDING if row[2] == "pending" else JobState.SCHEDULED
                tally.add(job.queue, state)
                if state is JobState.SCHEDULED or row[7] is not None:
                    self.topics.add(DUE)
        for queue, state in tally.deltas:
            if state is JobState.PENDING:
                self.topics.add(queue_topic(queue))
        self._queues.count(tally)

    # Out.

    def claim(self, request: ClaimRequest, owner: int, now: int) -> list[Job]:
        claimed: list[Job] = []
        tally = Tally()
        for queue, lease in request.queues:
            limit = request.limit - len(claimed)
            queue_id = self._queues.id_of(queue)
            if limit > 0 and queue_id is not None and self._statements.one("is_paused", queue_id) == (0,):
                jobs = self._candidates(queue, queue_id, limit, lease, request.worker, now)
                for width, keys in key_chunks([job.key for job in jobs]):
                    self._cursor.execute(
                        keyed("claim", width), (now, now + lease, request.worker, owner, *keys)
                    )
                tally.add(queue, JobState.PENDING, -len(jobs))
                tally.add(queue, JobState.RUNNING, len(jobs))
                claimed += jobs
        self._queues.count(tally)
        return claimed

    def _candidates(
        self, queue: str, queue_id: int, limit: int, lease: int, worker: str | None, now: int
    ) -> list[Job]:
        """The next jobs of a queue. What can't be decoded is set aside as dead until it is purged."""
        while True:
            jobs: list[Job] = []
            corrupt: dict[bytes, str] = {}
            for row in self._statements.execute("candidates", queue_id, now, limit).fetchall():
                try:
                    jobs.append(rows.claimed_job(row, queue, now, lease, worker))
                except rows.Corrupt as error:
                    corrupt[row[0]] = rows.corrupt_text(str(error))
            if not corrupt:
                return jobs
            changes = Changes()
            for record in self._load(list(corrupt)):
                records.quarantine(record, corrupt[record.key], now)
                changes.add(record, JobState.PENDING)
            self._store(changes)

    def settle(self, ops: Sequence[SettleOp], now: int) -> list[JobState | None]:
        if all(op.plain for op in ops):
            return self._settle_plain(ops)
        found = {record.key: record for record in self._load([op.key for op in ops])}
        changes = Changes()
        states: list[JobState | None] = []
        for op in ops:
            record = found.get(op.key)
            if record is None or not records.settle(record, op, now):
                states.append(None)
                continue
            changes.add(record, JobState.RUNNING)
            states.append(record.state)
            if op.insert:
                changes = self._store(changes)
                self.insert(op.insert, now)
            if op.kv:
                self._put(op.kv.items())
        self._store(changes)
        return states

    def _settle_plain(self, ops: Sequence[SettleOp]) -> list[JobState | None]:
        """Successes that leave nothing behind, which are most: they need no more than the fence."""
        found: dict[bytes, Row] = {}
        for width, keys in key_chunks([op.key for op in ops]):
            for row in self._cursor.execute(keyed("fence", width), keys).fetchall():
                found[row[0]] = row
        changes = Changes()
        states: list[JobState | None] = []
        for op in ops:
            row = found.pop(op.key, None)
            if row is None or not records.current(row[2], row[3], op.epoch):
                states.append(None)
                continue
            changes.succeed(op.key, self._queues.name_of(row[1]))
            states.append(JobState.DONE)
        self._store(changes)
        return states

    def renew(self, renewal: Renewal, now: int) -> Renewed:
        lease = now + renewal.lease
        if self._statements.execute("renew", lease, renewal.key, renewal.epoch).rowcount == 0:
            return Renewed(None)
        (record,) = self._load([renewal.key])
        return Renewed(lease, record.cancel_requested)

    def record_progress(self, reports: Sequence[Progress]) -> None:
        self._cursor.executemany(statement("report"), map(rows.report_row, reports))

    # Records.

    def _load(self, keys: Sequence[bytes]) -> list[Record]:
        """The records of those keys that there are, in the order of their keys' first mention."""
        found: dict[bytes, Record] = {}
        for width, some in key_chunks(keys):
            for row in self._cursor.execute(keyed("load", width), some).fetchall():
                found[row[0]] = rows.record(row, self._queues.name_of(row[1]))
        return [found[key] for key in dict.fromkeys(keys) if key in found]

    def _store(self, changes: Changes) -> Changes:
        """Write what records became, count them, and note who may want to know; a fresh ``Changes``."""
        for width, keys in key_chunks(changes.removed):
            self._cursor.execute(keyed("remove", width), keys)
        if changes.saved:
            self._cursor.executemany(statement("save"), changes.saved)
        self._queues.count(changes.tally)
        self.topics |= changes.topics
        return Changes()

    def _change(
        self, keys: Sequence[bytes], change: Callable[[Record], Answer], unknown: Answer
    ) -> list[Answer]:
        """Apply a change to each record, store those that it altered, and answer for each key."""
        found = {record.key: record for record in self._load(keys)}
        changes = Changes()
        answers = []
        for key in keys:
            record = found.get(key)
            if record is None:
                answers.append(unknown)
                continue
            before = record.state
            answer = change(record)
            answers.append(answer)
            if answer != unknown:
                changes.add(record, before)
        self._store(changes)
        return answers

    def cancel(self, keys: Sequence[bytes], retention: RetentionByQueue, now: int) -> list[CancelOutcome]:
        outcomes = self._change(
            keys,
            lambda record: records.cancel(record, retention.of(record.queue), now),
            CancelOutcome.NOT_FOUND,
        )
        if CancelOutcome.REQUESTED in outcomes:
            self.topics.add(CANCEL)
        return outcomes

    def requeue(self, keys: Sequence[bytes], now: int) -> list[bool]:
        return self._change(keys, lambda record: records.requeue(record, now), False)

    def reschedule(self, changes: Sequence[Reschedule], now: int) -> list[bool]:
        wanted = {change.key: change for change in changes}
        return self._change(
            [change.key for change in changes],
            lambda record: records.reschedule(record, wanted[record.key], now),
            False,
        )

    # Duties.

    def promote(self, limit: int, retention: RetentionByQueue, now: int) -> tuple[int, int]:
        changes = Changes()
        expired = self._load(self._statements.keys("expired", now, limit))
        for record in expired:
            before = record.state
            records.expire(record, retention.of(record.queue), now)
            changes.add(record, before)
        changes = self._store(changes)
        due = self._load(self._statements.keys("due", now, limit))
        for record in due:
            records.promote(record, now)
            changes.add(record, JobState.SCHEDULED)
        self._store(changes)
        return len(due), len(expired)

    def next_due(self, now: int) -> int | None:
        row = self._statements.one("next_due")
        times = [time for time in row or () if time is not None]
        return max(min(times) - now, 0) if times else None

    def must_reap(self, here: Process, now: int) -> bool:
        """Whether there is anything to reap, told without writing."""
        return bool(self._statements.keys("lapsed", now, 1)) or bool(self._gone(here))

    def reap(self, here: Process, limit: int, retention: RetentionByQueue, now: int) -> int:
        keys = self._statements.keys("lapsed", now, limit)
        gone = self._gone(here)
        for owner in gone:
            keys += self._statements.keys("orphans", owner, limit)
        ended = self._lapse(list(dict.fromkeys(keys))[:limit], retention, now, LEASE_EXPIRED)
        for owner in gone:
            self.remove_owner(owner)
        return ended

    def must_reclaim(self, workers: Sequence[str]) -> bool:
        """Whether any of the workers has a claim, told without writing."""
        return bool(self._claims_of(workers, 1))

    def reclaim(self, workers: Sequence[str], limit: int, retention: RetentionByQueue, now: int) -> int:
        return self._lapse(self._claims_of(workers, limit), retention, now, WORKER_GONE)

    def _claims_of(self, workers: Sequence[str], limit: int) -> list[bytes]:
        found: list[bytes] = []
        for width, some in key_chunks(list(dict.fromkeys(workers))):
            held = self._cursor.execute(keyed("claims_of", width), (*some, limit - len(found)))
            found += [row[0] for row in held.fetchall()]
        return found

    def _lapse(self, keys: Sequence[bytes], retention: RetentionByQueue, now: int, reason: str) -> int:
        """End claims without their workers."""
        changes = Changes()
        ended = self._load(keys)
        for record in ended:
            records.lapse(record, retention.of(record.queue), now, reason)
            changes.add(record, JobState.RUNNING)
        self._store(changes)
        return len(ended)

    def must_sweep(self, now: int) -> bool:
        """Whether there is anything to sweep, told without writing."""
        return bool(self._statements.keys("removable", now, 1))

    def sweep(self, limit: int, now: int) -> int:
        return self._drop(self._statements.keys("removable", now, limit))

    def sweep_finished(
        self, state: JobState, age: int, after: bytes | None, limit: int, now: int
    ) -> tuple[int, bytes | None]:
        keys = self._lister.finished_keys(state, None, after, limit)
        old = [
            record.key
            for record in self._load(keys)
            if record.finished_us is not None and record.finished_us <= now - age
        ]
        return self._drop(old), keys[-1] if len(keys) == limit else None

    def purge_dead(self, queue: str | None, limit: int) -> int:
        return self._drop(self._lister.finished_keys(JobState.DEAD, queue, None, limit))

    def purge(self, keys: Sequence[bytes]) -> int:
        return self._drop([record.key for record in self._load(keys) if record.state is JobState.DEAD])

    def requeue_dead(self, queue: str, limit: int, now: int) -> int:
        return sum(self.requeue(self._lister.finished_keys(JobState.DEAD, queue, None, limit), now))

    def _drop(self, keys: Sequence[bytes]) -> int:
        """Remove kept jobs and their counts."""
        dropped = self._load(keys)
        changes = Changes()
        for record in dropped:
            changes.drop(record)
        self._store(changes)
        return len(dropped)

    # Owners.

    def add_owner(self, process: Process) -> int:
        owner = self._statements.execute("add_owner", process.host, process.pid, process.started).lastrowid
        assert owner is not None
        return owner

    def remove_owner(self, owner: int) -> None:
        self._statements.execute("remove_owner", owner)

    def _gone(self, here: Process) -> list[int]:
        owners = self._statements.execute("owners", here.host).fetchall()
        return [id for id, pid, started in owners if is_gone(pid, started)]

    # Looking.

    def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        return self._lister.get(keys)

    def cancel_requests(self) -> list[tuple[bytes, int]]:
        return self._statements.execute("cancel_requests").fetchall()

    def find(self, listing: JobQuery) -> list[Job]:
        return self._lister.find(listing)

    def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        return self._lister.find_dead(queue, before, limit)

    def position(self, key: bytes, limit: int) -> int:
        row = self._statements.one("ahead", key, limit)
        assert row is not None
        ahead: int = row[0]
        return ahead

    # Notes.

    def documents(self, kind: str) -> list[Document]:
        return self._notes.of(kind)

    def compare_and_set(
        self, writes: Sequence[DocumentWrite], jobs: Sequence[Insertion], announce: bool, now: int
    ) -> bool:
        if not self._notes.are_as_expected(writes):
            return False
        self._notes.write(writes, now)
        self.insert(jobs, now)
        if announce:
            self.topics.update(documents_topic(write.kind) for write in writes)
        return True

    # Values.

    def kv_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None if (row := self._statements.one("kv_get", key)) is None else row[0] for key in keys]

    def kv_write(self, writes: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in writes:
            if value is None:
                self._statements.execute("kv_delete", key)
            else:
                self._put([(key, value)])

    def _put(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        for key, value in items:
            self._statements.execute("kv_put", key, value)
