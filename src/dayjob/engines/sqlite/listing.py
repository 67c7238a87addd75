"""Looking at jobs, in id order or the latest failure first: each listing by the index that fits it."""

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
"""Up to this many jobs in a state, listing them sorts the state's own index; above, it avoids that."""

_MERGED = 50_000
"""The most ids that are read from the runs of an index to be merged."""

_BY_ID = "INDEXED BY sqlite_autoindex_dayjob_jobs_1"
"""The ids themselves. ``NOT INDEXED`` means nothing to a table without rowids: the planner would choose."""

_FIRST, _LAST = b"", b"\xff" * 17
_LATEST = (2**63 - 1, _LAST)


class Lister:
    """Finds full records, and the ids of finished jobs."""

    def __init__(self, statements: Statements, queues: Queues) -> None:
        self._statements = statements
        self._queues = queues

    def get(self, keys: Sequence[bytes]) -> list[Job | None]:
        select = statement("find").format(index="", conditions="job.id = ?", order="")
        answers: list[Job | None] = []
        for key in keys:
            row = self._statements.cursor.execute(select, (key,)).fetchone()
            answers.append(None if row is None else rows.full_job(row))
        return answers

    def find(self, listing: JobQuery) -> list[Job]:
        queue_id = None if listing.queue is None else self._queues.id_of(listing.queue)
        if listing.queue is not None and queue_id is None:
            return []
        if listing.state in FINISHED and listing.task is None:
            keys = self.finished_keys(
                listing.state, listing.queue, listing.after, listing.limit, listing.newest_first
            )
            return self._present(keys)
        index = self._listing_index(listing)
        if index == _BY_ID and listing.state is JobState.PENDING and listing.task is None:
            pending = self._pending_keys(listing)
            if pending is not None:
                return self._present(pending)
        conditions, parameters = ["1"], []
        for condition, value in (
            (f"job.state = '{listing.state}'" if listing.state else "", None),
            ("job.queue_id = ?", queue_id),
            ("job.task = ?", listing.task),
            ("job.id < ?" if listing.newest_first else "job.id > ?", listing.after),
        ):
            if value is not None:
                parameters.append(value)
            if condition and (value is not None or "?" not in condition):
                conditions.append(condition)
        select = statement("find").format(
            index=index,
            conditions=" AND ".join(conditions),
            order=f"ORDER BY job.id {'DESC' if listing.newest_first else ''} LIMIT ?",
        )
        found = self._statements.cursor.execute(select, (*parameters, listing.limit)).fetchall()
        return [rows.full_job(row) for row in found]

    def find_dead(self, queue: str | None, before: tuple[int, bytes] | None, limit: int) -> list[Job]:
        """Dead jobs, the latest failure first."""
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

    def _listing_index(self, listing: JobQuery) -> str:
        """The index to list by: that of the state if few jobs are in it, else the ids themselves."""
        if listing.state not in _INDEX_OF:
            return _BY_ID
        counts = [getattr(stats, listing.state.value) for stats in self._queues.stats().values()]
        return f"INDEXED BY {_INDEX_OF[listing.state]}" if sum(counts) <= _SPARSE else _BY_ID

    def finished_keys(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int, newest_first: bool = False
    ) -> list[bytes]:
        """Ids of finished jobs in id order: each queue has its run of them in the index; they are merged."""
        name, start = ("finished_keys_newest_first", _LAST) if newest_first else ("finished_keys", _FIRST)
        runs = [
            self._statements.keys(name, state.value, queue_id, start if after is None else after, limit)
            for queue_id in self._queue_ids(queue)
        ]
        return list(islice(merge(*runs, reverse=newest_first), limit))

    def _pending_keys(self, listing: JobQuery) -> list[bytes] | None:
        """Ids of pending jobs in id order, merged from the run of each queue and priority; None if many."""
        places: list[tuple[int, int]] = []
        for queue_id in self._queue_ids(listing.queue):
            priority = -1
            while (row := self._statements.one("next_priority", queue_id, priority)) != (None,):
                assert row is not None
                (priority,) = row
                places.append((queue_id, priority))
                if len(places) * listing.limit > _MERGED:
                    return None
        newest_first = listing.newest_first
        name, start = ("pending_keys_newest_first", _LAST) if newest_first else ("pending_keys", _FIRST)
        after = start if listing.after is None else listing.after
        runs = [self._statements.keys(name, *place, after, listing.limit) for place in places]
        return list(islice(merge(*runs, reverse=newest_first), listing.limit))

    def _queue_ids(self, queue: str | None) -> list[int]:
        names = [queue] if queue is not None else list(self._queues.stats())
        return [queue_id for queue_id in map(self._queues.id_of, names) if queue_id is not None]
