"""The duties themselves: promote, reap, sweep, and the watch for cancel requests."""

from __future__ import annotations

from typing import Protocol

from dayjob.durations import SECOND
from dayjob.signals import CANCEL, DUE, Topic

ORPHAN_INTERVAL = 1.0
"""How often to look for claims of dead processes, where the engine knows them."""


class Chores(Protocol):
    """What the duties ask of a broker."""

    async def promote(self) -> int: ...
    async def next_due(self) -> int | None: ...
    async def reap(self) -> int: ...
    async def sweep(self) -> int: ...
    async def check_cancels(self) -> None: ...


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
