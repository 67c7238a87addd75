"""Processes on one URL that are killed and replaced, and their logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.processes import Child, Role, Spawn


class ProcessGroup:
    """One process for each role given. A role may be given several times."""

    def __init__(self, spawn: Spawn, url: str, folder: Path, roles: Sequence[Role]) -> None:
        self._spawn = spawn
        self._url = url
        self._folder = folder
        self._roles = roles
        self._logs: list[tuple[Role, Path]] = []
        self._children: list[Child] = []

    async def start(self) -> None:
        self._children = [await self._start(role) for role in self._roles]
        for child in self._children:
            assert await child.receive() == "ready"

    async def _start(self, role: Role) -> Child:
        log = self._folder / f"{len(self._logs)}.log"
        self._logs.append((role, log))
        return await self._spawn(role, self._url, str(log))

    async def replace(self, turn: int) -> None:
        """Kill one process, each in its turn, and wait until its replacement is ready."""
        index = turn % len(self._children)
        await self._children[index].kill()
        self._children[index] = await self._start(self._roles[index])
        assert await self._children[index].receive() == "ready"

    async def kill_all(self) -> None:
        """Kill all at once, as a power failure would: no process cleans up."""
        await asyncio.gather(*(child.kill() for child in self._children))

    def lines(self, role: Role) -> Iterator[str]:
        """Yield the log lines of all processes that had the role."""
        for owner, log in self._logs:
            if owner is role and log.exists():
                yield from log.read_text().splitlines()
