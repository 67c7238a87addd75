"""Settlements whose outcome is not known, because the server was gone for longer than an operation waits.

Whoever settles again must get the answer of the first try. So the batch is kept with its token, and
repeated as it was before anything else is said about its claims.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dayjob.engines.base import Verdict

_MOST = 1000
"""Batches in doubt that are remembered; those whose callers gave up make room for others."""


class Doubt(Struct, frozen=True, eq=False):
    """A batch as it was sent."""

    token: bytes
    verdicts: Sequence[Verdict]
    now: int | None


class Doubts:
    """The batches in doubt of one engine."""

    def __init__(self) -> None:
        self._doubts: dict[bytes, Doubt] = {}

    def add(self, doubt: Doubt) -> None:
        self._doubts[doubt.token] = doubt
        if len(self._doubts) > _MOST:
            del self._doubts[next(iter(self._doubts))]

    def about(self, verdicts: Sequence[Verdict]) -> list[Doubt]:
        """The batches that hold any of these very verdicts."""
        if not self._doubts:
            return []
        wanted = {(verdict.key, verdict.epoch, verdict.event) for verdict in verdicts}
        return [
            doubt
            for doubt in self._doubts.values()
            if any((verdict.key, verdict.epoch, verdict.event) in wanted for verdict in doubt.verdicts)
        ]

    def remove(self, doubt: Doubt) -> None:
        self._doubts.pop(doubt.token, None)
