"""The link between a supervisor and one child: a socket pair.

The child sends READY when its worker has started. The supervisor sends STOP as a message, not as a signal: a
service manager may send SIGTERM to both, and a second signal would end the drain. The end of the stream means
that the supervisor is gone; then the child drains and ends too.

The other messages are for heartbeats. A child sends SHARE with the heartbeats that are due. The supervisor
collects those of all children and sends them to one of them as STORE. That child stores them and replies with
STORED, and the supervisor sends CONFIRM to the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue

import msgspec
from msgspec import Struct

from dayjob.broker.worker_registry import Beat
from dayjob.model.codec import UNDECODABLE
from dayjob.runtime.clock import SYSTEM, block
from dayjob.worker import Worker
from dayjob.worker.shared_beats import Store

_log = logging.getLogger("dayjob.worker")

READY, STOP, STOP_NOW = b"r", b"s", b"n"
SHARE, STORE, STORED, CONFIRM = b"b", b"t", b"d", b"c"

KILL_AFTER = 5.0
"""Seconds after the shutdown timeout until a worker process that has not ended is killed."""

UNRESPONSIVE = 12
"""If a reply does not come in time, a child shares no heartbeats for this multiple of that time."""

_LENGTH = 4


class Shared(Struct, frozen=True, array_like=True):
    """The payload of SHARE. ``storage`` is equal for processes with the same URL."""

    number: int
    storage: bytes
    limit: float
    """Seconds after which the child stores them itself."""
    beats: tuple[Beat, ...]


class ToStore(Struct, frozen=True, array_like=True):
    """The payload of STORE: the heartbeats of the other children."""

    number: int
    beats: tuple[Beat, ...]


class Confirmed(Struct, frozen=True, array_like=True):
    """The payload of STORED and of CONFIRM."""

    number: int
    stored: bool


_encode = msgspec.msgpack.Encoder().encode
_decode_to_store = msgspec.msgpack.Decoder(ToStore).decode
_decode_confirmed = msgspec.msgpack.Decoder(Confirmed).decode


def message(kind: bytes, payload: Struct | None = None) -> bytes:
    data = b"" if payload is None else _encode(payload)
    return kind + len(data).to_bytes(_LENGTH, "big") + data


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the kind and the payload. Raise ``IncompleteReadError`` at the end of the stream."""
    head = await reader.readexactly(1 + _LENGTH)
    return head[:1], await reader.readexactly(int.from_bytes(head[1:], "big"))


class SupervisorLink:
    """The child's end of the link, read and written by threads."""

    def __init__(self, descriptor: int, shutdown_timeout: float) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._incoming = self._socket.makefile("rb")
        self._kill_after = shutdown_timeout + KILL_AFTER
        self._worker: Worker | None = None
        self._guard = threading.Lock()
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._shared: dict[int, Future[tuple[Beat, ...] | bool]] = {}
        """Answers to come: the heartbeats to store, or whether another process has stored these."""
        self._unresponsive_until = float("-inf")
        self._outgoing: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._listen, name="dayjob-supervisor-link", daemon=True).start()
        # A frozen supervisor does not read, so that a write may block.
        threading.Thread(target=self._write, name="dayjob-supervisor-link-out", daemon=True).start()

    def attach(self, worker: Worker) -> None:
        """Stop this worker on STOP. Before this call, STOP ends the process."""
        with self._guard:
            self._worker = worker

    def ready(self) -> None:
        with suppress(OSError):  # The supervisor is gone; the thread that reads handles it.
            self._send(message(READY))

    # Heartbeats.

    @property
    def is_available(self) -> bool:
        return SYSTEM.elapsed() >= self._unresponsive_until

    async def share(self, url: str, beats: Sequence[Beat], store: Store, limit: float) -> bool:
        """Have the heartbeats stored, by this process or by another child. Return whether they are."""
        number = next(self._numbers)
        answer: Future[tuple[Beat, ...] | bool] = Future()
        self._shared[number] = answer
        storage = hashlib.sha256(url.encode()).digest()
        self._outgoing.put(message(SHARE, Shared(number, storage, limit, tuple(beats))))
        try:
            others = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            self._unresponsive_until = max(self._unresponsive_until, SYSTEM.elapsed() + UNRESPONSIVE * limit)
            raise
        finally:
            self._shared.pop(number, None)
        if isinstance(others, bool):
            return others
        stored = False
        try:
            stored = await store([*beats, *others])
        finally:
            self._outgoing.put(message(STORED, Confirmed(number, stored)))
        return stored

    def _answer(self, number: int, answer: tuple[Beat, ...] | bool) -> bool:
        """Return whether the heartbeat with this number still waits for its answer."""
        waiting = self._shared.pop(number, None)
        if waiting is None or not waiting.set_running_or_notify_cancel():
            return False
        waiting.set_result(answer)
        return True

    # The threads.

    def _write(self) -> None:
        with suppress(OSError):  # The supervisor is gone; the thread that reads handles it.
            while True:
                self._send(self._outgoing.get())

    def _send(self, sent: bytes) -> None:
        with self._sending:
            self._socket.sendall(sent)

    def _listen(self) -> None:
        while received := self._read():
            kind, payload = received
            if kind in (STORE, CONFIRM):
                self._on_beats(kind, payload)
                continue
            with self._guard:
                if self._worker is None:
                    os._exit(0)
            if kind == STOP_NOW:
                self._worker.stop_now()
            else:
                self._worker.stop()
        self._unresponsive_until = float("inf")
        for number in list(self._shared):
            self._answer(number, False)
        with self._guard:
            if self._worker is None:
                os._exit(1)
        _log.warning("worker %s stops because its supervisor is gone", self._worker.name)
        self._worker.stop()
        block(self._kill_after)
        os._exit(1)

    def _on_beats(self, kind: bytes, payload: bytes) -> None:
        with suppress(*UNDECODABLE):
            if kind == CONFIRM:
                confirmed = _decode_confirmed(payload)
                self._answer(confirmed.number, confirmed.stored)
                return
            batch = _decode_to_store(payload)
            if not self._answer(batch.number, batch.beats):  # It was frozen, and the batch is too old.
                self._outgoing.put(message(STORED, Confirmed(batch.number, False)))

    def _read(self) -> tuple[bytes, bytes] | None:
        """Return the next message; None at the end of the stream."""
        with suppress(OSError):
            head = self._incoming.read(1 + _LENGTH)
            size = int.from_bytes(head[1:], "big")
            payload = self._incoming.read(size)
            if len(head) == 1 + _LENGTH and len(payload) == size:
                return head[:1], payload
        return None
