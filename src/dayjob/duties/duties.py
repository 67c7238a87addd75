"""The duties: background work in short commits, so that it does not delay claims and settlements."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from dayjob.duties.ended import EndedJobs
from dayjob.duties.service import Duty
from dayjob.model.durations import SECOND
from dayjob.model.job import EndedJob
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.runtime.signals import CANCEL, DUE, FEW, LEAD, LEAD_DOCUMENT, Signals, Topic

if TYPE_CHECKING:
    from dayjob.broker.held_claims import HeldClaims
    from dayjob.broker.leader_election import LeaderElection
    from dayjob.broker.retrying_storage import RetryingStorage
    from dayjob.broker.worker_registry import WorkerRegistry

_log = logging.getLogger("dayjob.duties")

MAX_BATCH = 1000
"""The largest number of jobs that a duty or an operator's command changes in one commit."""

MIN_BATCH = 100

COMMIT_TIME = 0.004
"""Seconds of work that a commit should take. The batch size follows from it."""

_SHORTEST_PAUSE = 0.001


async def in_short_commits(
    work: Callable[[int], Awaitable[int]], pause: int = 1, *, concurrent: bool = False
) -> int:
    """Call the work with a limit until it changes fewer jobs than that. Return the number of all.

    After each commit, pause for ``pause`` times the time of its work. With ``concurrent`` commits the latency
    is no work, as it delays no other call; the shortest call shows it. If it counted, an object store or a
    distant server could not remove finished jobs as fast as they come.
    """
    total, limit, latency = 0, MIN_BATCH, inf if concurrent else 0.0
    while True:
        started = SYSTEM.elapsed()
        changed = await work(limit)
        took = SYSTEM.elapsed() - started
        total += changed
        if changed < limit:
            return total
        latency = min(latency, took)
        worked = took - latency
        fitting = round(limit * COMMIT_TIME / max(worked, COMMIT_TIME / 2))  # At most twice the last limit.
        limit = min(max(fitting, MIN_BATCH), MAX_BATCH)
        await SYSTEM.wait(asyncio.Event(), max(pause * worked, _SHORTEST_PAUSE))


SOON, LOCKED = 0.01, 0.25
"""Seconds until the next run if jobs are still due: after a run that changed some, and after another."""

_LOOKS_AT_LOCKED = 8
"""Repetitions of ``promote`` for due jobs that another client has locked."""


async def end_in_short_commits(work: Callable[[int], Awaitable[Sequence[EndedJob]]], ended: EndedJobs) -> int:
    """``in_short_commits`` for work that ends jobs. Report them."""
    with ended.reporting() as report:

        async def some(limit: int) -> int:
            jobs = await work(limit)
            report(jobs)
            return len(jobs)

        return await in_short_commits(some)


class Promote(Duty):
    """Makes scheduled jobs pending when they are due, and cancels expired ones.

    It sleeps until the next due time. An earlier arrival wakes it.
    """

    name = "promote"
    topics = (DUE,)

    def __init__(self, storage: RetryingStorage, ended: EndedJobs, interval: float) -> None:
        self._storage = storage
        self._ended = ended
        self._interval = interval

    async def run_once(self) -> float:
        due = await self.next_due()
        if due == 0:
            _, changed = await self._promote()
            due = await self.next_due()
            if due == 0:  # A job became due meanwhile, or another client has locked one.
                return SOON if changed else LOCKED
        return self._interval if due is None else min(due / SECOND, self._interval)

    async def next_due(self) -> int | None:
        """Return microseconds until the next job is due or expires; None if there is none."""
        storage = self._storage
        return await storage.read(storage.engine.next_due)

    async def promote(self) -> int:
        """Make due jobs pending and cancel expired ones. Return how many became pending.

        Another process may be about to promote some of them, and has locked them. They get a moment.
        """
        total, changed = await self._promote()
        for _ in range(_LOOKS_AT_LOCKED):
            if await self.next_due() != 0:
                break
            await SYSTEM.wait(asyncio.Event(), SOON if changed else LOCKED)
            promoted, changed = await self._promote()
            total += promoted
        return total

    async def _promote(self) -> tuple[int, int]:
        """Return how many became pending, and how many changed at all."""
        storage, total = self._storage, 0
        with self._ended.reporting() as report:

            async def some(limit: int) -> int:
                nonlocal total
                due, expired = await storage.write(partial(storage.engine.promote, limit))
                report(expired)
                total += due
                return max(due, len(expired))

            concurrent = storage.engine.capabilities.concurrent_commits
            changed = await in_short_commits(some, concurrent=concurrent)
        return total, changed


ORPHAN_INTERVAL = 1.0
"""Seconds between checks for claims of dead processes, where the engine detects them."""

RENEWAL_GRACE = 2.0
"""Seconds that holders have for their renewals after a look that was late, slow or failed."""


class Reap(Duty):
    """Ends claims whose lease has expired or whose process is gone, so that their jobs run again.

    A lock or an outage that holds up this duty holds up renewals, too, and both continue at the same time. A
    lease therefore counts as expired only if it was at an earlier look, and that look was able to write.
    Since then its holder had the time to renew it.

    After a step of the engine's clock, leases have expired before their holders could renew them. They get as
    much time as the step, but no more than the longest lease.
    """

    name = "reap"

    def __init__(
        self,
        storage: RetryingStorage,
        ended: EndedJobs,
        interval: float,
        clock: Clock,
        longest_lease: float,
    ) -> None:
        self._storage = storage
        self._ended = ended
        self._interval = interval
        self._clock = clock
        self._longest_lease = longest_lease
        self._next_look = clock.elapsed()
        self._expired_by = 1
        """A time of the engine. Leases that had expired by then end."""
        self._seen = 1
        """The time of the last look, which replaces ``_expired_by`` at ``_trusted_at``."""
        self._trusted_at = float("-inf")

    async def run_once(self) -> float:
        orphans = self._storage.engine.capabilities.knows_orphans
        if self._next_look - self._clock.elapsed() < _SHORTEST_PAUSE:
            await self._reap_leases()
        elif orphans:
            await self.reap(expired_by=0)
        left = max(self._next_look - self._clock.elapsed(), 0.0)
        return min(left, ORPHAN_INTERVAL) if orphans else left

    async def _reap_leases(self) -> None:
        started = self._clock.elapsed()
        disturbed = started - self._next_look > RENEWAL_GRACE
        self._next_look = float("-inf")  # A look that fails makes the next one late.
        seen = await self._storage.time()
        trusted = started >= self._trusted_at
        if trusted:
            self._expired_by = self._seen
        self._expired_by = min(self._expired_by, seen)  # The clock of the engine may have been set back.
        await self.reap(expired_by=self._expired_by)
        ended = self._clock.elapsed()
        grace = self._storage.steps.rest(self._longest_lease)
        if disturbed or ended - started > RENEWAL_GRACE / 2:
            grace = max(grace, RENEWAL_GRACE)
        if trusted or grace > 0:
            self._seen, self._trusted_at = seen, ended + max(grace, 0.0)
        self._next_look = ended + self._interval

    async def reap(self, expired_by: int | None = None) -> int:
        """End claims whose lease had expired by then, or now, and orphaned ones. Return their number."""
        storage = self._storage
        return await end_in_short_commits(
            lambda limit: storage.write(partial(storage.engine.reap, limit, expired_by)),
            self._ended,
        )


BEATS = 3
"""Heartbeats that a worker sends within the time after which it counts as dead."""

RECLAIM_INTERVAL = 1.0
"""The most seconds between two looks at the worker registry."""


class Reclaim(Duty):
    """Ends the claims of dead workers, so that their jobs run again.

    A worker is dead when its process is known to be gone, or after a silence of ``dead_after``. After an
    outage every worker was silent, so the registry then waits until each had the time for a new heartbeat.
    """

    name = "reclaim"

    def __init__(
        self,
        storage: RetryingStorage,
        registry: WorkerRegistry,
        ended: EndedJobs,
        dead_after: float,
    ) -> None:
        self._storage = storage
        self._registry = registry
        self._ended = ended
        self._interval = min(dead_after / BEATS, RECLAIM_INTERVAL)

    async def run_once(self) -> float:
        await self.reclaim(trust_silence=False)
        return self._interval

    async def reclaim(self, *, trust_silence: bool) -> int:
        """End the claims of dead workers and remove them from the registry. Return the number of claims."""
        dead = await self._registry.mark_dead(trust_silence)
        total = await self.reclaim_from([seen.member.id for seen in dead])
        for seen in dead:
            await self._registry.remove(seen)
        return total

    async def reclaim_from(self, workers: Sequence[str]) -> int:
        storage = self._storage
        if not workers:
            return 0
        return await end_in_short_commits(
            lambda limit: storage.write(partial(storage.engine.reclaim, workers, limit)),
            self._ended,
        )


SWEEP_PAUSE = 3
"""The pause after each commit of a sweep, as a multiple of its duration. A sweep is not urgent."""


class Sweep(Duty):
    """Removes finished jobs when their retention is over, and ended reservations of ids.

    After a step of the engine's clock it rests for as long as the step, but no longer than its interval. A
    clock that is corrected soon removes nothing.
    """

    name = "sweep"

    def __init__(self, storage: RetryingStorage, interval: float) -> None:
        self._storage = storage
        self._interval = interval

    async def run_once(self) -> float:
        now = await self._storage.time()
        rest = self._storage.steps.rest(self._interval)
        if rest > 0:
            return rest
        await self.sweep(now)
        return self._interval

    async def sweep(self, over_by: int | None = None) -> int:
        """Remove jobs whose retention was over by then, or now. Return their number.

        Ended reservations of ids are removed, too.
        """
        storage, total = self._storage, 0

        async def some(limit: int) -> int:
            nonlocal total
            jobs, ids = await storage.write(partial(storage.engine.sweep, limit, over_by))
            total += jobs
            return max(jobs, ids)

        concurrent = storage.engine.capabilities.concurrent_commits
        await in_short_commits(some, SWEEP_PAUSE, concurrent=concurrent)
        if total:
            _log.debug("%d jobs were removed at the end of their retention", total)
        return total


REWAKE_INTERVAL = 1.0


class Rewake(Duty):
    """Wakes further workers of a large fleet if jobs stay pending: those that were woken may have ended.

    In a small fleet every waiting worker looks for each new job, so this duty has no work.
    """

    name = "rewake"

    def __init__(self, storage: RetryingStorage, election: LeaderElection) -> None:
        self._storage = storage
        self._election = election
        self._seen: set[str] = set()
        """The queues with pending jobs at the last look."""

    async def run_once(self) -> float:
        if not self._election.crowded:
            self._seen = set()
            return FOLLOWER_INTERVAL
        pending = set(await self._storage.read(self._storage.engine.pending_queues))
        stuck = [queue for queue in pending & self._seen if self._election.waiting(queue) > FEW]
        if stuck:
            self._storage.engine.wake_others(stuck)
        self._seen = pending
        return REWAKE_INTERVAL


class Periodic(Duty):
    """Calls a function that returns the microseconds until its next call is due."""

    def __init__(self, name: str, work: Callable[[], Awaitable[int]], *topics: Topic) -> None:
        self.name = name
        self.topics = topics
        self._work = work

    async def run_once(self) -> float:
        return await self._work() / SECOND


class WatchCancels(Duty):
    """Reads all cancel requests after each ``CANCEL`` signal, and fires the tokens of the held claims."""

    name = "watch-cancels"
    topics = (CANCEL,)

    def __init__(self, storage: RetryingStorage, claims: HeldClaims) -> None:
        self._storage = storage
        self._claims = claims

    async def run_once(self) -> None:
        storage = self._storage
        requests = await storage.read(storage.engine.cancel_requests) if self._claims else ()
        self._claims.checked(requests)


FOLLOWER_INTERVAL = 5.0
"""Seconds between the checks of a follower. A lead that is renewed late is not published again."""


class Lead(Duty):
    """Renews the lead of this process, or takes it over when the leader is gone."""

    name = "lead"
    topics = (LEAD_DOCUMENT,)

    def __init__(self, election: LeaderElection, signals: Signals) -> None:
        self._election = election
        self._signals = signals

    async def run_once(self) -> float:
        led = self._election.leads
        delay = await self._election.seek()
        if self._election.leads and not led:
            self._signals.publish([LEAD])
        return delay


class Led:
    """A duty that runs only in the process that leads."""

    def __init__(self, duty: Duty, election: LeaderElection) -> None:
        self.name = duty.name
        self.topics = (*duty.topics, LEAD)
        self._duty = duty
        self._election = election

    async def run_once(self) -> float | None:
        return await self._duty.run_once() if self._election.leads else FOLLOWER_INTERVAL
