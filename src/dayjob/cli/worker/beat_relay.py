"""The heartbeats of a supervisor's children, collected into batches. A child stores each batch.

The supervisor has no connection to the storage. It sends a batch to the child whose heartbeat came first:
that child was alive a moment ago. A batch is not repeated. If it fails, or its child ends or freezes, each
child stores its own heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
from msgspec import Struct

from dayjob.broker.worker_registry import Beat
from dayjob.cli.worker.supervisor_link import CONFIRM, STORE, Confirmed, Shared, ToStore, message
from dayjob.worker.shared_beats import window_of

MOST = 100
"""The most children whose heartbeats are stored in one commit."""

_decode_shared = msgspec.msgpack.Decoder(Shared).decode
_decode_confirmed = msgspec.msgpack.Decoder(Confirmed).decode


class Receiver(Protocol):
    """A child, as far as the relay sends messages to it."""

    def send(self, sent: bytes) -> None: ...


class _Waiting(Struct, frozen=True):
    child: Receiver
    number: int
    limit: float
    beats: tuple[Beat, ...]


class BeatRelay:
    """``count`` returns the number of children that send heartbeats."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._open: dict[bytes, list[_Waiting]] = {}
        """The batches that wait for further heartbeats, by storage."""
        self._storing: dict[Receiver, tuple[int, list[_Waiting]]] = {}
        """The children that store a batch: its number, and the others in it."""

    def share(self, child: Receiver, payload: bytes) -> None:
        """Add the heartbeats of a child to a batch."""
        shared = _decode_shared(payload)
        self.forget(child)  # An earlier batch that it did not reply to.
        batch = self._open.get(shared.storage)
        if batch is None:
            batch = self._open[shared.storage] = []
            window = window_of(shared.limit)
            asyncio.get_running_loop().call_later(window, self._close, shared.storage, batch)
        batch.append(_Waiting(child, shared.number, shared.limit, shared.beats))
        if len(batch) >= min(self._count(), MOST):
            self._close(shared.storage, batch)

    def stored(self, child: Receiver, payload: bytes) -> None:
        """Pass the reply of a child that has stored a batch to the others."""
        reply = _decode_confirmed(payload)
        self._end(child, reply.number, reply.stored)

    def forget(self, child: Receiver) -> None:
        """Remove a child that has ended. The others store their heartbeats themselves."""
        _, others = self._storing.pop(child, (None, []))
        _confirm(others, False)
        for batch in self._open.values():
            batch[:] = [waiting for waiting in batch if waiting.child is not child]

    def _close(self, storage: bytes, batch: list[_Waiting]) -> None:
        if self._open.get(storage) is not batch:
            return  # It was full before.
        del self._open[storage]
        if batch:
            first, *others = batch
            self._storing[first.child] = (first.number, others)
            beats = tuple(beat for waiting in others for beat in waiting.beats)
            first.child.send(message(STORE, ToStore(first.number, beats)))
            # If this child is frozen, the others get a negative reply before their own limit ends.
            asyncio.get_running_loop().call_later(
                first.limit / 2, self._end, first.child, first.number, False
            )

    def _end(self, child: Receiver, number: int, stored: bool) -> None:
        """Reply to the others of a batch, once."""
        if self._storing.get(child, (None, []))[0] == number:
            _confirm(self._storing.pop(child)[1], stored)


def _confirm(others: Iterable[_Waiting], stored: bool) -> None:
    for waiting in others:
        waiting.child.send(message(CONFIRM, Confirmed(waiting.number, stored)))
