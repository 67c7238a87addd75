"""Producers and workers on a SQLite file are killed again and again; afterwards every job is accounted for."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dayjob import Broker, CancelOutcome, Job, JobState
from tests.engines.sqlite.processes import Child, Role, Spawn, pause, until
from tests.faults.roles import AFTER, CONFIG, WORK, produce, work

pytestmark = pytest.mark.slow

KILLS = 10


class Crew:
    """Two producers and two workers, each replaced when it is killed."""

    def __init__(self, spawn: Spawn, url: str, folder: Path) -> None:
        self._spawn = spawn
        self._url = url
        self._folder = folder
        self._logs: list[tuple[Role, Path]] = []
        self._members: list[tuple[Role, Child]] = []

    async def start(self) -> None:
        self._members = [await self._hire(role) for role in (produce, work, produce, work)]
        for _, child in self._members:
            assert await child.said() == "ready"

    async def _hire(self, role: Role) -> tuple[Role, Child]:
        log = self._folder / f"{len(self._logs)}.log"
        self._logs.append((role, log))
        return role, await self._spawn(role, self._url, str(log))

    async def replace(self, index: int) -> None:
        """Kill a member, and wait until its successor is at work."""
        role, child = self._members[index]
        await child.kill()
        self._members[index] = await self._hire(role)
        assert await self._members[index][1].said() == "ready"

    async def kill_all(self) -> None:
        await asyncio.gather(*(child.kill() for _, child in self._members))

    def lines(self, role: Role) -> Iterator[str]:
        """What all who had the role logged."""
        for whose, log in self._logs:
            if whose is role and log.exists():
                yield from log.read_text().splitlines()


async def every_job(broker: Broker) -> dict[str, Job]:
    found: list[Job] = []
    while page := await broker.jobs(after=found[-1].id if found else None, limit=5000):
        found += page
    return {job.id: job for job in found}


async def cancel_some(broker: Broker, crew: Crew) -> set[str]:
    """Cancel the newest jobs; which of them are gone by that."""
    ids = list(crew.lines(produce))[-3:]
    outcomes = [await broker.cancel(id) for id in ids]
    return {id for id, outcome in zip(ids, outcomes, strict=True) if outcome is CancelOutcome.REMOVED}


async def finish(broker: Broker) -> set[str]:
    """Run what is left, in this process; the ids that were acked."""
    acked = set()

    async def left() -> bool:
        stats = await broker.stats(WORK)
        return stats.pending + stats.running + stats.scheduled == 0

    async def drain() -> bool:
        for job in await broker.claim(WORK, limit=1000):
            await broker.ack(job, enqueue=[_follow_up(job)], kv={job.id.encode(): b"done"})
            acked.add(job.id)
        return await left()

    await until(drain)
    return acked
