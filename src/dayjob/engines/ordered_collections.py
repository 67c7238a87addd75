"""Ordered collections with lazy deletion, so that no operation scans them; and a filter over them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sized
from heapq import heapify, heappop, heappush, nlargest, nsmallest
from itertools import islice
from typing import Any, Generic, TypeVar

_SLACK = 1000
_WALK = 10_000
_FEW = 1000

Item = TypeVar("Item", bound="tuple[Any, ...]")


class LazyHeap(Generic[Item]):
    """A heap whose entries may become stale. A stale entry is dropped when it reaches the top.

    If stale entries pile up below the top, to more than two for each job, all of them are dropped.
    """

    def __init__(self, is_current: Callable[[Item], bool], jobs: Sized) -> None:
        self._is_current = is_current
        self._jobs = jobs
        self._heap: list[Item] = []

    def __iter__(self) -> Iterator[Item]:
        """Iterate over all entries in no order, stale ones included."""
        return iter(self._heap)

    def push(self, item: Item) -> None:
        heap = self._heap
        while heap and not self._is_current(heap[0]):
            heappop(heap)
        heappush(heap, item)
        if len(heap) > _SLACK and len(heap) > 2 * len(self._jobs) + _SLACK:
            self._heap = [entry for entry in set(self._heap) if self._is_current(entry)]
            heapify(self._heap)

    def fill(self, items: Iterable[Item]) -> None:
        self._heap += items
        heapify(self._heap)

    def peek(self) -> Item | None:
        heap = self._heap
        while heap:
            if self._is_current(heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def take(self, limit: int, until: int) -> list[Item]:
        """Remove up to ``limit`` entries whose time, their first item, has come. Return each once."""
        taken: list[Item] = []
        while len(taken) < limit and (entry := self.peek()) is not None and entry[0] <= until:
            heappop(self._heap)
            if not taken or entry != taken[-1]:
                taken.append(entry)
        return taken

    def count_before(self, item: Item, limit: int) -> int:
        """Count the current entries that precede the item, up to ``limit``.

        A heap entry precedes all entries below it, so those that follow the item are never visited.
        """
        heap, found, indexes = self._heap, set[Item](), [0]
        while indexes and len(found) < limit:
            index = indexes.pop()
            if index < len(heap) and heap[index] < item:
                if self._is_current(heap[index]):
                    found.add(heap[index])
                indexes += (2 * index + 1, 2 * index + 2)
        return len(found)

    def pop(self) -> Item | None:
        heap = self._heap
        while heap:
            item = heappop(heap)
            if self._is_current(item):
                return item
        return None


class SortedKeys:
    """Keys in order. Ids mostly arrive in order, so adding appends. Discarded keys are removed later."""

    def __init__(self, is_current: Callable[[bytes], bool]) -> None:
        self._is_current = is_current
        self._keys: list[bytes] = []
        self._stale = 0

    def add(self, key: bytes) -> None:
        if not self._keys or key > self._keys[-1]:
            self._keys.append(key)
        else:
            index = bisect_left(self._keys, key)
            if self._keys[index] == key:
                self._stale -= 1
            else:
                self._keys.insert(index, key)

    def discard(self) -> None:
        """Count one key as stale."""
        self._stale += 1
        if self._stale > _SLACK and self._stale > len(self._keys) // 2:
            self._keys = [key for key in self._keys if self._is_current(key)]
            self._stale = 0

    def after(self, key: bytes | None, newest_first: bool = False) -> Iterator[bytes]:
        """Iterate over the current keys beyond ``key`` in the direction of travel."""
        keys = self._keys
        if newest_first:
            start = len(keys) if key is None else bisect_left(keys, key)
            indexes = range(start - 1, -1, -1)
        else:
            indexes = range(0 if key is None else bisect_right(keys, key), len(keys))
        return (keys[index] for index in indexes if self._is_current(keys[index]))


def matching(
    ordered: Iterator[bytes],
    matches: Callable[[bytes], bool],
    candidates: Callable[[], Iterable[bytes]],
    newest_first: bool = False,
) -> Iterator[bytes]:
    """Yield the keys that match, in order.

    It walks the ordered keys first. If the walk gets long, it sorts the ``candidates``, which include all
    keys that match: one pass over them is far shorter than a walk past a million other keys.
    """
    yield from filter(matches, islice(ordered, _WALK))
    following = next(ordered, None)
    if following is None:
        return
    if newest_first:
        left = {key for key in candidates() if key <= following}
        first = nlargest(_FEW, left)
    else:
        left = {key for key in candidates() if key >= following}
        first = nsmallest(_FEW, left)
    yield from filter(matches, first)
    yield from filter(matches, sorted(left.difference(first), reverse=newest_first))
