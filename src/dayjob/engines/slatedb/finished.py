"""Finished jobs that are kept: in the database only, so that they cost no memory and no time to open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dayjob.engines.record import Record
from dayjob.engines.slatedb import keys, values
from dayjob.engines.slatedb.keys import FINISHED_STATES
from dayjob.engines.slatedb.ledger import Ledger
from dayjob.engines.slatedb.values import Finished
from dayjob.job import JobState

_NEVER = 2**63


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
        self.next_removal = _NEVER if first is None else keys.removal_parts(first[0])[0]

    # One by one.

    def store(self, record: Record, head: values.Head, body: bytes) -> None:
        put, key = self._ledger.put, record.key
        put(keys.finished(record.state, key), values.finished_value(record, head, body))
        if record.remove_us is not None:
            put(keys.removal(record.remove_us, key), values.removal_value(record.state, record.queue))
            self.next_removal = min(self.next_removal, max(record.remove_us, 0))
        self.newest = max(self.newest, key)

    def take(self, found: Finished, state: JobState) -> None:
        """Take a job out, and out of the count."""
        record = found.record
        self._ledger.delete(keys.finished(state, record.key))
        if record.remove_us is not None:
            self._ledger.delete(keys.removal(record.remove_us, record.key))
        self._ledger.count(record.queue, state, -1)

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
    ) -> list[Finished]:
        """In id order, beyond the cursor in the direction of travel."""
        listed: list[Finished] = []
        if limit <= 0:
            return listed
        source = await self._ledger.scannable()
        prefix = keys.finished_prefix(state)
        chunk = min(max(limit, 16), 1000)
        async for rows in source.scan(prefix, after=after, backwards=newest_first, chunk=chunk):
            read = [values.finished(keys.id_of(stored), state, value) for stored, value in rows]
            await self._mend(read)
            for found in read:
                if fits(found):
                    listed.append(found)
                    if len(listed) == limit:
                        return listed
        return listed

    async def _mend(self, listed: Iterable[Finished]) -> None:
        """Learn the queue and the time of removal of unreadable jobs from where else they are told."""
        unreadable = {found.record.key: found.record for found in listed if found.amiss is not None}
        if not unreadable:
            return
        async for rows in self._ledger.source.scan(keys.REMOVAL):
            for stored, value in rows:
                time, key = keys.removal_parts(stored)
                if key in unreadable:
                    unreadable[key].remove_us = time
                    unreadable[key].queue = values.removal(value)[1]

    async def sweep(self, limit: int, now: int) -> int:
        if self.next_removal > now or limit <= 0:
            return 0
        source = await self._ledger.scannable()
        removed = 0
        async for rows in source.scan(keys.REMOVAL, chunk=limit + 1):
            for stored, value in rows:
                self.next_removal, key = keys.removal_parts(stored)
                if removed == limit or self.next_removal > now:
                    return removed
                state, queue = values.removal(value)
                self._ledger.delete(stored)
                self._ledger.delete(keys.finished(state, key))
                self._ledger.count(queue, state, -1)
                removed += 1
        self.next_removal = _NEVER
        return removed
