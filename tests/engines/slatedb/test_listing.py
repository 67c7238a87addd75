"""Which of the jobs that wait or run are listed, found by a walk or picked out of all."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayjob import JobState
from dayjob.engines import order
from dayjob.engines.base import JobQuery
from dayjob.engines.record import Record
from dayjob.engines.slatedb import listing as listings
from dayjob.engines.slatedb.live import Live

LIVE = (JobState.PENDING, JobState.SCHEDULED, JobState.RUNNING)

kinds = st.tuples(st.sampled_from("ab"), st.sampled_from(LIVE))
asked = st.builds(
    JobQuery,
    limit=st.just(50),
    queue=st.sampled_from([None, "a", "b"]),
    state=st.sampled_from([None, *LIVE]),
    after=st.sampled_from([None, b"\0", b"\5", b"\x30"]),
    newest_first=st.booleans(),
)


def filled(jobs: dict[bytes, tuple[str, JobState]]) -> Live:
    live = Live()
    for key, (queue, state) in jobs.items():
        record = Record(key, queue, state, 1000, 0, 3, 0, 0)
        live.add(record)
        if state is JobState.RUNNING:
            live.sessions[key] = 1
        else:
            live.stand(record)
    return live


@given(st.dictionaries(st.binary(min_size=1, max_size=1), kinds, max_size=30), asked, st.integers(1, 5))
def test_walking_and_picking_find_the_same(
    jobs: dict[bytes, tuple[str, JobState]], listing: JobQuery, walk: int
) -> None:
    wanted = [
        key
        for key, (queue, state) in sorted(jobs.items(), reverse=listing.newest_first)
        if listing.queue in (None, queue) and listing.state in (None, state)
        if listing.after is None or (key < listing.after if listing.newest_first else key > listing.after)
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(order, "_WALK", walk)
        patched.setattr(order, "_FEW", 2)
        assert list(listings._matching(filled(jobs), listing)) == wanted


def test_what_is_soon_found_is_not_picked_out_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    live = filled({number.to_bytes(2, "big"): ("a", JobState.PENDING) for number in range(1000)})
    monkeypatch.setattr(order, "_WALK", 100)
    monkeypatch.setattr(live, "pool", pytest.fail)
    walked = listings._matching(live, JobQuery(50, state=JobState.PENDING))
    assert len(list(islice(walked, 100))) == 100, "the others are not looked at"
