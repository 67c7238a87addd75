"""No connection crosses a fork.

SQLite stores its locks in the memory of the process. In a forked child it would assume locks that the
child does not hold, and would commit into a log that the parent has deleted. All connections are therefore
closed before a fork. The parent's threads reopen theirs at the next use, and a child opens its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Protocol
from weakref import WeakSet


class Holder(Protocol):
    """An object with an open connection. ``lock`` is held while the connection is in use."""

    lock: Lock

    def disconnect(self) -> None: ...


_holders: WeakSet[Holder] = WeakSet()
_opening = Lock()
_held: list[Lock] = []


@contextmanager
def no_fork() -> Iterator[None]:
    """Block forks of this process."""
    with _opening:
        yield


def register(holder: Holder) -> None:
    with _opening:
        _holders.add(holder)


def _before() -> None:
    _opening.acquire()
    _held.append(_opening)
    for holder in list(_holders):
        holder.lock.acquire()
        _held.append(holder.lock)
        holder.disconnect()


def _after() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
