"""Looking at jobs in id order: each listing by the index that fits it."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from itertools import islice

from dayjob.engines.base import Listing
from dayjob.engines.sqlite import rows
from dayjob.engines.sqlite.queues import Queues
from dayjob.engines.sqlite.statements import Statements, statement
from dayjob.job import FINISHED, Job, JobState

_INDEX_OF = {
    JobState.PENDING: "dayjob_pending",
    JobState.SCHEDULED: "dayjob_due",
    JobState.RUNNING: "dayjob_leases",
}
_SPARSE = 10_000
"""Up to this many jobs in a state, listing them sorts the state's own index; above, it walks the ids."""

_FIRST, _LAST = b"", b"\xff" * 17


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

    def find(self, listing: Listing) -> list[Job]:
        queue_id = None if listing.queue is None else self._queues.id_of(listing.queue)
        if listing.queue is not None and queue_id is None:
            return []
        if listing.state in FINISHED and listing.task is None:
            keys = self.finished_keys(
                listing.state, listing.queue, listing.after, listing.limit, listing.newest_first
            )
            return [job for job in self.get(keys) if job is not None]
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
            index=self._listing_index(listing),
            conditions=" AND ".join(conditions),
            order=f"ORDER BY job.id {'DESC' if listing.newest_first else ''} LIMIT ?",
        )
        found = self._statements.cursor.execute(select, (*parameters, listing.limit)).fetchall()
        return [rows.full_job(row) for row in found]

    def _listing_index(self, listing: Listing) -> str:
        """The index to list by: that of the state if few jobs are in it, else the ids themselves."""
        if listing.state not in _INDEX_OF:
            return "NOT INDEXED"
        counts = [getattr(stats, listing.state.value) for stats in self._queues.stats().values()]
        return f"INDEXED BY {_INDEX_OF[listing.state]}" if sum(counts) <= _SPARSE else "NOT INDEXED"

    def finished_keys(
        self, state: JobState, queue: str | None, after: bytes | None, limit: int, newest_first: bool = False
    ) -> list[bytes]:
        """Ids of finished jobs in id order: each queue has its run of them in the index; they are merged."""
        names = [queue] if queue is not None else list(self._queues.stats())
        name, start = ("finished_keys_newest_first", _LAST) if newest_first else ("finished_keys", _FIRST)
        runs = [
            self._statements.keys(name, state.value, queue_id, start if after is None else after, limit)
            for queue_id in map(self._queues.id_of, names)
            if queue_id is not None
        ]
        return list(islice(merge(*runs, reverse=newest_first), limit))
