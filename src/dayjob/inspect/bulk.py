"""Cancel, requeue or purge the jobs that a filter selects, in short commits and bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from dayjob.broker import Broker
from dayjob.inspect.redaction import Redaction
from dayjob.inspect.search import DEAD, UNFINISHED, Filter, States, matching
from dayjob.model.job import CancelOutcome

OnProgress = Callable[[int], None]
Change = Callable[[Sequence[str]], Awaitable[int]]


class Cancelled(Struct, frozen=True):
    """How many waiting jobs were cancelled, and for how many running ones a cancel was requested."""

    removed: int
    requested: int


async def cancel_matching(
    broker: Broker,
    redaction: Redaction,
    filter: Filter,
    states: States = UNFINISHED,
    on_progress: OnProgress | None = None,
) -> Cancelled:
    """Cancel the matching jobs in these states. ``on_progress`` gets the number so far."""
    outcomes = Counter[CancelOutcome]()

    async def cancel(ids: Sequence[str]) -> int:
        found = await broker.cancel_many(ids)
        outcomes.update(found)
        return sum(outcome.acted for outcome in found)

    await _change(broker, redaction, filter, states, cancel, on_progress)
    return Cancelled(outcomes[CancelOutcome.REMOVED], outcomes[CancelOutcome.REQUESTED])


async def requeue_matching(
    broker: Broker, redaction: Redaction, filter: Filter, on_progress: OnProgress | None = None
) -> int:
    """Requeue the matching dead jobs. Return their number."""
    return await _change(broker, redaction, filter, DEAD, broker.requeue_many, on_progress)


async def purge_matching(
    broker: Broker, redaction: Redaction, filter: Filter, on_progress: OnProgress | None = None
) -> int:
    """Delete the matching dead jobs. Return their number."""
    return await _change(broker, redaction, filter, DEAD, broker.purge_many, on_progress)


async def _change(
    broker: Broker, redaction: Redaction, filter: Filter, states: States, change: Change,
    on_progress: OnProgress | None,
) -> int:  # fmt: skip
    changed = 0
    async for page in matching(broker, redaction, filter, states):
        if page:
            changed += await change([job.id for job in page])
        if on_progress is not None:
            on_progress(changed)
    return changed
