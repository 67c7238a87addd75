"""Finished jobs: in the database only, so that they cost no memory and no time to open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from dayjob.engines.base import Death
from dayjob.engines.record import Record
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.ffi import Row
from dayjob.engines.slatedb.keys import FINISHED_STATES
from dayjob.engines.slatedb.values import Finished
from dayjob.engines.slatedb.write_batch import WriteBatch
from dayjob.model.job import JobState

_NEVER = 2**63
_FEW = 20


class Archive:
    """Stores, finds and removes finished jobs."""

    def __init__(self, write_batch: WriteBatch) -> None:
        self._write_batch = write_batch
        self.newest = b""
        """No finished job has a larger id."""
        self.next_removal = _NEVER
        """No retention ends before this time."""

    async def load(self) -> None:
        source = self._write_batch.source
        for state in FINISHED_STATES:
            last = await source.first(keys.finished_prefix(state), backwards=True)
            if last is not None:
                self.newest = max(self.newest, keys.id_of(last[0]))
        first = await self._write_batch.source.first(keys.REMOVAL)
        self.next_removal = _NEVER if first is None else keys.moment_of(first[0])[0]

    # One by one.

    def add(self, record: Record, head: values.Head, body: bytes) -> None:
        key = record.key
        self._write_batch.put(keys.finished(record.state, key), values.finished_value(record, head, body))
        self.index(record)
        self.newest = max(self.newest, key)

    def index(self, record: Record) -> None:
        """Write the index rows of a job: its removal by time and, if it is dead, its end by time."""
        put, key = self._write_batch.put, record.key
        if record.remove_us is not None:
            put(keys.removal(record.remove_us, key), values.removal_value(record))
            self.next_removal = min(self.next_removal, max(record.remove_us, 0))
        if record.state is JobState.DEAD:
            for row in keys.dead(record.queue, record.finished_us or 0, key):
                put(row, record.queue.encode())

    def remove(self, record: Record) -> None:
        """Delete a job and its index rows."""
        delete, key = self._write_batch.delete, record.key
        delete(keys.finished(record.state, key))
        if record.remove_us is not None:
            delete(keys.removal(record.remove_us, key))
        if record.state is JobState.DEAD:
            for row in keys.dead(record.queue, record.finished_us or 0, key):
                delete(row)

    async def find(self, wanted: Sequence[bytes]) -> dict[bytes, Finished]:
        """Return those of the jobs that are here."""
        possible = [
            (state, key) for key in dict.fromkeys(wanted) if key <= self.newest for state in FINISHED_STATES
        ]
        rows = await self._write_batch.get_all([keys.finished(state, key) for state, key in possible])
        found = {
            key: values.finished(key, state, value)
            for (state, key), value in zip(possible, rows, strict=True)
            if value is not None
        }
        await self._repair(found.values())
        return found

    def has(self, key: bytes, found: Iterable[bytes]) -> bool:
        """Return whether the job is here now. ``found`` are the ids that were here before this verb."""
        if key > self.newest:
            return False
        staged = self._write_batch.staged
        changes = [staged[row] for state in FINISHED_STATES if (row := keys.finished(state, key)) in staged]
        if any(value is not None for value in changes):
            return True
        return not changes and key in found

    # Many.

    async def find_in(
        self,
        state: JobState,
        matches: Callable[[Finished], bool],
        after: bytes | None,
        limit: int,
        newest_first: bool = False,
        queue: str | None = None,
    ) -> list[Finished]:
        """Return jobs in the state that match, in id order beyond the cursor.

        ``queue`` is the only queue whose jobs match, if there is one.
        """
        found_jobs: list[Finished] = []
        if limit <= 0:
            return found_jobs
        source = await self._write_batch.scannable()
        prefix = keys.finished_prefix(state)
        chunk = min(max(limit, 16), 1000)
        few = await self._few_dead(queue) if state is JobState.DEAD and queue is not None else None
        if few is None:
            scanned: AsyncIterator[Sequence[Row]] = source.scan(
                prefix, after=after, backwards=newest_first, chunk=chunk
            )
        else:
            scanned = self._rows(few, after, newest_first, chunk)
        async for rows in scanned:
            read = [values.finished(keys.id_of(stored), state, value) for stored, value in rows]
            await self._repair(read)
            for found in read:
                if matches(found):
                    found_jobs.append(found)
                    if len(found_jobs) == limit:
                        return found_jobs
        return found_jobs

    async def _few_dead(self, queue: str) -> Sequence[bytes] | None:
        """Return the ids of the queue's dead jobs if they are few among all dead jobs.

        A scan of all dead jobs might then take long. Return None otherwise, or without the index, which a
        database of the first layout does not have.
        """
        stats = self._write_batch.stats
        own = stats[queue].dead if queue in stats else 0
        if own * _FEW > sum(one.dead for one in stats.values()):
            return None
        rows = [row async for row, _ in self._write_batch.source.rows(keys.dead_prefix(queue))]
        return [keys.id_of(row) for row in rows] if len(rows) == own else None

    async def _rows(
        self, dead: Iterable[bytes], after: bytes | None, newest_first: bool, chunk: int
    ) -> AsyncIterator[Sequence[Row]]:
        """Yield the rows of dead jobs, as a scan would."""
        if after is not None:
            dead = [key for key in dead if (key < after if newest_first else key > after)]
        rows = [keys.finished(JobState.DEAD, key) for key in sorted(dead, reverse=newest_first)]
        for start in range(0, len(rows), chunk):
            some = rows[start : start + chunk]
            read = await self._write_batch.source.get_all(some)
            yield [(row, value) for row, value in zip(some, read, strict=True) if value is not None]

    async def latest_dead(self, queue: str | None, before: Death | None, limit: int) -> Sequence[Finished]:
        """Return dead jobs, the latest failure first, beyond the time and id of the last one seen."""
        found_jobs: list[Finished] = []
        if limit <= 0 or queue == "":  # In the keys, the empty name stands for all queues.
            return found_jobs
        source = await self._write_batch.scannable()
        after = None if before is None else keys.moment(*before)
        prefix, chunk = keys.dead_prefix(queue), min(limit, 1000)
        async for rows in source.scan(prefix, after=after, backwards=True, chunk=chunk):
            read = await source.get_all([keys.finished(JobState.DEAD, keys.id_of(row)) for row, _ in rows])
            for (row, name), value in zip(rows, read, strict=True):
                if value is None:
                    continue
                time, key = keys.moment_of(row)
                found = values.finished(key, JobState.DEAD, value)
                if found.corrupt is not None:
                    found.record.finished_us, found.record.queue = time, name.decode()
                found_jobs.append(found)
                if len(found_jobs) == limit:
                    return found_jobs
        return found_jobs

    async def _repair(self, found_jobs: Iterable[Finished]) -> None:
        """Restore the queue and the times of jobs that can't be decoded from their index rows."""
        unreadable = {found.record.key: found.record for found in found_jobs if found.corrupt is not None}
        if not unreadable:
            return
        source = self._write_batch.source
        async for stored, value in source.rows(keys.REMOVAL):
            time, key = keys.moment_of(stored)
            if key in unreadable:
                unreadable[key].remove_us = time
                unreadable[key].queue = values.decode(values.Removal, value).queue
        if any(record.state is JobState.DEAD for record in unreadable.values()):
            async for stored, value in source.rows(keys.dead_prefix(None)):
                time, key = keys.moment_of(stored)
                if key in unreadable:
                    unreadable[key].finished_us = time
                    unreadable[key].queue = value.decode()

    async def removable(self, limit: int, now: int) -> list[Record]:
        """Return jobs whose retention is over, with the fields that ``remove`` needs."""
        found: list[Record] = []
        if self.next_removal > now or limit <= 0:
            return found
        source = await self._write_batch.scannable()
        async for rows in source.scan(keys.REMOVAL, chunk=limit + 1):
            for stored, value in rows:
                time, key = keys.moment_of(stored)
                if len(found) == limit or time > now:
                    self.next_removal = time
                    return found
                found.append(values.removal_record(key, time, value))
        self.next_removal = _NEVER
        return found
