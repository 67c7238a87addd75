"""The processes of a run. A process that ends is replaced, until the run ends."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM
from typing import Any

from tests.chaos.load import QUEUES, URL
from tests.chaos.member import member
from tests.chaos.supervised import FOLDER
from tests.support.bound import BOUND
from tests.support.processes import ROOT, Child, Spawn, pause


class Slot:
    """The place of one process, with its roles."""

    def __init__(self, roles: list[str], options: dict[str, Any]) -> None:
        self.roles = roles
        self.options = options
        self.child: Child | None = None
        self.ready = asyncio.Event()
        self.replacing = asyncio.Lock()
        self.stopping = False
        self.started = 0


class Supervisor:
    """``dayjob worker`` with two processes under its supervisor."""

    def __init__(self, url: str, folder: Path) -> None:
        self._environment = {**os.environ, URL: url, FOLDER: str(folder)}
        self._log = folder / "supervisor.log"
        self._process: Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "dayjob", "worker", "tests.chaos.supervised:app", "--processes", "2",
                "--queues", ",".join(QUEUES), "--concurrency", "10", "--shutdown-timeout", "3",
                env=self._environment, cwd=ROOT, stdin=DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    async def stop(self, number: int = SIGTERM) -> None:
        """Send the signal, and wait for the end. The workers of a killed supervisor stop by themselves."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(number)
            async with asyncio.timeout(BOUND):
                await process.wait()


class Fleet:
    def __init__(self, spawn: Spawn, url: str, folder: Path, on_exit: Callable[[Slot, int], None]) -> None:
        self.url = url
        self.slots: list[Slot] = []
        self._spawn = spawn
        self._folder = folder
        self._on_exit = on_exit
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, roles: list[str], **options: Any) -> Slot:
        """Start a process, and wait until it is ready."""
        slot = Slot(roles, {"number": len(self.slots), **options})
        self.slots.append(slot)
        self._tasks.append(asyncio.create_task(self._tend(slot)))
        async with asyncio.timeout(BOUND):
            await slot.ready.wait()
        return slot

    async def _tend(self, slot: Slot) -> None:
        """Start the process again whenever it ends."""
        while not slot.stopping:
            slot.child = await self._start(slot, self.url)
            with suppress(AssertionError, TimeoutError):  # It was killed before it was ready.
                assert await slot.child.receive() == "ready"
                slot.ready.set()
            while True:
                child = slot.child
                status = await child.ended()
                async with slot.replacing:
                    if slot.child is child:
                        break
            slot.ready.clear()
            if not slot.stopping:
                self._on_exit(slot, status)

    async def _start(self, slot: Slot, url: str) -> Child:
        slot.started += 1
        options = {**slot.options, "started": slot.started}
        return await self._spawn(member, url, str(self._folder), slot.roles, options)

    # Faults.

    async def kill(self, slot: Slot) -> None:
        if slot.child is not None:
            slot.ready.clear()
            await slot.child.kill()

    async def replace_live(self, slot: Slot, url: str) -> None:
        """Start a second process for the slot, which takes the storage over from the first."""
        async with slot.replacing:
            old, rival = slot.child, await self._start(slot, url)
            with suppress(AssertionError, TimeoutError):  # It was fenced itself, or has failed.
                assert await rival.receive() == "ready"
                slot.child = rival
                slot.ready.set()
            if slot.child is not rival:
                await rival.kill()
                return
        if old is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(20):
                    await old.ended()
            await old.kill()

    # The end.

    async def stop(self, slot: Slot) -> None:
        """Stop a process in order. One that ends otherwise is not replaced."""
        slot.stopping = True
        if slot.child is not None:
            with suppress(AssertionError, TimeoutError, ConnectionError, ProcessLookupError):
                assert slot.ready.is_set(), "it has just been started, and is killed"
                slot.child.proceed()
                while await slot.child.receive() != "closed":
                    pass
            await slot.child.kill()

    async def drain(self, slot: Slot) -> None:
        """Wait until the slot has drained the storage, also if its process is replaced meanwhile."""
        while True:
            async with asyncio.timeout(BOUND):
                await slot.ready.wait()
            child = slot.child
            assert child is not None
            with suppress(AssertionError):
                child.proceed()
                assert await child.receive() == "drained"
                return
            await child.ended()
            await pause(0.1)  # Until its replacement is started.

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
