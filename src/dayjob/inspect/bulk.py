"""Cancel, requeue or purge the jobs that a filter selects, in short commits and bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from dayjob.broker.broker import OnProgress
from dayjob.inspect.search import DEAD, UNFINISHED, Filter, JobSearch, States
from dayjob.model.job import CancelOutcome


class Cancelled(Struct, frozen=True):
    """How many waiting jobs were cancelled, and for how many running ones a cancel was requested."""

    removed: int
    requested: int


class BulkChanges(JobSearch):
    """Changes the jobs that a filter selects."""

    async def cancel(
        self, filter: Filter, states: States = UNFINISHED, on_progress: OnProgress | None = None
    ) -> Cancelled:
        outcomes = Counter[CancelOutcome]()

        async def cancel(ids: Sequence[str]) -> int:
            found = await self.broker.cancel_many(ids)
            outcomes.update(found)
            return sum(outcome.acted for outcome in found)

        await self._change(filter, states, cancel, on_progress)
        return Cancelled(outcomes[CancelOutcome.REMOVED], outcomes[CancelOutcome.REQUESTED])

    async def requeue(self, filter: Filter, on_progress: OnProgress | None = None) -> int:
        """Requeue the matching dead jobs. Return their number."""
        return await self._change(filter, DEAD, self.broker.requeue_many, on_progress)

    async def purge(self, filter: Filter, on_progress: OnProgress | None = None) -> int:
        """Delete the matching dead jobs. Return their number."""
        return await self._change(filter, DEAD, self.broker.purge_many, on_progress)

    async def _change(
        self, filter: Filter, states: States, change: Callable[[Sequence[str]], Awaitable[int]],
        on_progress: OnProgress | None,
    ) -> int:  # fmt: skip
        changed = 0
        async for page in self.matching(filter, states):
            if page:
                changed += await change([job.id for job in page])
            if on_progress is not None:
                on_progress(changed)
        return changed
