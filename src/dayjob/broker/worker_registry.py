"""The workers of a storage. Each has a document, written with every heartbeat.

A worker is dead when its document has not changed for ``dead_after``, or its process is known to be gone. A
process of this machine that is known to live has more time: its handlers may use all of the CPU. The leader
measures the silence by its own elapsed time, so a step of the engine's clock declares no worker dead.
It is marked first, and removed when its claims have been ended, so that another leader can finish the work
after a crash. The next heartbeat of a marked worker fails its compare-and-set: it must register again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dayjob.broker.retrying_storage import RetryingStorage
from dayjob.duties import BEATS, RECLAIM_INTERVAL
from dayjob.engines.base import Document, DocumentWrite
from dayjob.model.codec import UNDECODABLE
from dayjob.model.durations import SECOND
from dayjob.model.worker_info import WorkerInfo
from dayjob.runtime.clock import Clock
from dayjob.runtime.process import is_alive, is_gone, this_process
from dayjob.runtime.signals import FEW

_log = logging.getLogger("dayjob.broker")

KIND = "worker"

_MOST_COUNTED = 100
"""Queues whose waiting workers are counted in the document of the lead."""

RECONNECT = 4.0
"""Seconds that a process may need to connect again after an outage, and to store a heartbeat."""

_LEAVE_TRIES = 3

LIVING = 4
"""A process of this machine that is known to live may be silent for this multiple of ``dead_after``."""


class Member(Struct, frozen=True, omit_defaults=True):
    """The document of a worker. Two heartbeats never have the same value."""

    id: str
    name: str
    app: str
    host: str
    machine: str
    pid: int
    process_started: str
    version: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    schedules: tuple[str, ...]
    """The recurring jobs that its code declares."""
    slots: int
    dead_after: int
    started_us: int = 0
    running: int = 0
    beat: int = 0
    gone: bool = False


class Beat(Struct, frozen=True):
    """A heartbeat that is not stored yet: a compare-and-set of the worker's document."""

    id: str
    expected: bytes
    value: bytes


class Seen(Struct, frozen=True):
    """A member and the document that it was decoded from."""

    document: Document
    member: Member

    def silent_for(self, now: int) -> float:
        """Return the seconds since its last heartbeat, by the engine's clock."""
        return (now - self.document.written_us) / SECOND

    def info(self) -> WorkerInfo:
        shared = WorkerInfo.__struct_fields__[:-1]
        fields = {name: getattr(self.member, name) for name in shared}
        return WorkerInfo(**fields, seen_us=self.document.written_us)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Member).decode


def next_beat(member: Member, running: int) -> tuple[Member, Beat]:
    """Return the next document of a worker, and the heartbeat that stores it."""
    fresh = replace(member, running=running, beat=member.beat + 1)
    return fresh, Beat(member.id, _encode(member), _encode(fresh))


class DocumentWatch:
    """For how long documents have not changed, by the elapsed time of the process that watches them.

    The engine's clock may be set. Then the times of all documents are wrong at once. So that clock counts
    only for the time before the first look at a value, and only in part: one look declares no worker dead.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[bytes, float]] = {}
        """The last value of each document, and since when it is unchanged, in seconds of elapsed time."""

    def look(self, document: Document, now: int, elapsed: float, credit: float, *, gap: bool = False) -> None:
        """Record the value at the engine's time ``now``.

        ``credit`` is the most that counts of the time before the first look at this value, and of the time
        before this look after a ``gap``. If it is negative, the document gets that time in addition, unless
        it was watched.
        """
        value, since = self._seen.get(document.name, (None, 0.0))
        watched = value is not None and not gap
        if value != document.value:
            age = (now - document.written_us) / SECOND
            since = elapsed - min(max(age, 0.0), max(credit, 0.0) if watched else credit)
        elif gap:
            since = max(since, elapsed - credit)
        self._seen[document.name] = (document.value, since)

    def unchanged(self, document: Document, elapsed: float) -> float | None:
        """Return for how many seconds the document has this value; None if there was no look at it."""
        if document.name not in self._seen:
            return None
        value, since = self._seen[document.name]
        return elapsed - since if value == document.value else 0.0

    def keep(self, names: Iterable[str]) -> None:
        """Drop all documents but those with these names."""
        self._seen = {name: self._seen[name] for name in names if name in self._seen}


class WorkerRegistry:
    """Reads and writes the documents of the workers."""

    def __init__(self, storage: RetryingStorage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._watch = DocumentWatch()
        self._looked = float("-inf")
        self._waiting: Counter[str] = Counter()
        """The workers with a free slot, by queue, as of the last look."""

    def count_waiting(self) -> dict[str, int]:
        """Return how many workers had a free slot at the last look, by queue, where they are many."""
        return {queue: number for queue, number in self._waiting.most_common(_MOST_COUNTED) if number > FEW}

    async def join(self, member: Member) -> Member:
        now, _ = await self._storage.documents(KIND)
        member = replace(member, started_us=now)
        await self._write(member.id, None, member)
        return member

    async def beat(self, member: Member, running: int) -> Member | None:
        """Store a heartbeat of a worker. None if it has been declared dead."""
        fresh, beat = next_beat(member, running)
        return fresh if await self.store_beats([beat]) else await self._beat_again(member, running)

    async def store_beats(self, beats: Sequence[Beat]) -> bool:
        """Store heartbeats of different workers in one commit. If any of them is refused, store none."""
        return await self._storage.compare_and_set(
            [DocumentWrite(KIND, beat.id, beat.expected, beat.value) for beat in beats]
        )

    async def _beat_again(self, member: Member, running: int) -> Member | None:
        _, members = await self._read()
        for seen in members:  # An earlier heartbeat may have been committed although it failed.
            stored = seen.member
            if stored.id == member.id and not stored.gone:
                fresh = replace(stored, running=running, beat=stored.beat + 1)
                return fresh if await self._write(member.id, seen.document.value, fresh) else None
        return None

    async def leave(self, member: Member) -> None:
        """Remove a worker that has ended. Its last heartbeat may still be on its way, in another process."""
        for _ in range(_LEAVE_TRIES):
            found = [seen for seen in (await self._read())[1] if seen.member.id == member.id]
            if not found or await self._write(member.id, found[0].document.value, None):
                return

    async def live(self) -> tuple[int, list[Seen]]:
        """Return the engine's time, and the workers that are alive at that time."""
        now, members = await self._read()
        elapsed = self._clock.elapsed()
        return now, [
            seen
            for seen in members
            if not seen.member.gone
            and not (self._is_silent(seen, seen.silent_for(now)) and self._is_watched_silent(seen, elapsed))
        ]

    async def mark_dead(self, trust_silence: bool) -> list[Seen]:
        """Mark the workers that are dead. Return all that are marked.

        Silence counts as far as this process has watched it. With ``trust_silence`` the engine's
        clock is enough.
        """
        started = self._clock.elapsed()
        gap, self._looked = started - self._looked, float("-inf")
        now, members = await self._read()
        replied = self._clock.elapsed()
        # The reply may be late, after an outage. Silence is measured at the time of the call.
        called = now - round((replied - started) * SECOND)
        marked = []
        for seen in members:
            if seen.member.gone:
                marked.append(seen)
                continue
            self._look(seen, now, replied, gap)
            silent = self._is_watched_silent(seen, started) or (
                trust_silence and self._is_silent(seen, seen.silent_for(called))
            )
            if not (silent or self._ended(seen.member)):
                continue
            gone = replace(seen.member, gone=True)
            if await self._write(gone.id, seen.document.value, gone):
                why = "sent no heartbeat in time" if silent else "has ended without deregistering"
                _log.warning("worker %s %s: its claims are ended", gone.id, why)
                marked.append(Seen(Document(gone.id, _encode(gone), now), gone))
        self._watch.keep(seen.document.name for seen in members)
        self._waiting = Counter(
            queue
            for seen in members
            if not seen.member.gone and seen.member.running < seen.member.slots
            for queue in seen.member.queues or ("",)
        )
        self._looked = started
        return marked

    def _look(self, seen: Seen, now: int, elapsed: float, gap: float) -> None:
        """Watch a worker's document. ``gap`` is the time since the last look.

        Before the first look, and in a gap, an outage may have stopped the heartbeats, or the clock may have
        been set. So a worker is watched for one heartbeat at least, and for as long as it may take to connect
        again, before its silence counts.
        """
        beat = seen.member.dead_after / SECOND / BEATS
        interval = min(beat, RECLAIM_INTERVAL)
        outage = gap > min(5 * interval, (BEATS - 1) * beat)
        credit = (BEATS - 1) * beat - interval
        if seen.silent_for(now) > (BEATS - 1) * beat:  # An outage is possible.
            credit = min(credit, BEATS * beat - RECONNECT)
        self._watch.look(seen.document, now, elapsed, credit, gap=outage)

    def _is_watched_silent(self, seen: Seen, elapsed: float) -> bool:
        """Whether this process saw no change of the worker's document for too long, or does not watch it."""
        unchanged = self._watch.unchanged(seen.document, elapsed)
        return unchanged is None or self._is_silent(seen, unchanged)

    def _is_silent(self, seen: Seen, seconds: float) -> bool:
        member = seen.member
        limit = member.dead_after / SECOND
        return seconds > limit and (seconds > LIVING * limit or not self._lives(member))

    async def remove(self, seen: Seen) -> None:
        await self._write(seen.member.id, seen.document.value, None)

    def _lives(self, member: Member) -> bool:
        """Whether the worker is known to live, in another process of this machine."""
        here = this_process()
        return (
            member.machine == here.host
            and member.pid != here.pid
            and is_alive(member.pid, member.process_started)
        )

    def _ended(self, member: Member) -> bool:
        """Whether the worker's process is known to have ended."""
        here = this_process()
        if not self._storage.engine.capabilities.multi_process:  # Only one process can open it.
            return (member.machine, member.pid, member.process_started) != (here.host, here.pid, here.started)
        return member.machine == here.host and is_gone(member.pid, member.process_started)

    async def _read(self) -> tuple[int, list[Seen]]:
        now, documents = await self._storage.documents(KIND)
        members = []
        for document in documents:
            try:
                members.append(Seen(document, _decode(document.value)))
            except UNDECODABLE as error:
                _log.warning(
                    "the document of worker %r can't be decoded and is removed: %s", document.name, error
                )
                await self._write(document.name, document.value, None)
        return now, members

    async def _write(self, id: str, expected: bytes | None, member: Member | None) -> bool:
        value = None if member is None else _encode(member)
        return await self._storage.compare_and_set([DocumentWrite(KIND, id, expected, value)])
