"""Real processes for tests. Each runs one role, an ``async`` function, and exchanges lines with its test.

A role sends values with ``send_to_test`` and waits for the test with ``wait_for_test``. Values sent before a
kill still reach the test. Run as a module, this file is the child's main program.
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
from signal import SIGKILL, SIGSTOP
from typing import Any, TypeVar

from dayjob.runtime.clock import SYSTEM
from tests.support.bound import BOUND

Role = Callable[..., Awaitable[None]]
T = TypeVar("T")


ROOT = Path(__file__).parents[2]
"""The folder to import ``tests`` from."""


async def pause(seconds: float) -> None:
    """Sleep in real time: for load that must last, and between two checks of a condition."""
    await SYSTEM.wait(asyncio.Event(), seconds)


async def until(condition: Callable[[], Awaitable[bool]], bound: float = BOUND) -> float:
    """Wait until the condition holds. Return the seconds that took."""
    started = SYSTEM.elapsed()
    while not await condition():
        assert SYSTEM.elapsed() - started < bound, f"the condition did not hold within {bound:g} s"
        await pause(0.01)
    return SYSTEM.elapsed() - started


# In the child.


def send_to_test(value: Any) -> None:
    """Send one line to the test, in one write."""
    os.write(1, json.dumps(value).encode() + b"\n")


async def wait_for_test() -> None:
    """Wait until the test calls ``Child.proceed`` or has ended."""
    loop = asyncio.get_running_loop()
    received = asyncio.Event()
    loop.add_reader(0, received.set)
    await received.wait()
    loop.remove_reader(0)
    os.read(0, 1)


# In the test.


def _thread_states(pid: int) -> list[str]:
    """Return the state of each thread, as the kernel names it; nothing on a system without /proc."""
    files = Path(f"/proc/{pid}/task").glob("*/stat")
    return [file.read_text().rpartition(") ")[2][0] for file in files]


class Child:
    """A running role, seen from its test."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input, self._output = process.stdin, process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    async def receive(self) -> Any:
        """Return the next value that the role sends."""
        async with asyncio.timeout(BOUND):
            line = await self._output.readline()
        assert line, f"the process ended with {await self.wait()} and sent no more"
        return json.loads(line)

    def proceed(self) -> None:
        self._input.write(b"!")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def freeze(self) -> None:
        """Stop the process, and wait until each of its threads has stopped.

        One thread takes SIGSTOP and stops the others. On a busy machine they run on until it is scheduled.
        """
        self.signal(SIGSTOP)
        await until(self._is_frozen)

    async def _is_frozen(self) -> bool:
        return set(_thread_states(self.pid)) <= {"T", "t"}

    async def wait(self) -> int:
        async with asyncio.timeout(BOUND):
            return await self.ended()

    async def ended(self) -> int:
        """Wait for the end of the process, without a time limit. Return its status."""
        return await self._process.wait()

    async def kill(self) -> None:
        """Kill the process if it has not ended yet, and wait for its end."""
        if self._process.returncode is None:
            self._process.kill()
        await self.wait()

    async def dispose(self) -> None:
        await self.kill()
        self._input.close()
        await self._output.read()


class Spawn:
    """Starts child processes."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    async def __call__(self, role: Role, *arguments: Any) -> Child:
        """Start a process that runs the role. The arguments are passed as JSON."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, role.__module__, role.__name__, json.dumps(arguments),
            stdin=PIPE, stdout=PIPE, cwd=ROOT, limit=2**24,
        )  # fmt: skip
        child = Child(process)
        self._children.append(child)
        return child

    async def many(self, count: int, role: Role, *arguments: Any) -> list[Child]:
        """Start that many processes at the same time."""
        return await asyncio.gather(*(self(role, *arguments) for _ in range(count)))

    async def dispose(self) -> None:
        for child in self._children:
            await child.dispose()


@asynccontextmanager
async def spawning() -> AsyncIterator[Spawn]:
    """Yield a ``Spawn`` whose children end with the block."""
    spawn = Spawn()
    try:
        yield spawn
    finally:
        await spawn.dispose()


async def receive_from_all(children: list[Child]) -> list[Any]:
    """Return the next value of each."""
    return [await child.receive() for child in children]


async def start_together(children: list[Child]) -> None:
    """Wait until all are ready, then let all proceed at once."""
    assert set(await receive_from_all(children)) == {"ready"}
    for child in children:
        child.proceed()


def die() -> None:
    """Kill this process, as the out-of-memory killer would."""
    os.kill(os.getpid(), SIGKILL)


if __name__ == "__main__":
    _module, _name, _arguments = sys.argv[1:]
    asyncio.run(getattr(import_module(_module), _name)(*json.loads(_arguments)))
