"""Which batches in doubt are repeated: those that hold the very verdicts that are given again."""

from __future__ import annotations

import pytest

from dayjob.engines.base import Keep, Verdict
from dayjob.engines.postgres import doubts
from dayjob.engines.postgres.doubts import Doubt, Doubts
from dayjob.lifecycle import Event


def verdict(number: int, epoch: int = 1, event: Event = Event.ACK) -> Verdict:
    return Verdict(number.to_bytes(16, "big"), epoch, event, Keep())


def batch(number: int, *verdicts: Verdict) -> Doubt:
    return Doubt(number.to_bytes(16, "big"), verdicts, None)


def test_a_batch_is_found_by_any_of_its_verdicts() -> None:
    known = Doubts()
    first, second = batch(1, verdict(1), verdict(2)), batch(2, verdict(3))
    known.add(first)
    known.add(second)
    assert known.about([verdict(2)]) == [first]
    assert known.about([verdict(4), verdict(3), verdict(1)]) == [first, second]
    assert known.about([verdict(4)]) == []
    assert known.about([]) == []


def test_another_epoch_or_another_event_is_another_verdict() -> None:
    known = Doubts()
    known.add(batch(1, verdict(1)))
    assert known.about([verdict(1, epoch=2)]) == []
    assert known.about([verdict(1, event=Event.NACK)]) == []


def test_a_batch_that_is_settled_is_in_doubt_no_more() -> None:
    known = Doubts()
    doubt = batch(1, verdict(1))
    known.add(doubt)
    known.remove(doubt)
    known.remove(doubt)
    assert known.about([verdict(1)]) == []


def test_the_oldest_make_room_for_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "_MOST", 3)
    known = Doubts()
    for number in range(5):
        known.add(batch(number, verdict(number)))
    assert [bool(known.about([verdict(number)])) for number in range(5)] == [False, False, True, True, True]
