"""One heartbeat for all workers of a process, and of a process tree: their documents in one commit.

The workers of a tree beat at the same times. The first one waits a moment for the heartbeats of the others,
and stores all of them. Each heartbeat comes from its own worker's thread, so that no other worker can keep a
frozen one alive. A heartbeat that was refused, or is not confirmed in time, is stored by its worker itself.
"""

from __future__ import annotations

import asyncio
import os
import threading
import zlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

from dayjob.broker import Broker
from dayjob.broker.worker_registry import Beat
from dayjob.runtime import process
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.threads import call_on

CONFIRMED_WITHIN = 6
"""A shared heartbeat is confirmed within this fraction of ``dead_after``, or its worker stores it itself."""

LONGEST_WINDOW = 0.25
"""The most seconds for which the first heartbeat of a batch waits for others."""

Store = Callable[[Sequence[Beat]], Awaitable[bool]]
"""Stores heartbeats in one commit. Returns False if they were refused."""


def window_of(limit: float) -> float:
    """Return for how many seconds a batch waits for further heartbeats."""
    return min(LONGEST_WINDOW, limit / 4)


class Tree(Protocol):
    """The other processes of the tree, on the same machine."""

    @property
    def is_available(self) -> bool:
        """Whether heartbeats can be shared with them now."""
        ...

    async def share(self, url: str, beats: Sequence[Beat], store: Store, limit: float) -> bool:
        """Have the heartbeats stored, by this process or another one. Return whether they are.

        It is cancelled after ``limit`` seconds.
        """
        ...


class BeatGroup:
    """The workers of this process on one storage. Each calls ``share`` from its heartbeat's event loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._guard = threading.Lock()
        self._size = 0
        self._batch: list[tuple[Beat, Future[bool]]] = []
        self._full: Callable[[], None] = lambda: None

    def join(self) -> None:
        with self._guard:
            self._size += 1

    def leave(self) -> None:
        with self._guard:
            self._size -= 1

    @property
    def is_shared(self) -> bool:
        """Whether there are others to share a heartbeat with."""
        return self._size > 1 or _available_tree() is not None

    async def share(self, beat: Beat, store: Store, limit: float) -> bool:
        """Store the heartbeat together with those of the others. Return False if it is not confirmed."""
        confirmed: Future[bool] = Future()
        full = asyncio.Event()
        loop = asyncio.get_running_loop()
        with self._guard:
            self._batch.append((beat, confirmed))
            is_first = len(self._batch) == 1
            if is_first:
                self._full = partial(call_on, loop, full.set)
            if len(self._batch) >= self._size:
                self._full()
        try:
            async with asyncio.timeout(limit):
                if is_first:
                    return await self._store_batch(full, store, limit)
                return await asyncio.wrap_future(confirmed)
        except TimeoutError:
            return False

    async def _store_batch(self, full: asyncio.Event, store: Store, limit: float) -> bool:
        stored, begun = False, SYSTEM.elapsed()
        batch: list[tuple[Beat, Future[bool]]] = []
        try:
            await SYSTEM.wait(full, window_of(limit))
            batch = self._take()
            beats = [beat for beat, confirmed in batch if not confirmed.cancelled()]
            tree = _available_tree()
            if tree is None:
                stored = await store(beats)
            else:
                left = limit - (SYSTEM.elapsed() - begun)
                stored = await tree.share(self._url, beats, store, left)
            return stored
        finally:
            for _, confirmed in batch or self._take():
                with suppress(Exception):  # Its worker waits no longer.
                    confirmed.set_result(stored)

    def _take(self) -> list[tuple[Beat, Future[bool]]]:
        with self._guard:
            batch, self._batch = self._batch, []
            return batch


_groups: dict[tuple[int, str], BeatGroup] = {}
_groups_of_broker: WeakKeyDictionary[Broker, dict[tuple[int, str], BeatGroup]] = WeakKeyDictionary()
_joined: tuple[int, Tree] | None = None
_phase: float | None = None


def join_tree(tree: Tree) -> None:
    """Share the heartbeats of this process with the children of the same parent."""
    global _joined, _phase
    _joined, _phase = (process.pid, tree), _phase_of(os.getppid())


def _available_tree() -> Tree | None:
    """Return the tree, unless it does not reply, or this process was forked from a member."""
    if _joined is None or _joined[0] != process.pid or not _joined[1].is_available:
        return None
    return _joined[1]


def group_of(broker: Broker) -> BeatGroup:
    """Return the group of the workers of this process that use the same storage as this broker."""
    shared = broker.capabilities.multi_process  # Otherwise each broker has a storage of its own.
    groups = _groups if shared else _groups_of_broker.setdefault(broker, {})
    return groups.setdefault((process.pid, broker.url), BeatGroup(broker.url))


def next_beat_at(interval: float) -> float:
    """Return the time of the next heartbeat, on the clock's ``elapsed``: the same for a whole tree.

    The clock is that of the machine. Other trees of the machine have another phase.
    """
    global _phase
    if _phase is None:
        _phase = _phase_of(process.pid)
    now, shift = SYSTEM.elapsed(), _phase * interval
    return now + interval - (now - shift) % interval


def _phase_of(pid: int) -> float:
    """Return a fraction of an interval that only the processes with this root have."""
    identity = f"{process.this_host()} {pid} {process.started(pid)}"
    return zlib.crc32(identity.encode()) / 2**32
