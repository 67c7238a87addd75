"""Two small ordered collections that forget lazily, so that no operation scans; and a walk through them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sized
from heapq import heapify, heappop, heappush, nlargest, nsmallest
from itertools import islice
from typing import Any, Generic, TypeVar

_SLACK = 1000
_WALK = 10_000
_FEW = 1000

Item = TypeVar("Item", bound="tuple[Any, ...]")


class Line(Generic[Item]):
    """A heap whose entries may have become void: those are dropped when they reach the top.

    Should they pile up below it all the same, to more than two for each job there is, all are dropped.
    """

    def __init__(self, is_live: Callable[[Item], bool], jobs: Sized) -> None:
        self._is_live = is_live
        self._jobs = jobs
        self._heap: list[Item] = []

    def __iter__(self) -> Iterator[Item]:
        """All entries in no order, the void ones among them."""
        return iter(self._heap)

    def push(self, item: Item) -> None:
        self.peek()
        heappush(self._heap, item)
        if len(self._heap) > 2 * len(self._jobs) + _SLACK:
            self._heap = [entry for entry in set(self._heap) if self._is_live(entry)]
            heapify(self._heap)

    def fill(self, items: Iterable[Item]) -> None:
        """Push many at once."""
        self._heap += items
        heapify(self._heap)

    def peek(self) -> Item | None:
        heap = self._heap
        while heap:
            if self._is_live(heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def count_before(self, item: Item, limit: int) -> int:
        """How many live entries go before the item, counted up to ``limit``.

        A heap's entry goes before all below it, so those that go after the item are never looked at.
        """
        heap, found, places = self._heap, set[Item](), [0]
        while places and len(found) < limit:
            place = places.pop()
            if place < len(heap) and heap[place] < item:
                if self._is_live(heap[place]):
                    found.add(heap[place])
                places += (2 * place + 1, 2 * place + 2)
        return len(found)

    def pop(self) -> Item | None:
        item = self.peek()
        if item is not None:
            heappop(self._heap)
        return item


class SortedKeys:
    """Keys in order. Ids mostly arrive in order, so adding appends; discarding leaves a gap for later."""

    def __init__(self, is_live: Callable[[bytes], bool]) -> None:
        self._is_live = is_live
        self._keys: list[bytes] = []
        self._gaps = 0

    def add(self, key: bytes) -> None:
        if not self._keys or key > self._keys[-1]:
            self._keys.append(key)
        else:
            place = bisect_left(self._keys, key)
            if self._keys[place] == key:
                self._gaps -= 1
            else:
                insort(self._keys, key)

    def discard(self) -> None:
        """A key became void."""
        self._gaps += 1
        if self._gaps > _SLACK and self._gaps > len(self._keys) // 2:
            self._keys = [key for key in self._keys if self._is_live(key)]
            self._gaps = 0

    def after(self, key: bytes | None, newest_first: bool = False) -> Iterator[bytes]:
        """The live keys beyond ``key`` in the direction of travel."""
        keys = self._keys
        if newest_first:
            start = len(keys) if key is None else bisect_left(keys, key)
            places = range(start - 1, -1, -1)
        else:
            places = range(0 if key is None else bisect_right(keys, key), len(keys))
        return (keys[place] for place in places if self._is_live(keys[place]))


def fitting(
    ordered: Iterator[bytes],
    fits: Callable[[bytes], bool],
    pool: Callable[[], Iterable[bytes]],
    newest_first: bool = False,
) -> Iterator[bytes]:
    """The keys that fit, in order: found by walking, but if few are, picked out of the pool, which has all.

    For a walk past a million others takes far longer than one pass over those that may fit.
    """
    yield from filter(fits, islice(ordered, _WALK))
    following = next(ordered, None)
    if following is None:
        return
    if newest_first:
        left = {key for key in pool() if key <= following}
        first = nlargest(_FEW, left)
    else:
        left = {key for key in pool() if key >= following}
        first = nsmallest(_FEW, left)
    yield from filter(fits, first)
    yield from filter(fits, sorted(left.difference(first), reverse=newest_first))
