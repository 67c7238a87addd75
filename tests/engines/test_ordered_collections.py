"""The heap with lazy deletion: positions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dayjob.engines.active_jobs import Entry
from dayjob.engines.ordered_collections import LazyHeap

entries = st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=1))


@given(st.lists(entries, max_size=50), st.sets(entries))
def test_count_before_agrees_with_sorting(entries: list[Entry], stale: set[Entry]) -> None:
    heap: LazyHeap[Entry] = LazyHeap(lambda entry: entry not in stale, entries)
    for entry in entries:
        heap.push(entry)
    left = sorted(set(entries) - stale)
    for entry in [*left, *stale]:
        before = sum(1 for other in left if other < entry)
        assert [heap.count_before(entry, limit) for limit in (0, 3, 1000)] == [0, min(before, 3), before]


def test_count_before_visits_few_of_many() -> None:
    visited = 0

    def is_current(entry: Entry) -> bool:
        nonlocal visited
        visited += 1
        return True

    heap: LazyHeap[Entry] = LazyHeap(is_current, range(100_000))
    heap.fill((1000, number.to_bytes(4, "big")) for number in range(100_000))
    assert heap.count_before((1000, (50).to_bytes(4, "big")), 1000) == 50
    assert heap.count_before((2000, b""), 1000) == 1000
    assert visited <= 1050
