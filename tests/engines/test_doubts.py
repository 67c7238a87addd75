"""Which batches in doubt are repeated: those that hold the very verdicts that are given again."""

from __future__ import annotations

import pytest

from dayjob.engines import doubts
from dayjob.engines.base import Keep, Verdict
from dayjob.engines.doubts import Doubts
from dayjob.lifecycle import Event


def verdict(number: int, epoch: int = 1, event: Event = Event.ACK) -> Verdict:
    return Verdict(number.to_bytes(16, "big"), epoch, event, Keep())


def test_a_batch_is_found_by_any_of_its_verdicts() -> None:
    known = Doubts[str]()
    known.add([verdict(1), verdict(2)], "first")
    known.add([verdict(3)], "second")
    assert known.about([verdict(2)]) == ["first"]
    assert known.about([verdict(4), verdict(3), verdict(1)]) == ["first", "second"]
    assert known.about([verdict(4)]) == []
    assert known.about([]) == []


def test_another_epoch_or_another_event_is_another_verdict() -> None:
    known = Doubts[str]()
    known.add([verdict(1)], "batch")
    assert known.about([verdict(1, epoch=2)]) == []
    assert known.about([verdict(1, event=Event.NACK)]) == []


def test_a_batch_that_is_settled_is_in_doubt_no_more() -> None:
    known = Doubts[str]()
    known.add([verdict(1)], "batch")
    known.add([verdict(1)], "another")
    known.remove("batch")
    known.remove("batch")
    assert known.about([verdict(1)]) == ["another"]


def test_the_oldest_make_room_for_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "_MOST", 3)
    known = Doubts[int]()
    for number in range(5):
        known.add([verdict(number)], number)
    assert [known.about([verdict(number)]) for number in range(5)] == [[], [], [2], [3], [4]]
