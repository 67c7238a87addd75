"""The jobs that wait or run, in memory: what they are, in which order, and which claims they are under.

A record here is the changeable part of a job; what only its run needs stays in the database. It is rebuilt
by a scan when the database is opened (``loading``), and changed by one verb at a time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import partial
from itertools import islice

from msgspec import Struct

from dayjob.engines.order import Line, SortedKeys
from dayjob.engines.record import Record
from dayjob.engines.slatedb.values import Claimed
from dayjob.model.job import JobState

Place = tuple[int, bytes]
"""Where a job stands in a line: its priority or time, then its id."""

_FIRST = b""


class OpenClaim(Struct):
    """A stored claim, and which of its jobs still run under it."""

    stored: Claimed
    running: set[bytes]


class Live:
    """Records by id, and the lines that they stand in."""

    def __init__(self) -> None:
        self.jobs: dict[bytes, Record] = {}
        self.keys = SortedKeys(self.jobs.__contains__)
        self.due: Line[Place] = Line(self._is_due, self.jobs)
        self.expiries: Line[Place] = Line(self._is_expiry, self.jobs)
        self.leases: Line[Place] = Line(self._is_lease, self.jobs)
        self.held: dict[tuple[str, str], bytes] = {}
        self.changed: set[bytes] = set()
        """The jobs that have a row of their own for what has changed."""
        self.sessions: dict[bytes, int] = {}
        """Under which session each running job was claimed."""
        self.claims: dict[int, OpenClaim] = {}
        self.claim_of: dict[bytes, int] = {}
        self.next_claim = 1
        self.flagged: set[bytes] = set()
        self.newest = _FIRST
        """No id beyond it was ever seen, so such a one is surely new."""
        self._pending: dict[str, Line[Place]] = {}
        self._holding: dict[bytes, tuple[str, str]] = {}

    # Which entries of the lines still hold.

    def _is_pending(self, queue: str, item: Place) -> bool:
        record = self.jobs.get(item[1])
        return (
            record is not None
            and record.state is JobState.PENDING
            and record.priority == item[0]
            and record.queue == queue
        )

    def _is_due(self, item: Place) -> bool:
        record = self.jobs.get(item[1])
        return record is not None and record.state is JobState.SCHEDULED and record.run_us == item[0]

    def _is_expiry(self, item: Place) -> bool:
        record = self.jobs.get(item[1])
        return (
            record is not None
            and record.expires_us == item[0]
            and not record.attempts
            and record.state is not JobState.RUNNING
        )

    def _is_lease(self, item: Place) -> bool:
        record = self.jobs.get(item[1])
        return record is not None and record.lease_us == item[0]

    # In and out.

    def add(self, record: Record) -> None:
        """A job that was not here; ``stand`` puts it in its line, ``hold`` takes its dedup key."""
        key = record.key
        self.jobs[key] = record
        self.keys.add(key)
        if key > self.newest:
            self.newest = key

    def remove(self, record: Record) -> None:
        del self.jobs[record.key]
        self.keys.discard()
        self.changed.discard(record.key)
        self.sessions.pop(record.key, None)

    def hold(self, record: Record) -> None:
        """Take the dedup key that the record holds, if it holds one."""
        if record.held_key is not None:
            pair = (record.queue, record.held_key)
            self.held[pair] = record.key
            self._holding[record.key] = pair

    def let_go(self, record: Record) -> None:
        """Free the dedup key that the record no longer holds."""
        if record.held_key is None and self._holding:
            pair = self._holding.pop(record.key, None)
            if pair is not None:
                del self.held[pair]

    def line(self, queue: str) -> Line[Place]:
        line = self._pending.get(queue)
        if line is None:
            line = self._pending[queue] = Line(partial(self._is_pending, queue), self.jobs)
        return line

    def stand(self, record: Record) -> None:
        """Put a record in the lines that it now belongs to."""
        if record.state is JobState.PENDING:
            self.line(record.queue).push((record.priority, record.key))
        elif record.state is JobState.SCHEDULED:
            self.due.push((record.run_us, record.key))
        else:
            assert record.lease_us is not None
            self.leases.push((record.lease_us, record.key))
            return
        if record.expires_us is not None and record.attempts == 0:
            self.expiries.push((record.expires_us, record.key))

    def pick(self, queue: str, most: int, now: int) -> list[Record]:
        """Take the next jobs out of the queue's line; those that have expired stay in it."""
        line = self._pending.get(queue)
        if line is None:
            return []
        picked: list[Record] = []
        expired: list[Place] = []
        while len(picked) < most and (item := line.pop()) is not None:
            record = self.jobs[item[1]]
            if not record.expired(now):
                if not (picked and picked[-1] is record):
                    picked.append(record)
            else:
                expired.append(item)
        for item in expired:
            line.push(item)
        return picked

    def position(self, key: bytes, limit: int) -> int:
        """How many pending jobs go before a pending one."""
        record = self.jobs.get(key)
        if record is None or record.state is not JobState.PENDING:
            return 0
        return self.line(record.queue).count_before((record.priority, key), limit)

    def pool(self, queue: str | None, state: JobState | None) -> Iterable[bytes]:
        """The ids of all jobs of that queue in that state, and maybe of others."""
        lines: Iterable[Line[Place]]
        if state is JobState.PENDING:
            lines = self._pending.values() if queue is None else filter(None, [self._pending.get(queue)])
        elif state is JobState.SCHEDULED:
            lines = [self.due]
        else:
            return self.sessions if state is JobState.RUNNING else self.jobs
        return (key for line in lines for _, key in line)

    def running_under(self, workers: Container[str | None], most: int) -> list[Record]:
        """Up to ``most`` of the jobs that these workers have claimed."""
        running = (self.jobs[key] for key in self.sessions)
        return list(islice((record for record in running if record.worker in workers), most))

    def take(self, line: Line[Place], most: int, now: int) -> list[Record]:
        """Up to ``most`` records of the line whose time has come, each once."""
        taken: dict[bytes, Record] = {}
        while len(taken) < most:
            item = line.peek()
            if item is None or item[0] > now:
                break
            line.pop()
            taken[item[1]] = self.jobs[item[1]]
        return list(taken.values())

    # Claims.

    def open_claim(self, stored: Claimed, running: set[bytes], number: int | None = None) -> int:
        number = self.next_claim if number is None else number
        self.next_claim = max(self.next_claim, number + 1)
        self.claims[number] = OpenClaim(stored, running)
        for key in running:
            self.claim_of[key] = number
        return number

    def end_claim(self, key: bytes) -> int | None:
        """A job no longer runs under its claim; the claim's number if it was the last of them."""
        self.sessions.pop(key, None)
        number = self.claim_of.pop(key, None)
        if number is None:
            return None
        claim = self.claims[number]
        claim.running.discard(key)
        if claim.running:
            return None
        del self.claims[number]
        return number

    def mentions(self, key: bytes) -> list[int]:
        """The stored claims that name a job which does not run under them."""
        return [
            number
            for number, claim in self.claims.items()
            if key not in claim.running and any(entry[0] == key for entry in claim.stored.entries)
        ]
