"""Limits and turns of the jobs that one transaction stores or settles.

Locks are taken in one order: the count of a bounded queue, turns of tenants, jobs and dedup keys, buckets. So
the buckets come last, for all jobs of the transaction at once. ``migrations/README.md`` describes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from dayjob.engines.base import Insertion
from dayjob.engines.limits import check_room
from dayjob.engines.postgres.rows import call_columns
from dayjob.model.job import Enqueued, id_text

Run = Callable[..., Awaitable[Sequence[Sequence[Any]]]]
"""Runs a statement by its name, in the transaction."""

_REPLACED_AT_ONCE = 100
"""Calls of one statement. In a caller's session the server may scan a small table for each of them."""


def is_limited(job: Insertion) -> bool:
    """Whether the job has limits or a turn, so that ``claim_limited`` claims it."""
    return bool(job.limits) or job.fair is not None


def is_placed(job: Insertion) -> bool:
    """Whether the job has limits, a turn, or a queue with ``max_pending``."""
    return is_limited(job) or job.max_pending is not None


class Placement:
    """The limits and turns of one transaction.

    In a caller's transaction jobs join no line, and the count of a bounded queue is not locked: both locks
    would last until the caller commits. The next claim moves the jobs to their lines.
    """

    def __init__(self, run: Run, now: int | None, *, of_caller: bool = False) -> None:
        self._run = run
        self._now = now
        self._of_caller = of_caller
        self._turns: dict[tuple[str, str], tuple[int, int]] = {}
        """By queue and tenant: the turn of the queue, and the next free turn of the tenant."""
        self._new: list[str] = []
        self._topics: list[str] = []
        self.departed: list[str] = []
        """The second columns of ``settle.sql`` and ``replace_calls.sql``."""

    async def check_room(self, jobs: Sequence[Insertion]) -> None:
        """Raise ``QueueFull`` if a bounded queue has no room for its jobs."""
        bounded = [job for job in jobs if job.max_pending is not None]
        if bounded:
            queues = sorted({job.queue for job in bounded})
            rows = await self._run("count_backlog", self._now, queues, not self._of_caller)
            check_room(bounded, rows[0][0], {queue: waiting for _, queue, waiting in rows})

    async def lock_turns(self, jobs: Sequence[Insertion]) -> None:
        """Read the turns of all fair jobs that the transaction may store."""
        pairs = {(job.queue, job.fair[0]): None for job in jobs if job.fair is not None}
        if pairs:
            rows = await self._run("next_turns", [queue for queue, _ in pairs], [name for _, name in pairs])
            self._turns = {(queue, tenant): (turn, free) for queue, tenant, turn, free in rows}

    def set_turns(self, jobs: Sequence[Insertion]) -> None:
        """Set the turns of jobs, as if all of them were stored."""
        self._advance(jobs, dict(self._turns))

    async def stored(self, jobs: Sequence[Insertion], replies: Sequence[Enqueued]) -> None:
        """Record the jobs that were stored. A job that was not stored takes no turn."""
        new = [job for job, reply in zip(jobs, replies, strict=True) if reply.created]
        self._new += [id_text(job.key) for job in new if is_limited(job)]
        before = [job.turn for job in new]
        self._advance(new, self._turns)
        changed = [job for job, turn in zip(new, before, strict=True) if job.turn != turn]
        if changed:
            await self._run("set_turns", [id_text(job.key) for job in changed], [job.turn for job in changed])

    async def replace(self, calls: Mapping[str, Insertion]) -> None:
        """Give locked holders of dedup keys, by id, the calls of new jobs.

        Jobs that were stored before join their lines first, as on other engines.
        """
        if self._new:
            self._topics += await self._finish_limits([])
        holders = list(calls)
        for first in range(0, len(holders), _REPLACED_AT_ONCE):
            part = {id: calls[id] for id in holders[first : first + _REPLACED_AT_ONCE]}
            rows = await self._run("replace_calls", self._now, *call_columns(part))
            topics, departed = rows[0]
            self._topics += topics
            if departed is not None:
                self.departed.append(departed)

    async def _finish_limits(self, departed: Sequence[str]) -> list[str]:
        new, self._new = self._new, []
        rows = await self._run("finish_limits", self._now, departed, new, not self._of_caller)
        topics: list[str] = rows[0][0]
        return topics

    @staticmethod
    def _advance(jobs: Sequence[Insertion], turns: dict[tuple[str, str], tuple[int, int]]) -> None:
        for job in jobs:
            if job.fair is not None:
                tenant, step = job.fair
                turn, free = turns[job.queue, tenant]
                job.turn = max(turn, free)
                turns[job.queue, tenant] = (turn, job.turn + step)

    async def finish(self) -> list[str]:
        """Store turns, let new jobs join lines, and give room back. Return the topics, for the reply."""
        if self._turns:
            await self._run(
                "save_turns",
                [queue for queue, _ in self._turns],
                [tenant for _, tenant in self._turns],
                [free for _, free in self._turns.values()],
            )
        if self._new or self.departed:
            self._topics += await self._finish_limits(self.departed)
        return self._topics
