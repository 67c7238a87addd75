"""The parent's end of the child processes of a measure; see ``child`` for the other end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from benchmarks.child import READY, Answer

_TIMEOUT = 900
"""Seconds for the answer of a child."""


def run_child(module: str, *arguments: object) -> Answer:
    """Run ``python -m MODULE ARGUMENTS`` and return its answer."""
    return run_command([sys.executable, "-m", module, *map(str, arguments)])


def run_command(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Answer:
    with Child(command, environment) as child:
        return child.answer()


def start_child(module: str, *arguments: object) -> Child:
    """Start a process that waits for ``go``."""
    return Child([sys.executable, "-m", module, *map(str, arguments)])


class Child:
    """A running process. The end of its context kills it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
        )

    def wait_until_ready(self) -> None:
        """Wait until the process waits for ``go``."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            self.answer()
            raise RuntimeError("the process did not wait for go")

    def go(self) -> None:
        self.send("go")

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def receive(self) -> Answer:
        """Return the answer to a line that was sent. The process continues."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.answer()
            raise RuntimeError("the process ended before it answered")
        found: Answer = json.loads(line)
        return found

    def answer(self) -> Answer:
        output, errors = self._process.communicate(timeout=_TIMEOUT)
        if self._process.returncode:
            raise RuntimeError(errors)
        found: Answer = json.loads(output.splitlines()[-1])
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
