"""The demo's worker processes: started, watched, one of them killed, the others ended with the demo."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Self

from dayjob.errors import DayjobError

PATIENCE = 5.0
"""Seconds that a worker has to end by itself."""


class WorkerFailed(DayjobError):
    """A worker process ended that should not have."""


class Crew:
    """Worker processes by name. Each lives as long as the pipe to its standard input is open."""

    def __init__(self, url: str, size: int, logs: Path) -> None:
        self._url = url
        self._names = [f"worker-{number}" for number in range(1, size + 1)]
        self._logs = logs
        self._processes: dict[str, Process] = {}

    async def __aenter__(self) -> Self:
        try:
            for name in self._names:
                self._processes[name] = await self._start(name)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _start(self, name: str) -> Process:
        with self._log(name).open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "dayjob.cli.demo_worker", self._url, name,
                stdin=PIPE, stdout=DEVNULL, stderr=log,
                process_group=0,  # Ctrl-C is for the demo, which then ends its workers
            )  # fmt: skip

    async def _stop(self) -> None:
        for process in self._processes.values():
            _hang_up(process)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    for process in self._processes.values():
                        await process.wait()
        finally:
            for process in self._processes.values():
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def check(self) -> None:
        """Refuse to go on without a worker that nobody killed."""
        for name, process in self._processes.items():
            if process.returncode is not None:
                said = self._log(name).read_text(errors="replace").strip() or "nothing"
                raise WorkerFailed(f"{name} ended with code {process.returncode}; it said: {said}")

    async def kill(self, name: str) -> None:
        """End a worker as the out-of-memory killer would: at once, with whatever it has in hand."""
        process = self._processes[name]
        process.kill()
        await process.wait()
        del self._processes[name]
        _hang_up(process)


def _hang_up(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
