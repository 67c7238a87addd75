"""The demo's worker processes: start them, check that they live, kill one, end the others."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Self

from dayjob.errors import DayjobError

STOP_TIMEOUT = 5.0
"""Seconds for a worker process to end before it is killed."""


class WorkerFailed(DayjobError):
    """A worker process ended unexpectedly."""


class WorkerProcesses:
    """Worker processes by name. Each ends when its standard input is closed."""

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
                sys.executable, "-P", "-m", "dayjob.cli.demo.worker_main", self._url, name,
                stdin=PIPE, stdout=DEVNULL, stderr=log,
                process_group=0,  # Ctrl-C goes to the demo only, which then ends its workers.
            )  # fmt: skip

    async def _stop(self) -> None:
        for process in self._processes.values():
            _close_input(process)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT):
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
        """Raise ``WorkerFailed`` if a worker ended that the demo did not kill."""
        for name, process in self._processes.items():
            if process.returncode is not None:
                output = self._log(name).read_text(errors="replace").strip() or "no output"
                raise WorkerFailed(f"{name} ended with exit code {process.returncode}: {output}")

    async def kill(self, name: str) -> None:
        """Kill a worker with SIGKILL, as the out-of-memory killer would, while it holds claims."""
        process = self._processes[name]
        process.kill()
        await process.wait()
        del self._processes[name]
        _close_input(process)


def _close_input(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
