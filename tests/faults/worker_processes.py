"""Processes at work on one URL that are killed and replaced, and the logs that they leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.processes import Child, Role, Spawn


class Crew:
    """One process for each role given; a role may be given several times."""

    def __init__(self, spawn: Spawn, url: str, folder: Path, roles: Sequence[Role]) -> None:
        self._spawn = spawn
        self._url = url
        self._folder = folder
        self._roles = roles
        self._logs: list[tuple[Role, Path]] = []
        self._members: list[Child] = []

    async def start(self) -> None:
        self._members = [await self._hire(role) for role in self._roles]
        for child in self._members:
            assert await child.said() == "ready"

    async def _hire(self, role: Role) -> Child:
        log = self._folder / f"{len(self._logs)}.log"
        self._logs.append((role, log))
        return await self._spawn(role, self._url, str(log))

    async def replace(self, turn: int) -> None:
        """Kill one of them, each in its turn, and wait until its successor is at work."""
        index = turn % len(self._members)
        await self._members[index].kill()
        self._members[index] = await self._hire(self._roles[index])
        assert await self._members[index].said() == "ready"

    async def kill_all(self) -> None:
        """All at once, as when the power fails: nobody is left to tidy up."""
        await asyncio.gather(*(child.kill() for child in self._members))

    def lines(self, role: Role) -> Iterator[str]:
        """What all who had the role logged."""
        for whose, log in self._logs:
            if whose is role and log.exists():
                yield from log.read_text().splitlines()
