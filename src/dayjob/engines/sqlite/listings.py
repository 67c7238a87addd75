"""Listings of jobs, in id order or the latest failure first. Each uses the index that suits it."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from itertools import islice

from dayjob.engines.base import JobQuery
from dayjob.engines.sqlite import rows
from dayjob.engines.sqlite.queues import Queues
from dayjob.engines.sqlite.statements import Statements, statement
from dayjob.model.job import FINISHED, Job, JobState

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

_FIRST, _LAST = b"", b"\xff" * 17
_LATEST = (2**63 - 1, _LAST)


class JobListings:
    """Finds full records, and the ids of finished jobs."""

    def __init__(self, statements: Statements, queues: Queues) -> None:
        self._statements = statements
        self._queues = queues

    def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        select = statement("find").format(index="", conditions="job.id = ?", order="")
        found: list[Job | None] = []
        for key in keys:
            row = self._statements.cursor.execute(select, (key,)).fetchone()
            found.append(None if row is None else rows.full_job(row))
        return found

    def find(self, query: JobQuery) -> list[Job]:
        queue_id = None if query.queue is None else self._queues.id_of(query.queue)
        if query.queue is not None and queue_id is None:
            return []
        if query.state in FINISHED and query.task is None:
            keys = self.finished_keys(query.state, query.queue, query.after, query.limit, query.newest_first)
            return self._present(keys)
        index = self._index_of(query)
        if index == _BY_ID and query.state is JobState.PENDING and query.task is None:
            pending = self._pending_keys(query)
            if pending is not None:
                return self._present(pending)
        conditions, parameters = ["1"], []
        for condition, value in (
            (f"job.state = '{query.state}'" if query.state else "", None),
            ("job.queue_id = ?", queue_id),
            ("job.task = ?", query.task),
            ("job.id < ?" if query.newest_first else "job.id > ?", query.after),
        ):
            if value is not None:
                parameters.append(value)
            if condition and (value is not None or "?" not in condition):
                conditions.append(condition)
        select = statement("find").format(
            index=index,
            conditions=" AND ".join(conditions),
            order=f"ORDER BY job.id {'DESC' if query.newest_first else ''} LIMIT ?",
        )
        found = self._statements.cursor.execute(select, (*parameters, query.limit)).fetchall()
        return [rows.full_job(row) for row in found]

    def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        """Return dead jobs, the latest failure first."""
        index, conditions, parameters = "dayjob_deaths", "", []
        if queue is not None:
            queue_id = self._queues.id_of(queue)
            if queue_id is None:
                return []
            index, conditions, parameters = "dayjob_deaths_of_queue", "job.queue_id = ? AND ", [queue_id]
        select = statement("find").format(
            index=f"INDEXED BY {index}",
            conditions=f"{conditions}job.state = 'dead' AND (job.finished_at, job.id) < (?, ?)",
            order="ORDER BY job.finished_at DESC, job.id DESC LIMIT ?",
        )
        found = self._statements.cursor.execute(select, (*parameters, *(before or _LATEST), limit)).fetchall()
        return [rows.full_job(row) for row in found]

    def _present(self, keys: Sequence[bytes]) -> list[Job]:
        return [job for job in self.get(keys) if job is not None]

    def _index_of(self, query: JobQuery) -> str:
        """Return the index to list by: that of the state if few jobs are in it, else the primary key."""
        if query.state not in _INDEX_OF:
            return _BY_ID
        counts = [getattr(stats, query.state.value) for stats in self._queues.stats().values()]
        return f"INDEXED BY {_INDEX_OF[query.state]}" if sum(counts) <= _SPARSE else _BY_ID

    def finished_keys(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int, newest_first: bool = False
    ) -> list[bytes]:
        """Return ids of finished jobs in id order, merged from the index range of each queue."""
        name, start = ("finished_keys_newest_first", _LAST) if newest_first else ("finished_keys", _FIRST)
        runs = [
            self._statements.keys(name, state.value, queue_id, start if after is None else after, limit)
            for queue_id in self._queue_ids(queue)
        ]
        return list(islice(merge(*runs, reverse=newest_first), limit))

    def _pending_keys(self, query: JobQuery) -> list[bytes] | None:
        """Return ids of pending jobs in id order, merged from the range of each queue and priority.

        Return None if there are too many ranges.
        """
        ranges: list[tuple[int, int]] = []
        for queue_id in self._queue_ids(query.queue):
            priority = -1
            while (row := self._statements.one("next_priority", queue_id, priority)) != (None,):
                assert row is not None
                (priority,) = row
                ranges.append((queue_id, priority))
                if len(ranges) * query.limit > _MERGED:
                    return None
        newest_first = query.newest_first
        name, start = ("pending_keys_newest_first", _LAST) if newest_first else ("pending_keys", _FIRST)
        after = start if query.after is None else query.after
        runs = [self._statements.keys(name, *one, after, query.limit) for one in ranges]
        return list(islice(merge(*runs, reverse=newest_first), query.limit))

    def _queue_ids(self, queue: str | None) -> list[int]:
        names = [queue] if queue is not None else list(self._queues.stats())
        return [queue_id for queue_id in map(self._queues.id_of, names) if queue_id is not None]
