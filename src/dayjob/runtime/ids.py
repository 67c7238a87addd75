"""Job ids: UUID version 7, strictly increasing within a process, across its threads and after a fork.

Layout: 48 bits of milliseconds, the version, then a 74-bit tail (with the variant inside). The tail
starts at a random place in its lower half each millisecond and grows by a random step within it, so
order is kept without a shared counter. When the clock stands still or goes back, the last millisecond
goes on; should its tail run out, the next millisecond is taken in advance.
"""

from __future__ import annotations

import hashlib
import os
from threading import Lock

from dayjob.runtime import entropy
from dayjob.runtime.clock import SYSTEM, Clock

_TAIL_BITS = 74
_LOW_BITS = 62
_LOW_MASK = (1 << _LOW_BITS) - 1


class IdSource:
    """Makes ids. One per process is enough: ``new_key``."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._lock = Lock()
        self._millis = 0
        self._tail = 0

    def new_key(self) -> bytes:
        """The 16 bytes of a new id, above all made before."""
        with self._lock:
            millis = self._clock.now() // 1000
            tail = self._tail + 1 + entropy.bits(32)
            if millis > self._millis or tail >> _TAIL_BITS:
                self._millis = max(millis, self._millis + 1)
                tail = entropy.bits(_TAIL_BITS - 1)
            self._tail = tail
            return _key(self._millis, tail)

    def forked(self) -> None:
        """Part from the parent's sequence: a new lock, and the next id in a later millisecond."""
        self._lock = Lock()
        self._tail = 1 << _TAIL_BITS


def derived_key(millis: int, seed: bytes) -> bytes:
    """The id of what happens at a time and is told from all else by its seed: always the same."""
    tail = int.from_bytes(hashlib.sha256(seed).digest()) >> (256 - _TAIL_BITS)
    return _key(millis, tail)


def _key(millis: int, tail: int) -> bytes:
    value = (
        millis << 80
        | 7 << 76
        | (tail >> _LOW_BITS) << 64
        | 2 << 62
        | (tail & _LOW_MASK)
    )  # fmt: skip
    return value.to_bytes(16)


_process = IdSource()
new_key = _process.new_key

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forked)
