"""``dayjob worker`` as a real process, and waits with a timeout."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dayjob import Broker, BrokerConfig
from dayjob.runtime.clock import SYSTEM, block
from tests.support.bound import BOUND

Answer = TypeVar("Answer")

ROOT = Path(__file__).parents[2]


def eventually(condition: Callable[[], bool], expected: str, output: Callable[[], str] = lambda: "") -> None:
    """Wait until the condition holds."""
    deadline = SYSTEM.elapsed() + BOUND
    while not condition():
        assert SYSTEM.elapsed() < deadline, f"no {expected} within {BOUND:g} s\n{output()}"
        block(0.02)


def with_broker(url: str, work: Callable[[Broker], Awaitable[Answer]]) -> Answer:
    """Run the work with a broker that runs no duties, so it changes nothing by itself."""

    async def run() -> Answer:
        async with Broker(url, config=BrokerConfig(duties=False)) as broker:
            return await work(broker)

    return asyncio.run(run())


class Command:
    """A running ``dayjob worker``, or another command that runs until it is stopped."""

    def __init__(
        self,
        arguments: tuple[str, ...],
        folder: Path,
        log: Path,
        more: Mapping[str, str],
        program: Sequence[str] = ("-m", "dayjob"),
        process_group: int | None = None,
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", *program, *arguments],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **more}, process_group=process_group,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        return self._log.read_text()

    def wait_for_output(self, text: str, times: int = 1) -> None:
        """Wait until the output has the text that many times."""
        eventually(lambda: self.output().count(text) >= times, f"{text!r} in the output", self.output)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end. Return the exit code."""
        try:
            return self.process.wait(BOUND)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the command does not end:\n{self.output()}") from None

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()


class Start:
    """Starts commands, which end with the block."""

    def __init__(self, folder: Path, logs: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._logs = logs
        self._environment = environment
        self._commands: list[Command] = []

    def __call__(
        self, *arguments: str, command: str = "worker", program: Sequence[str] = ("-m", "dayjob")
    ) -> Command:
        log = self._logs / f"command-{len(self._commands)}.log"
        started = Command((command, *arguments), self._folder, log, self._environment, program)
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
    """Return whether the process has ended. A zombie counts as ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] in "ZX"
