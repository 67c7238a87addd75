"""Context variables: every run starts with those that the worker was started with, and keeps its own.

A task serves several short runs in turn, because making one costs more than many a run. Whether a run
has left the variables as they were is seen afterwards; if not, no other run is let into that task.
"""

from __future__ import annotations

from asyncio import Task
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any

from dayjob.context import CURRENT, enter
from dayjob.worker.run import Run


class Isolation:
    """The variables of one worker."""

    def __init__(self) -> None:
        self._variables = copy_context()
        self._variables.run(enter, None)
        self._values = [item for item in self._variables.items() if item[0] is not CURRENT]
        self._count = len(self._variables)

    def fresh(self) -> Variables:
        """What a new task starts with."""
        return self._variables.copy()

    def holds(self, run: Run, task: Task[Any]) -> bool:
        """Whether the current task, which was that of the run, is as good as new."""
        if run.interrupted is not None or run.lost or task.cancelling():
            return False  # A cancellation may still be on its way to it.
        variables = copy_context()
        if len(variables) != self._count:
            return False
        for name, value in self._values:  # noqa: SIM110 - a generator would take longer than many a run
            if variables[name] is not value:
                return False
        return True
