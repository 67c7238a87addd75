"""Listings of active jobs: a scan of the ids and a selection from the heaps find the same jobs."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayjob import JobState
from dayjob.engines import ordered_collections
from dayjob.engines.active_jobs import ActiveJobs
from dayjob.engines.base import JobQuery
from dayjob.engines.record import Record

ACTIVE = (JobState.PENDING, JobState.SCHEDULED, JobState.RUNNING)

kinds = st.tuples(st.sampled_from("ab"), st.sampled_from(ACTIVE))
asked = st.builds(
    JobQuery,
    limit=st.just(50),
    queue=st.sampled_from([None, "a", "b"]),
    state=st.sampled_from([None, *ACTIVE]),
    after=st.sampled_from([None, b"\0", b"\5", b"\x30"]),
    newest_first=st.booleans(),
)


def filled(jobs: dict[bytes, tuple[str, JobState]]) -> ActiveJobs:
    active = ActiveJobs()
    for key, (queue, state) in jobs.items():
        lease = 1 if state is JobState.RUNNING else None
        record = Record(key, queue, state, 1000, 0, 3, 0, 0, lease_us=lease)
        active.add(record)
        active.enter(record)
    return active


@given(st.dictionaries(st.binary(min_size=1, max_size=1), kinds, max_size=30), asked, st.integers(1, 5))
def test_scan_and_selection_find_the_same(
    jobs: dict[bytes, tuple[str, JobState]], listing: JobQuery, walk: int
) -> None:
    wanted = [
        key
        for key, (queue, state) in sorted(jobs.items(), reverse=listing.newest_first)
        if listing.queue in (None, queue) and listing.state in (None, state)
        if listing.after is None or (key < listing.after if listing.newest_first else key > listing.after)
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ordered_collections, "_WALK", walk)
        patched.setattr(ordered_collections, "_FEW", 2)
        assert [record.key for record in filled(jobs).find(listing)] == wanted


def test_a_short_scan_does_not_select_from_all(monkeypatch: pytest.MonkeyPatch) -> None:
    active = filled({number.to_bytes(2, "big"): ("a", JobState.PENDING) for number in range(1000)})
    monkeypatch.setattr(ordered_collections, "_WALK", 100)
    monkeypatch.setattr(active, "candidates", pytest.fail)
    found = active.find(JobQuery(50, state=JobState.PENDING))
    assert len(list(islice(found, 100))) == 100, "the others are not visited"
