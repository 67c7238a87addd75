"""Which process does the duties of the fleet: the one that holds a note, written again within its term.

Others look when the term is over, when it is given up, or, on the holder's own machine, as soon as its
process is gone. Two that both believe to lead for a moment do no harm: every duty is safe side by side with
itself.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dayjob.broker.storage import Storage
from dayjob.engines.base import Document, DocumentWrite
from dayjob.errors import DayjobError
from dayjob.model.durations import SECOND
from dayjob.runtime.clock import Clock
from dayjob.runtime.ids import new_key
from dayjob.runtime.process import is_gone, this_process

_log = logging.getLogger("dayjob.duties")

KIND = "duty"
_NAME = "leader"

TERM = 5.0
"""Seconds for which the lead holds after it was taken or renewed."""

RENEWAL = 1.5
_LOOK = 1.0
"""Seconds between looks at the holder's process, on its own machine."""


class Holder(Struct, frozen=True):
    id: str
    machine: str
    pid: int
    started: str
    renewed: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Holder).decode


class LeaderElection:
    """One broker's part in it."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        here = this_process()
        self._me = Holder(new_key().hex(), here.host, here.pid, here.started)
        self._storage = storage
        self._clock = clock
        self._until = float("-inf")
        self._sought = False
        self._watched: tuple[bytes, float] = (b"", 0.0)
        """What another holder noted, and since when it is the same."""

    @property
    def alone(self) -> bool:
        """Whether no other process can have the storage."""
        return not self._storage.engine.capabilities.multi_process

    @property
    def leads(self) -> bool:
        return self.alone or self._clock.elapsed() < self._until

    async def seek(self) -> float:
        """Renew the lead or try to get it; seconds until that is wanted again."""
        asked = self._clock.elapsed()
        now, documents = await self._storage.documents(KIND)
        note = next((note for note in documents if note.name == _NAME), None)
        holder = None if note is None else _read(note)
        if note is not None and holder is not None and holder.id != self._me.id:
            here = holder.machine == self._me.machine
            if note.value != self._watched[0]:
                self._watched = (note.value, asked)
            # Whichever is sooner: the engine's clock may have been put back since it was written.
            left = TERM - max((now - note.written_us) / SECOND, asked - self._watched[1])
            if left > 0 and not (here and is_gone(holder.pid, holder.started)):
                self._step_down()
                return min(left, _LOOK) if here else left
        mine = replace(self._me, renewed=self._me.renewed + 1)
        write = DocumentWrite(KIND, _NAME, None if note is None else note.value, _encode(mine))
        self._sought = True
        if not await self._storage.compare_and_set([write]):
            self._step_down()
            return 0.0
        if not self.leads:
            _log.info("this process does the duties now")
        self._me, self._until = mine, asked + TERM
        return RENEWAL

    async def give_up(self) -> None:
        """Let others lead at once."""
        self._step_down()
        if self._sought:
            self._sought = False
            try:
                while not await self._remove():
                    pass
            except DayjobError as error:
                _log.info("the lead could not be given up, and ends with its term: %s", error)

    async def _remove(self) -> bool:
        """Remove our note; false if a renewal that was under way came in between."""
        _, documents = await self._storage.documents(KIND)
        for note in documents:
            holder = _read(note)
            if holder is not None and holder.id == self._me.id:
                write = DocumentWrite(KIND, note.name, note.value, None)
                return await self._storage.compare_and_set([write], announce=True)
        return True

    def _step_down(self) -> None:
        self._until = float("-inf")


def _read(note: Document) -> Holder | None:
    try:
        return _decode(note.value)
    except msgspec.MsgspecError:
        return None
