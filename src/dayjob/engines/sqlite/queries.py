"""The part of the store for queues and listings. Each listing uses the index that suits it."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice

from dayjob.engines.base import Death, JobQuery
from dayjob.engines.limits import BucketState
from dayjob.engines.record import Record
from dayjob.engines.sqlite import rows
from dayjob.engines.sqlite.rows import Row
from dayjob.engines.sqlite.statements import directed, statement
from dayjob.engines.store import Deltas, Store
from dayjob.model.job import FINISHED, Job, JobState, QueueStats

_COUNTED = tuple(JobState(name) for name in QueueStats.__struct_fields__ if name != JobState.LIMITED)

_INDEX_OF = {
    JobState.PENDING: "dayjob_pending",
    JobState.SCHEDULED: "dayjob_due",
    JobState.RUNNING: "dayjob_leases",
}
_SPARSE = 10_000
"""Up to this many jobs in a state, a listing sorts the index of the state."""

_MERGED = 50_000
"""The largest number of ids that are read from the ranges of an index and merged."""

_BY_ID = "INDEXED BY sqlite_autoindex_dayjob_jobs_1"
"""The primary key. ``NOT INDEXED`` has no effect on a table without rowids: the planner would choose."""

_LINE = 100
"""The number of jobs of a line that are read at once."""

_FIRST, _LAST = b"", b"\xff" * 17
_LATEST = (2**63 - 1, _LAST)


class Queries(Store):
    """Queues and jobs as one connection sees them. The ids of queues never change, so they are cached."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self.connection = connection
        self._cursor = connection.cursor()
        self._cursor.row_factory = None
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def _execute(self, name: str, *parameters: object) -> sqlite3.Cursor:
        return self._cursor.execute(statement(name), parameters)

    def _one(self, name: str, *parameters: object) -> Row | None:
        row: Row | None = self._execute(name, *parameters).fetchone()
        return row

    def _keys(self, name: str, *parameters: object) -> list[bytes]:
        return [row[0] for row in self._execute(name, *parameters).fetchall()]

    def discard(self) -> None:
        """Drop cached ids, topics and reports after a rollback, which may have undone a new queue."""
        self.topics.clear()
        self.quarantined.clear()
        self._limiter = None
        self._ids.clear()
        self._names.clear()

    def _queue_id(self, name: str) -> int | None:
        """Return the queue's id. None, which is NULL and matches no row, stands for an unknown queue."""
        found = self._ids.get(name)
        if found is None:
            row = self._one("queue", name)
            if row is not None:
                found = self._ids[name] = row[0]
        return found

    def _make_queue_id(self, name: str) -> int:
        """Return the queue's id. A new queue is added."""
        found = self._queue_id(name)
        if found is None:
            found = self._execute("add_queue", name).lastrowid
            assert found is not None
            self._ids[name] = found
        return found

    def _queue_name(self, queue_id: int) -> str:
        name = self._names.get(queue_id)
        if name is None:
            row = self._one("queue_name", queue_id)
            assert row is not None, f"job on unknown queue {queue_id}"
            name = self._names[queue_id] = rows.text_of(row[0]) or ""
        return name

    def count(self, deltas: Deltas) -> None:
        for queue in {queue for queue, _ in deltas}:
            changes = [deltas.get((queue, state), 0) for state in _COUNTED]
            if any(changes):
                self._execute("count", *changes, self._make_queue_id(queue))
            if limited := deltas.get((queue, JobState.LIMITED), 0):
                self._execute("count_limited", limited, self._make_queue_id(queue))

    async def stats(self) -> dict[str, QueueStats]:
        return {
            rows.text_of(row[0]) or "": QueueStats(*(rows.int_or(count, 0) for count in row[1:]))
            for row in self._execute("stats")
        }

    def pause(self, queue: str, paused: bool) -> None:
        self._execute("pause", int(paused), self._make_queue_id(queue))

    def is_paused(self, queue: str) -> bool:
        return self._one("is_paused", self._queue_id(queue)) == (1,)

    async def paused(self) -> set[str]:
        return {rows.text_of(row[0]) or "" for row in self._execute("paused")}

    # Limits and turns.

    def limit_values(self) -> Mapping[str, bytes]:
        return dict(self._execute("limit_values").fetchall())

    def bucket(self, name: str) -> BucketState | None:
        row = self._one("bucket", name)
        return None if row is None else BucketState(*row)

    def save_bucket(self, name: str, state: BucketState | None) -> None:
        if state is None:
            self._execute("remove_bucket", name)
        else:
            self._execute("save_bucket", name, state.running, state.tat, state.due)

    def buckets_due(self, limit: int, now: int) -> Sequence[str]:
        return [row[0] for row in self._execute("due_buckets", now, limit).fetchall()]

    def remove_idle(self, limit: int, now: int) -> None:
        self._execute("remove_idle_buckets", now, limit)
        self._execute("remove_past_turns", limit)

    def has_lines(self) -> bool:
        self.flush()
        return self._one("has_lines") is not None

    def line_queues(self, bucket: str) -> Sequence[str]:
        self.flush()
        return [self._queue_name(row[0]) for row in self._execute("line_queues", bucket, bucket).fetchall()]

    def line(self, bucket: str, queue: str) -> Iterator[Record]:
        """The first job is read alone: mostly it is the only one wanted."""
        self.flush()
        queue_id, place, width = self._queue_id(queue), (-1, -1, b""), 1
        while queue_id is not None:
            found = self._execute("line", bucket, queue_id, *place, width).fetchall()
            for row in found:
                record = rows.record(row, queue)
                place = record.order
                yield record
            if len(found) < width:
                return
            width = _LINE

    def lines_of(self, limit: str) -> Sequence[str]:
        return [row[0] for row in self._execute("lines_of", limit, limit, limit, limit).fetchall()]

    async def limit_use(self) -> Mapping[str, tuple[int, int]]:
        return {row[0]: (row[1], row[2]) for row in self._execute("limit_use").fetchall()}

    def backlog(self, queue: str) -> int:
        row = self._one("backlog", self._queue_id(queue))
        return 0 if row is None else row[0]

    def next_turn(self, queue: str, tenant: str) -> int:
        queue_id = self._queue_id(queue)
        row = self._one("next_turn", queue_id, tenant, queue_id)
        return 1 if row is None else row[0]

    def save_turn(self, queue: str, tenant: str | None, turn: int) -> None:
        if tenant is None:
            self._execute("save_queue_turn", turn, self._make_queue_id(queue))
        else:
            self._execute("save_turn", self._make_queue_id(queue), tenant, turn)

    @abstractmethod
    def flush(self) -> None:
        """Write the buffered changes."""

    # Listings.

    async def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        select = statement("find").format(index="", conditions="job.id = ?", order="")
        found: list[Job | None] = []
        for key in keys:
            row = self._cursor.execute(select, (key,)).fetchone()
            found.append(None if row is None else rows.full_job(row))
        return found

    async def find(self, query: JobQuery) -> list[Job]:
        queue_id = None if query.queue is None else self._queue_id(query.queue)
        if query.queue is not None and queue_id is None:
            return []
        if query.state in FINISHED and query.task is None:
            keys = await self.finished_keys(
                query.state, query.queue, query.after, query.limit, query.newest_first
            )
            return await self._present(keys)
        index = await self._index_of(query)
        if index == _BY_ID and query.state is JobState.PENDING and query.task is None:
            pending = await self._pending_keys(query)
            if pending is not None:
                return await self._present(pending)
        given = {
            "job.queue_id = ?": queue_id,
            "job.task = ?": query.task,
            "job.id < ?" if query.newest_first else "job.id > ?": query.after,
        }
        wanted = {condition: value for condition, value in given.items() if value is not None}
        select = statement("find").format(
            index=index,
            conditions=" AND ".join([f"job.state = '{query.state}'" if query.state else "1", *wanted]),
            order=f"ORDER BY job.id {'DESC' if query.newest_first else ''} LIMIT ?",
        )
        found = self._cursor.execute(select, (*wanted.values(), query.limit)).fetchall()
        return [rows.full_job(row) for row in found]

    async def find_dead(self, queue: str | None, before: Death | None, limit: int) -> list[Job]:
        index, conditions, parameters = "dayjob_deaths", "", []
        if queue is not None:
            queue_id = self._queue_id(queue)
            if queue_id is None:
                return []
            index, conditions, parameters = "dayjob_deaths_of_queue", "job.queue_id = ? AND ", [queue_id]
        select = statement("find").format(
            index=f"INDEXED BY {index}",
            conditions=f"{conditions}job.state = 'dead' AND (job.finished_at, job.id) < (?, ?)",
            order="ORDER BY job.finished_at DESC, job.id DESC LIMIT ?",
        )
        found = self._cursor.execute(select, (*parameters, *(before or _LATEST), limit)).fetchall()
        return [rows.full_job(row) for row in found]

    async def _present(self, keys: Sequence[bytes]) -> list[Job]:
        return [job for job in await self.get(keys) if job is not None]

    async def _index_of(self, query: JobQuery) -> str:
        """Return the index to list by: that of the state if few jobs are in it, else the primary key."""
        if query.state not in _INDEX_OF:
            return _BY_ID
        counts = [getattr(stats, query.state.value) for stats in (await self.stats()).values()]
        return f"INDEXED BY {_INDEX_OF[query.state]}" if sum(counts) <= _SPARSE else _BY_ID

    async def finished_keys(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int, newest_first: bool = False
    ) -> list[bytes]:
        """Return ids of finished jobs in id order, merged from the index range of each queue."""
        ranges = [(state.value, queue_id) for queue_id in await self._queue_ids(queue)]
        return self._merged("finished_keys", ranges, after, limit, newest_first)

    async def _pending_keys(self, query: JobQuery) -> list[bytes] | None:
        """Return ids of pending jobs in id order, merged from the range of each queue, priority and turn.

        Return None if there are too many ranges.
        """
        ranges: list[Row] = []
        for queue_id in await self._queue_ids(query.queue):
            row: Row | None = (-1, 0)
            while row is not None and (row := self._one("next_priority", queue_id, *row)) is not None:
                ranges.append((queue_id, *row))
                if len(ranges) * query.limit > _MERGED:
                    return None
        return self._merged("pending_keys", ranges, query.after, query.limit, query.newest_first)

    def _merged(
        self, name: str, ranges: Sequence[Row], after: bytes | None, limit: int, newest_first: bool
    ) -> list[bytes]:
        """Return ids in the direction of travel, merged from ranges of an index."""
        if after is None:
            after = _LAST if newest_first else _FIRST
        sql = directed(name, newest_first)
        runs = [
            [row[0] for row in self._cursor.execute(sql, (*one, after, limit)).fetchall()] for one in ranges
        ]
        return list(islice(merge(*runs, reverse=newest_first), limit))

    async def _queue_ids(self, queue: str | None) -> list[int]:
        names = [queue] if queue is not None else list(await self.stats())
        return [queue_id for queue_id in map(self._queue_id, names) if queue_id is not None]
