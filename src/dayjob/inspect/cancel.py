"""Cancel the jobs that a filter selects, in short commits and bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from dayjob.broker import Broker
from dayjob.inspect.redaction import Redaction
from dayjob.inspect.search import UNFINISHED, Filter, States, unfinished
from dayjob.model.job import CancelOutcome


class Cancelled(Struct, frozen=True):
    """How many waiting jobs were cancelled, and for how many running ones a cancel was requested."""

    removed: int
    requested: int


async def cancel_matching(
    broker: Broker,
    redaction: Redaction,
    filter: Filter,
    states: States = UNFINISHED,
    on_progress: Callable[[int], None] | None = None,
) -> Cancelled:
    """Cancel the matching jobs in these states. ``on_progress`` gets the number so far."""
    outcomes = Counter[CancelOutcome]()
    async for page in unfinished(broker, redaction, filter, states):
        outcomes.update(await broker.cancel_many([job.id for job in page]))
        if on_progress is not None:
            on_progress(outcomes[CancelOutcome.REMOVED] + outcomes[CancelOutcome.REQUESTED])
    return Cancelled(outcomes[CancelOutcome.REMOVED], outcomes[CancelOutcome.REQUESTED])
