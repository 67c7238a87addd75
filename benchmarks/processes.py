"""The parent's end of the processes that a measure starts; see ``child`` for theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from benchmarks.child import READY, Answer

_PATIENCE = 900
"""Seconds after which an answer is no longer expected."""


def ask(module: str, *arguments: object) -> Answer:
    """What a process of its own measured: ``python -m MODULE ARGUMENTS``."""
    return ask_command([sys.executable, "-m", module, *map(str, arguments)])


def ask_command(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Answer:
    with Child(command, environment) as child:
        return child.answer()


def python(module: str, *arguments: object) -> Child:
    """A process that holds until it is told to go."""
    return Child([sys.executable, "-m", module, *map(str, arguments)])


class Child:
    """A running process, which ends at the latest when the context does."""

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
        """Wait for it to hold."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            self.answer()
            raise RuntimeError("the process went on before it was told to")

    def go(self) -> None:
        self.tell("go")

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> Answer:
        """The answer to what it was told, by a process that then goes on."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.answer()
            raise RuntimeError("the process ended before it answered")
        found: Answer = json.loads(line)
        return found

    def answer(self) -> Answer:
        output, errors = self._process.communicate(timeout=_PATIENCE)
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
