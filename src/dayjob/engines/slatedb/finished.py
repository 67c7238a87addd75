"""Finished jobs that are kept: in the database only, so that they cost no memory and no time to open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from dayjob.engines.record import Record
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.binding import Row
from dayjob.engines.slatedb.keys import FINISHED_STATES
from dayjob.engines.slatedb.ledger import Ledger
from dayjob.engines.slatedb.values import Finished
from dayjob.model.job import JobState

_NEVER = 2**63
_FEW = 20


class Archive:
    """Stores, finds and removes finished jobs."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.newest = b""
        """No id beyond it is that of a finished job."""
        self.next_removal = _NEVER
        """No job is to be removed before this time."""

    async def load(self) -> None:
        source = self._ledger.source
        for state in FINISHED_STATES:
            last = await source.first(keys.finished_prefix(state), backwards=True)
            if last is not None:
                self.newest = max(self.newest, keys.id_of(last[0]))
        await self._look_for_removal()

    async def _look_for_removal(self) -> None:
        first = await self._ledger.source.first(keys.REMOVAL)
        self.next_removal = _NEVER if first is None else keys.moment_of(first[0])[0]

    # One by one.

    def store(self, record: Record, head: values.Head, body: bytes) -> None:
        key = record.key
        self._ledger.put(keys.finished(record.state, key), values.finished_value(record, head, body))
        self.index(record)
        self.newest = max(self.newest, key)

    def index(self, record: Record) -> None:
        """Write where a job is found by time: when it is to be removed and, if it is dead, when it ended."""
        put, key = self._ledger.put, record.key
        if record.remove_us is not None:
            put(keys.removal(record.remove_us, key), values.removal_value(record))
            self.next_removal = min(self.next_removal, max(record.remove_us, 0))
        if record.state is JobState.DEAD:
            for row in keys.dead(record.queue, record.finished_us or 0, key):
                put(row, record.queue.encode())

    def take(self, found: Finished, state: JobState) -> None:
        """Take a job out, and out of the count."""
        record = found.record
        if record.remove_us is not None:
            self._ledger.delete(keys.removal(record.remove_us, record.key))
        self._drop(state, record.queue, record.finished_us, record.key)

    def _drop(self, state: JobState, queue: str, finished_us: int | None, key: bytes) -> None:
        """All but when it is to be removed."""
        self._ledger.delete(keys.finished(state, key))
        if state is JobState.DEAD:
            for row in keys.dead(queue, finished_us or 0, key):
                self._ledger.delete(row)
        self._ledger.count(queue, state, -1)

    async def find(self, wanted: Sequence[bytes]) -> dict[bytes, Finished]:
        """Those of the jobs that are finished and kept."""
        asked = [
            (state, key) for key in dict.fromkeys(wanted) if key <= self.newest for state in FINISHED_STATES
        ]
        rows = await self._ledger.get_all([keys.finished(state, key) for state, key in asked])
        found = {
            key: values.finished(key, state, value)
            for (state, key), value in zip(asked, rows, strict=True)
            if value is not None
        }
        await self._mend(found.values())
        return found

    def holds(self, key: bytes, found: Iterable[bytes]) -> bool:
        """Whether the job is here now, given what was found before the verb changed anything."""
        if key > self.newest:
            return False
        staged = self._ledger.staged
        changes = [staged[row] for state in FINISHED_STATES if (row := keys.finished(state, key)) in staged]
        if any(value is not None for value in changes):
            return True
        return not changes and key in found

    # Many.

    async def list(
        self,
        state: JobState,
        fits: Callable[[Finished], bool],
        after: bytes | None,
        limit: int,
        newest_first: bool = False,
        queue: str | None = None,
    ) -> list[Finished]:
        """In id order, beyond the cursor in the direction of travel; ``queue`` is the only one that fits."""
        listed: list[Finished] = []
        if limit <= 0:
            return listed
        source = await self._ledger.scannable()
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
            await self._mend(read)
            for found in read:
                if fits(found):
                    listed.append(found)
                    if len(listed) == limit:
                        return listed
        return listed

    async def _few_dead(self, queue: str) -> Sequence[bytes] | None:
        """The ids of the queue's dead jobs, if few of the dead are its own, so that a walk might take long.

        None if the index is not there, which is so for a reader of the first layout.
        """
        stats = self._ledger.stats
        own = stats[queue].dead if queue in stats else 0
        if own * _FEW > sum(one.dead for one in stats.values()):
            return None
        rows = [row async for some in self._ledger.source.scan(keys.dead_prefix(queue)) for row, _ in some]
        return [keys.id_of(row) for row in rows] if len(rows) == own else None

    async def _rows(
        self, dead: Iterable[bytes], after: bytes | None, newest_first: bool, chunk: int
    ) -> AsyncIterator[Sequence[Row]]:
        """As a scan gives them."""
        if after is not None:
            dead = [key for key in dead if (key < after if newest_first else key > after)]
        rows = [keys.finished(JobState.DEAD, key) for key in sorted(dead, reverse=newest_first)]
        for start in range(0, len(rows), chunk):
            some = rows[start : start + chunk]
            read = await self._ledger.source.get_all(some)
            yield [(row, value) for row, value in zip(some, read, strict=True) if value is not None]

    async def latest_dead(
        self, queue: str | None, before: tuple[int, bytes] | None, limit: int
    ) -> Sequence[Finished]:
        """The latest to end first, beyond the time and id of the last one seen."""
        listed: list[Finished] = []
        if limit <= 0:
            return listed
        source = await self._ledger.scannable()
        after = None if before is None else keys.moment(*before)
        prefix, chunk = keys.dead_prefix(queue), min(limit, 1000)
        async for rows in source.scan(prefix, after=after, backwards=True, chunk=chunk):
            read = await source.get_all([keys.finished(JobState.DEAD, keys.id_of(row)) for row, _ in rows])
            for (row, name), value in zip(rows, read, strict=True):
                if value is None:
                    continue
                time, key = keys.moment_of(row)
                found = values.finished(key, JobState.DEAD, value)
                if found.amiss is not None:
                    found.record.finished_us, found.record.queue = time, name.decode()
                listed.append(found)
                if len(listed) == limit:
                    return listed
        return listed

    async def _mend(self, listed: Iterable[Finished]) -> None:
        """Learn the queue and the times of unreadable jobs from where else they are told."""
        unreadable = {found.record.key: found.record for found in listed if found.amiss is not None}
        if not unreadable:
            return
        async for rows in self._ledger.source.scan(keys.REMOVAL):
            for stored, value in rows:
                time, key = keys.moment_of(stored)
                if key in unreadable:
                    unreadable[key].remove_us = time
                    unreadable[key].queue = values.removal(value)[1]
        if any(record.state is JobState.DEAD for record in unreadable.values()):
            async for rows in self._ledger.source.scan(keys.dead_prefix(None)):
                for stored, value in rows:
                    time, key = keys.moment_of(stored)
                    if key in unreadable:
                        unreadable[key].finished_us = time
                        unreadable[key].queue = value.decode()

    async def sweep(self, limit: int, now: int) -> int:
        if self.next_removal > now or limit <= 0:
            return 0
        source = await self._ledger.scannable()
        removed = 0
        async for rows in source.scan(keys.REMOVAL, chunk=limit + 1):
            for stored, value in rows:
                self.next_removal, key = keys.moment_of(stored)
                if removed == limit or self.next_removal > now:
                    return removed
                self._ledger.delete(stored)
                self._drop(*values.removal(value), key)
                removed += 1
        self.next_removal = _NEVER
        return removed
