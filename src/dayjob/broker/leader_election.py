"""The election of the process that does the duties of the fleet.

The leader holds a document and renews it within its term. Another process takes the lead when the term has
expired, when the leader has released it, or, on the leader's own machine, as soon as its process is gone. Two
concurrent leaders are safe: every duty may run twice at the same time.

A follower reads the document about once a term, so that a thousand followers cost the storage little. They do
not read at the same time: the reads after the end of a term are spread over ``SPREAD`` seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dayjob.broker.retrying_storage import RetryingStorage
from dayjob.engines.base import Document, DocumentWrite
from dayjob.errors import DayjobError
from dayjob.model.codec import UNDECODABLE
from dayjob.model.durations import SECOND
from dayjob.runtime import entropy
from dayjob.runtime.clock import Clock
from dayjob.runtime.ids import new_key
from dayjob.runtime.process import is_gone, this_process

_log = logging.getLogger("dayjob.duties")

KIND = "duty"
_NAME = "leader"

SHORTEST_TERM, LONGEST_TERM = 5.0, 20.0
"""The bounds of the term: seconds for which the lead is valid after it was acquired or renewed."""

SPREAD = 2.0
_LOOK = 1.0
"""Seconds between checks of the leader's process, on its own machine. They do not read the storage."""

_EARLY = 0.01
"""Seconds by which a timer of the event loop may end too early."""


class Holder(Struct, frozen=True):
    """The process that holds the lead."""

    id: str
    machine: str
    pid: int
    started: str
    renewed: int = 0
    term: float = LONGEST_TERM
    waiting: dict[str, int] = {}
    """How many workers wait for jobs, by queue, where they are many. The name is empty for all queues."""


def term_of(dead_after: float) -> float:
    """Return the term of a leader whose fleet declares workers dead after this many seconds of silence."""
    return min(max(dead_after * 4 / 3, SHORTEST_TERM), LONGEST_TERM)


def renewal_of(term: float) -> float:
    """Return the seconds between the renewals of a lead."""
    return min(term / 4, 2.0)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Holder).decode


class LeaderElection:
    """One broker's part in the election."""

    def __init__(
        self,
        storage: RetryingStorage,
        clock: Clock,
        dead_after: float,
        count_waiting: Callable[[], dict[str, int]],
    ) -> None:
        here = this_process()
        self._me = Holder(new_key().hex(), here.host, here.pid, here.started, term=term_of(dead_after))
        self._storage = storage
        self._clock = clock
        self._count_waiting = count_waiting
        self._waiting: dict[str, int] = {}
        self._until = float("-inf")
        self._sought = False
        self._stored: bytes | None = None
        """The document as this process wrote it last; None if a write failed or has an unknown outcome."""
        self._watched: tuple[bytes, float] = (b"", 0.0)
        """The document of another leader, and the time since when it is unchanged."""
        self._neighbour: Holder | None = None
        """The leader, if it is another process of this machine."""
        self._look_at, self._read_at = float("inf"), float("-inf")
        """The times of the next look at its process, and of the next read of the document."""

    @property
    def alone(self) -> bool:
        """Whether no other process can open the storage."""
        return not self._storage.engine.capabilities.multi_process

    @property
    def leads(self) -> bool:
        return self.alone or self._clock.elapsed() < self._until

    def waiting(self, queue: str) -> int:
        """Return how many workers wait for jobs of the queue, as of the last read of the lead; 0 for few."""
        return self._waiting.get(queue, 0) + self._waiting.get("", 0)

    @property
    def crowded(self) -> bool:
        """Whether many workers wait for jobs of some queue."""
        return bool(self._waiting)

    async def seek(self) -> float:
        """Renew the lead or try to get it. Return seconds until the next call."""
        started = self._clock.elapsed()
        # A call before the time of the look has another cause: the leader may have released the lead.
        if self._look_at - _EARLY <= started < self._read_at and not _is_gone(self._neighbour):
            return self._next_look(started)
        if self.leads and self._stored is not None and await self._write(self._stored, started):
            return renewal_of(self._me.term)
        now, documents = await self._storage.documents(KIND)
        document = next((document for document in documents if document.name == _NAME), None)
        holder = None if document is None else _read(document)
        if document is not None and holder is not None and holder.id != self._me.id:
            self._neighbour = holder if holder.machine == self._me.machine else None
            if document.value != self._watched[0]:
                self._watched = (document.value, started)
            # The engine's clock may have been set back since the write. The shorter time counts.
            left = holder.term - max((now - document.written_us) / SECOND, started - self._watched[1])
            self._waiting = holder.waiting
            if left > 0 and not _is_gone(self._neighbour):
                self._step_down()
                self._read_at = started + left + SPREAD * entropy.fraction()
                return self._next_look(started)
        self._read_at = float("-inf")  # A leader writes its document at each call.
        self._sought = True
        led = self.leads
        if not await self._write(None if document is None else document.value, started):
            self._step_down()
            return 0.0
        if not led:
            _log.info("this process is the leader and runs the duties of the fleet")
        return renewal_of(self._me.term)

    async def _write(self, expected: bytes | None, started: float) -> bool:
        """Write the document of this process. Return False if the stored one is not as expected."""
        self._waiting = self._count_waiting() if self.leads else {}
        mine = replace(self._me, renewed=self._me.renewed + 1, waiting=self._waiting)
        value = _encode(mine)
        self._stored = None
        if not await self._storage.compare_and_set([DocumentWrite(KIND, _NAME, expected, value)]):
            return False
        self._me, self._until, self._stored = mine, started + mine.term, value
        return True

    def _next_look(self, now: float) -> float:
        """Return seconds until the next look at the leader's process, or at its document."""
        self._look_at = now + _LOOK if self._neighbour else float("inf")
        return min(self._look_at, self._read_at) - now

    async def give_up(self) -> None:
        """Release the lead, so that another process can acquire it immediately."""
        self._step_down()
        if self._sought:
            self._sought = False
            try:
                while not await self._remove():
                    pass
            except DayjobError as error:
                _log.info("the lead could not be released and expires with its term: %s", error)

    async def _remove(self) -> bool:
        """Remove the document of this process. Return False if a concurrent renewal changed it."""
        _, documents = await self._storage.documents(KIND)
        for document in documents:
            holder = _read(document)
            if holder is not None and holder.id == self._me.id:
                write = DocumentWrite(KIND, document.name, document.value, None)
                return await self._storage.compare_and_set([write], announce=True)
        return True

    def _step_down(self) -> None:
        self._until = float("-inf")


def _is_gone(holder: Holder | None) -> bool:
    return holder is not None and is_gone(holder.pid, holder.started)


def _read(document: Document) -> Holder | None:
    try:
        return _decode(document.value)
    except UNDECODABLE:
        return None
