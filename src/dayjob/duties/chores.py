"""The duties themselves: lead, promote, reap, reclaim, recur, sample, sweep, watch for cancels."""

from __future__ import annotations

from typing import Protocol

from dayjob.duties.service import Duty
from dayjob.model.durations import SECOND
from dayjob.runtime.clock import Clock
from dayjob.runtime.signals import CANCEL, DUE, LEAD, Topic, documents_topic

BEATS = 3
"""How often a worker tells that it lives within the time after which it counts as dead."""

RECLAIM_INTERVAL = 1.0
RESTING = 5.0
"""Seconds after which a duty that rests looks by itself: a lead that was renewed late is not told again."""

ORPHAN_INTERVAL = 1.0
"""How often to look for claims of dead processes, where the engine knows them."""


class Chores(Protocol):
    """What the duties ask of a broker."""

    async def promote(self) -> int: ...
    async def next_due(self) -> int | None: ...
    async def reap(self) -> int: ...
    async def reclaim(self, *, trusting: bool) -> int: ...
    async def recur(self) -> int: ...
    async def sample(self) -> int: ...
    async def sweep(self) -> int: ...
    async def lead(self) -> float: ...
    @property
    def leads(self) -> bool: ...
    async def check_cancels(self) -> None: ...


class Lead:
    """Sees to it that one process of the fleet does the duties, and another one should it go."""

    name = "lead"
    topics: tuple[Topic, ...] = (documents_topic("duty"),)

    def __init__(self, chores: Chores) -> None:
        self._chores = chores

    async def run_once(self) -> float:
        return await self._chores.lead()


class Led:
    """A duty that rests in all processes but the one that leads."""

    def __init__(self, duty: Duty, chores: Chores) -> None:
        self.name = duty.name
        self.topics = (*duty.topics, LEAD)
        self._duty = duty
        self._chores = chores

    async def run_once(self) -> float | None:
        return await self._duty.run_once() if self._chores.leads else RESTING


class Promote:
    """Makes scheduled jobs pending at their time: sleeps until the next one, woken by an earlier arrival."""

    name = "promote"
    topics: tuple[Topic, ...] = (DUE,)

    def __init__(self, chores: Chores, interval: float) -> None:
        self._chores = chores
        self._interval = interval

    async def run_once(self) -> float:
        due = await self._chores.next_due()
        if due == 0:
            await self._chores.promote()
            due = await self._chores.next_due()
        return self._interval if due is None else min(due / SECOND, self._interval)


class Reap:
    """Ends claims whose lease has expired or whose process is gone, so that their jobs run again."""

    name = "reap"
    topics: tuple[Topic, ...] = ()

    def __init__(self, chores: Chores, interval: float, knows_orphans: bool) -> None:
        self._chores = chores
        self._interval = min(interval, ORPHAN_INTERVAL) if knows_orphans else interval

    async def run_once(self) -> float:
        await self._chores.reap()
        return self._interval


class Reclaim:
    """Takes back the jobs of workers that are gone: at once where that can be known, else by their silence.

    After an outage all have been silent, so others first get the time to be heard again.
    """

    name = "reclaim"
    topics: tuple[Topic, ...] = ()

    def __init__(self, chores: Chores, dead_after: float, clock: Clock) -> None:
        self._chores = chores
        self._interval = min(dead_after / BEATS, RECLAIM_INTERVAL)
        self._patience = dead_after / BEATS + self._interval
        self._outage = min(5 * self._interval, dead_after * (BEATS - 1) / BEATS)
        self._clock = clock
        self._steady_since: float | None = None
        self._looked = float("-inf")

    async def run_once(self) -> float:
        now = self._clock.elapsed()
        if now - self._looked > self._outage:
            self._steady_since = now
        self._looked = float("-inf")
        trusting = self._steady_since is not None and now - self._steady_since >= self._patience
        await self._chores.reclaim(trusting=trusting)
        self._looked = now
        return self._interval


class Recur:
    """Fires recurring jobs at their times."""

    name = "recur"
    topics: tuple[Topic, ...] = (documents_topic("schedule"),)

    def __init__(self, chores: Chores) -> None:
        self._chores = chores

    async def run_once(self) -> float:
        return await self._chores.recur() / SECOND


class Sample:
    """Notes the counters each minute, for charts of the throughput."""

    name = "sample"
    topics: tuple[Topic, ...] = ()

    def __init__(self, chores: Chores) -> None:
        self._chores = chores

    async def run_once(self) -> float:
        return await self._chores.sample() / SECOND


class Sweep:
    """Removes finished jobs whose retention is over."""

    name = "sweep"
    topics: tuple[Topic, ...] = ()

    def __init__(self, chores: Chores, interval: float) -> None:
        self._chores = chores
        self._interval = interval

    async def run_once(self) -> float:
        await self._chores.sweep()
        return self._interval


class WatchCancels:
    """Tells the claims of this process of the cancels that were requested anywhere."""

    name = "watch-cancels"
    topics: tuple[Topic, ...] = (CANCEL,)

    def __init__(self, chores: Chores) -> None:
        self._chores = chores

    async def run_once(self) -> None:
        await self._chores.check_cancels()
