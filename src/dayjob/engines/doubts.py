"""Settlements whose outcome is not known, because the server was gone for longer than an operation waits.

Whoever settles again must get the answer of the first try. So the batch is kept as it was sent, with its
token, and repeated before anything else is said about its claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from dayjob.engines.base import SettleOp

_MOST = 1000
"""Batches in doubt that are remembered; those whose callers gave up make room for others."""

Named = tuple[bytes, int, str]
"""What names a verdict: the claim, and the event that is to end it."""

Sent = TypeVar("Sent")


def named(op: SettleOp) -> Named:
    return op.key, op.epoch, op.transition


class Doubts(Generic[Sent]):
    """The batches in doubt of one engine, each as that engine sent it."""

    def __init__(self) -> None:
        self._batches: list[tuple[frozenset[Named], Sent]] = []

    def add(self, ops: Sequence[SettleOp], batch: Sent) -> None:
        self._batches.append((frozenset(map(named, ops)), batch))
        del self._batches[:-_MOST]

    def about(self, ops: Sequence[SettleOp]) -> list[Sent]:
        """The batches that hold any of these very verdicts, oldest first."""
        if not self._batches:
            return []
        wanted = set(map(named, ops))
        return [batch for names, batch in self._batches if not names.isdisjoint(wanted)]

    def remove(self, batch: Sent) -> None:
        self._batches = [known for known in self._batches if known[1] is not batch]
