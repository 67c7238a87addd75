"""Which batches in doubt are repeated: those that hold the very verdicts that are given again."""

from __future__ import annotations

import pytest

from dayjob.engines import doubts
from dayjob.engines.base import RetentionTimes, SettleOp
from dayjob.engines.doubts import Doubts
from dayjob.model.lifecycle import Transition


def op(number: int, epoch: int = 1, event: Transition = Transition.ACK) -> SettleOp:
    return SettleOp(number.to_bytes(16, "big"), epoch, event, RetentionTimes())


def test_a_batch_is_found_by_any_of_its_verdicts() -> None:
    known = Doubts[str]()
    known.add([op(1), op(2)], "first")
    known.add([op(3)], "second")
    assert known.about([op(2)]) == ["first"]
    assert known.about([op(4), op(3), op(1)]) == ["first", "second"]
    assert known.about([op(4)]) == []
    assert known.about([]) == []


def test_another_epoch_or_another_event_is_another_verdict() -> None:
    known = Doubts[str]()
    known.add([op(1)], "batch")
    assert known.about([op(1, epoch=2)]) == []
    assert known.about([op(1, event=Transition.NACK)]) == []


def test_a_batch_that_is_settled_is_in_doubt_no_more() -> None:
    known = Doubts[str]()
    known.add([op(1)], "batch")
    known.add([op(1)], "another")
    known.remove("batch")
    known.remove("batch")
    assert known.about([op(1)]) == ["another"]


def test_the_oldest_make_room_for_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "_MOST", 3)
    known = Doubts[int]()
    for number in range(5):
        known.add([op(number)], number)
    assert [known.about([op(number)]) for number in range(5)] == [[], [], [2], [3], [4]]
