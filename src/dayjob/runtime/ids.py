"""Job ids: UUID version 7, strictly increasing within a process, across its threads and after a fork.

Layout: 48 bits of milliseconds, the version, then a 74-bit tail (with the variant inside). Each millisecond
the tail starts at a random value in its lower half and grows by random steps, so ids increase without a
shared counter. When the clock stops or goes back, the last millisecond continues. If its tail overflows, the
next millisecond is used early.
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
_STEP_BITS = 32


class IdSource:
    """Generates ids. The instance of the process is ``new_key``."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._lock = Lock()
        self._millis = 0
        self._tail = 0

    def new_key(self) -> bytes:
        """Return the 16 bytes of a new id, greater than all before."""
        with self._lock:
            return self._next()

    def new_keys(self, count: int) -> list[bytes]:
        """Return new ids in their order: one reading of the clock, and a fifth of the time of single ones."""
        if count == 0:
            return []
        with self._lock:
            keys = [self._next()]
            low_bits = self._tail & _LOW_MASK
            if low_bits + (count << _STEP_BITS) > _LOW_MASK:  # The variant is above the low bits.
                return keys + [self._next() for _ in range(count - 1)]
            first = value = int.from_bytes(keys[0])
            for _ in range(count - 1):
                value += 1 + entropy.bits(_STEP_BITS)
                keys.append(value.to_bytes(16))
            self._tail += value - first
            return keys

    def _next(self) -> bytes:
        millis = self._clock.now() // 1000
        tail = self._tail + 1 + entropy.bits(_STEP_BITS)
        if millis > self._millis or tail >> _TAIL_BITS:
            self._millis = max(millis, self._millis + 1)
            tail = entropy.bits(_TAIL_BITS - 1)
        self._tail = tail
        return _key(self._millis, tail)

    def forked(self) -> None:
        """Leave the parent's sequence after a fork: a new lock, and the next id in a later millisecond."""
        self._lock = Lock()
        self._tail = 1 << _TAIL_BITS


def derived_key(millis: int, seed: bytes) -> bytes:
    """Return the id for a time and a seed. Equal arguments give the same id."""
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
new_keys = _process.new_keys

os.register_at_fork(after_in_child=_process.forked)
