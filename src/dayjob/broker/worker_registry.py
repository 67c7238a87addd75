"""The workers of a storage: each has a note that it writes again with every beat.

A note that was not written for its worker's ``dead_after``, or whose process is known to be gone, is marked
first and removed when the claims have been taken back, so that whoever takes over can finish that. The marked
worker's next beat finds its note changed: it has been replaced, and must register anew.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dayjob.broker.storage import Storage
from dayjob.engines.base import Document, DocumentWrite
from dayjob.model.durations import SECOND
from dayjob.model.worker_info import WorkerInfo
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.process import is_gone, this_process

_log = logging.getLogger("dayjob.broker")

KIND = "worker"


class Member(Struct, frozen=True, omit_defaults=True):
    """What a worker notes of itself. Two beats never have the same note."""

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
    """What its code declares to be recurring."""
    slots: int
    dead_after: int
    started_us: int = 0
    running: int = 0
    beat: int = 0
    gone: bool = False


class Seen(Struct, frozen=True):
    """A member and the note that it comes from."""

    note: Document
    member: Member

    def silent(self, now: int) -> bool:
        return now - self.note.written_us > self.member.dead_after

    def info(self) -> WorkerInfo:
        member = self.member
        return WorkerInfo(
            member.id, member.name, member.app, member.host, member.pid, member.version, member.queues,
            member.tasks, member.slots, member.running, member.started_us, self.note.written_us,
        )  # fmt: skip


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Member).decode


class WorkerRegistry:
    """Reads and writes the notes of the workers."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def join(self, member: Member) -> Member:
        """Register a worker that is not on the roster."""
        now, _ = await self._storage.documents(KIND)
        member = replace(member, started_us=now)
        await self._write(member.id, None, member)
        return member

    async def beat(self, member: Member, running: int) -> Member | None:
        """Tell that the worker lives; None if it was declared dead."""
        fresh = replace(member, running=running, beat=member.beat + 1)
        if await self._write(member.id, _encode(member), fresh):
            return fresh
        _, members = await self._read()
        for seen in members:  # An earlier beat may have been written though it seemed to fail.
            stored = seen.member
            if stored.id == member.id and not stored.gone:
                fresh = replace(stored, running=running, beat=stored.beat + 1)
                return fresh if await self._write(member.id, seen.note.value, fresh) else None
        return None

    async def leave(self, member: Member) -> None:
        """Take a worker that has ended off the roster."""
        for seen in (await self._read())[1]:
            if seen.member.id == member.id:
                await self._write(member.id, seen.note.value, None)

    async def live(self) -> tuple[int, list[Seen]]:
        """The engine's time, and the workers that are alive by it."""
        now, members = await self._read()
        return now, [seen for seen in members if not seen.member.gone and not seen.silent(now)]

    async def mark_dead(self, trusting: bool) -> list[Seen]:
        """Mark the workers that are gone, and give all that are marked.

        Silence is no proof while not ``trusting``: they may have been as cut off as we were.
        """
        asked = SYSTEM.elapsed()
        now, members = await self._read()
        then = now - round(
            (SYSTEM.elapsed() - asked) * SECOND
        )  # The answer may have come late, after an outage.
        marked = []
        for seen in members:
            if seen.member.gone:
                marked.append(seen)
                continue
            silent = seen.silent(then)
            if not (self._ended(seen.member) or (trusting and silent)):
                continue
            gone = replace(seen.member, gone=True)
            if await self._write(gone.id, seen.note.value, gone):
                why = "was not seen in time" if silent else "has ended without a word"
                _log.warning("worker %s %s: its jobs are taken back", gone.id, why)
                marked.append(Seen(Document(gone.id, _encode(gone), now), gone))
        return marked

    async def remove(self, seen: Seen) -> None:
        await self._write(seen.member.id, seen.note.value, None)

    def _ended(self, member: Member) -> bool:
        """Whether the worker's process is known to have ended."""
        here = this_process()
        if not self._storage.engine.capabilities.multi_process:  # All but this one are shut out.
            return (member.machine, member.pid, member.process_started) != (here.host, here.pid, here.started)
        return member.machine == here.host and is_gone(member.pid, member.process_started)

    async def _read(self) -> tuple[int, list[Seen]]:
        now, documents = await self._storage.documents(KIND)
        members = []
        for note in documents:
            try:
                members.append(Seen(note, _decode(note.value)))
            except msgspec.MsgspecError as error:
                _log.warning("the note of worker %r can't be read and is removed: %s", note.name, error)
                await self._write(note.name, note.value, None)
        return now, members

    async def _write(self, id: str, expected: bytes | None, member: Member | None) -> bool:
        value = None if member is None else _encode(member)
        return await self._storage.compare_and_set([DocumentWrite(KIND, id, expected, value)])
