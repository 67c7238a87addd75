"""``dayjob worker`` as a real process, and bounded waits for what it does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dayjob import Broker, BrokerConfig
from dayjob.runtime.clock import SYSTEM, block

BOUND = 40.0
"""Seconds after which what should come is taken to be missing."""

Answer = TypeVar("Answer")

ROOT = Path(__file__).parents[2]


def eventually(condition: Callable[[], bool], what: str, said: Callable[[], str] = lambda: "") -> None:
    deadline = SYSTEM.elapsed() + BOUND
    while not condition():
        assert SYSTEM.elapsed() < deadline, f"{what} did not come about\n{said()}"
        block(0.02)


def ask(url: str, question: Callable[[Broker], Awaitable[Answer]]) -> Answer:
    """Ask a broker of this test; it runs no duties, so it changes nothing by itself."""

    async def asking() -> Answer:
        async with Broker(url, config=BrokerConfig(duties=False)) as broker:
            return await question(broker)

    return asyncio.run(asking())


class Command:
    """A running ``dayjob worker``, or another command that goes on until it is stopped."""

    def __init__(self, arguments: tuple[str, ...], folder: Path, log: Path, more: Mapping[str, str]) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dayjob", *arguments],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **more},
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self._log.read_text()

    def says(self, text: str, times: int = 1) -> None:
        """Wait until it has said so, that often."""
        eventually(lambda: self.said().count(text) >= times, f"{text!r} in the output", self.said)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end: the exit code."""
        try:
            return self.process.wait(BOUND)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.said()}") from None

    def stopped(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.ended()


class Start:
    """Starts commands; they don't outlive the block."""

    def __init__(self, folder: Path, logs: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._logs = logs
        self._environment = environment
        self._commands: list[Command] = []

    def __call__(self, *arguments: str, command: str = "worker") -> Command:
        log = self._logs / f"command-{len(self._commands)}.log"
        started = Command((command, *arguments), self._folder, log, self._environment)
        self._commands.append(started)
        return started

    def dispose(self) -> None:
        for command in self._commands:
            if command.process.poll() is None:
                command.kill()


@contextmanager
def starting(folder: Path, logs: Path, environment: Mapping[str, str]) -> Iterator[Start]:
    start = Start(folder, logs, environment)
    try:
        yield start
    finally:
        start.dispose()


def is_gone(pid: int) -> bool:
    """Whether the process has ended, collected by its parent or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] in "ZX"
