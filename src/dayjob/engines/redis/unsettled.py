"""Settlements whose outcome is not known, because the server's answer never came.

They are kept until their claims are settled again: then the same batch goes out first, with the same token.
If it had been applied, it is answered as it was then; so nothing that was applied is reported lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dayjob.engines.base import Verdict
from dayjob.engines.redis.arguments import Arguments
from dayjob.engines.redis.lanes import Ticket
from dayjob.job import JobState

MOST = 100
"""How many batches are kept; a worker repeats its own, so more means that nobody asks for them."""


class Batch(Struct, eq=False):
    """A call of ``settle`` as it was sent."""

    ticket: Ticket
    now: int | None
    arguments: Arguments
    claims: tuple[tuple[bytes, int, str], ...]

    def outcomes(self, states: Sequence[JobState | None]) -> dict[tuple[bytes, int, str], JobState | None]:
        """The states by claim and event; of one claim settled twice, the first was applied."""
        found: dict[tuple[bytes, int, str], JobState | None] = {}
        for claim, state in zip(self.claims, states, strict=True):
            found.setdefault(claim, state)
        return found


class Unsettled:
    """The batches of one engine."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def keep(
        self, ticket: Ticket, now: int | None, arguments: Arguments, verdicts: Sequence[Verdict]
    ) -> None:
        claims = tuple((verdict.key, verdict.epoch, verdict.event) for verdict in verdicts)
        self._batches.append(Batch(ticket, now, arguments, claims))
        del self._batches[:-MOST]

    def batches_of(self, verdicts: Sequence[Verdict]) -> list[Batch]:
        """Those that hold one of the claims, oldest first."""
        if not self._batches:
            return []
        claims = {(verdict.key, verdict.epoch) for verdict in verdicts}
        return [batch for batch in self._batches if any(claim[:2] in claims for claim in batch.claims)]

    def forget(self, batch: Batch) -> None:
        self._batches.remove(batch)
