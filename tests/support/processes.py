"""Real processes for tests: each runs one role, an ``async`` function, and talks to its test in lines.

A role says values with ``say`` and waits for the test's word with ``told``. What it said before it was
killed still reaches the test. Run as a module, this file is the child's main program.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from signal import SIGKILL
from typing import Any, TypeVar

from dayjob.runtime.clock import SYSTEM

Role = Callable[..., Awaitable[None]]
T = TypeVar("T")

BOUND = 30.0
"""Seconds after which what should come is taken to be missing."""

ROOT = Path(__file__).parents[2]
"""Where ``tests`` can be imported from."""


async def pause(seconds: float) -> None:
    """Let real time pass: for load that has to last, and between two looks at a condition."""
    await SYSTEM.wait(asyncio.Event(), seconds)


async def until(condition: Callable[[], Awaitable[bool]], bound: float = BOUND) -> float:
    """Return once the condition holds; how many seconds that took."""
    begun = SYSTEM.elapsed()
    while not await condition():
        assert SYSTEM.elapsed() - begun < bound, f"it did not come about within {bound:g} s"
        await pause(0.01)
    return SYSTEM.elapsed() - begun


# In the child.


def say(value: Any) -> None:
    """One line to the test, in one write."""
    os.write(1, json.dumps(value).encode() + b"\n")


async def told() -> None:
    """Wait for the test's word; if the test is gone, that is one too."""
    loop = asyncio.get_running_loop()
    heard = asyncio.Event()
    loop.add_reader(0, heard.set)
    await heard.wait()
    loop.remove_reader(0)
    os.read(0, 1)


# In the test.


class Child:
    """A running role, as its test sees it."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input, self._output = process.stdin, process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    async def said(self) -> Any:
        """The next value that the role says."""
        async with asyncio.timeout(BOUND):
            line = await self._output.readline()
        assert line, f"the process ended with {await self.ended()} and had no more to say"
        return json.loads(line)

    def tell(self) -> None:
        self._input.write(b"!")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(BOUND):
            return await self._process.wait()

    async def kill(self) -> None:
        """End it with SIGKILL, if it has not ended yet, and see it gone."""
        if self._process.returncode is None:
            self._process.kill()
        await self.ended()

    async def dispose(self) -> None:
        await self.kill()
        self._input.close()
        await self._output.read()


class Spawn:
    """Starts children."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    async def __call__(self, role: Role, *arguments: Any) -> Child:
        """A process that runs the role; the arguments go through JSON."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, role.__module__, role.__name__, json.dumps(arguments),
            stdin=PIPE, stdout=PIPE, cwd=ROOT, limit=2**24,
        )  # fmt: skip
        child = Child(process)
        self._children.append(child)
        return child

    async def many(self, count: int, role: Role, *arguments: Any) -> list[Child]:
        """That many processes, started at the same time."""
        return await asyncio.gather(*(self(role, *arguments) for _ in range(count)))

    async def dispose(self) -> None:
        for child in self._children:
            await child.dispose()


@asynccontextmanager
async def spawning() -> AsyncIterator[Spawn]:
    """A ``Spawn`` whose children do not outlive the block."""
    spawn = Spawn()
    try:
        yield spawn
    finally:
        await spawn.dispose()


async def said_by_all(children: list[Child]) -> list[Any]:
    """The next value of each."""
    return [await child.said() for child in children]


async def together(children: list[Child]) -> None:
    """Wait until all are ready, then let them go at once."""
    assert set(await said_by_all(children)) == {"ready"}
    for child in children:
        child.tell()


def die() -> None:
    """End this process as the out-of-memory killer would."""
    os.kill(os.getpid(), SIGKILL)


if __name__ == "__main__":
    _module, _name, _arguments = sys.argv[1:]
    asyncio.run(getattr(import_module(_module), _name)(*json.loads(_arguments)))
