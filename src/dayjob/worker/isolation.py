"""Isolation of context variables: every run starts with the values that the worker was started with.

A task performs several short runs in turn, because creating a task costs more than many runs. If a run
changed the variables, its task ends and no other run sees the change.
"""

from __future__ import annotations

from asyncio import Task
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any

from dayjob.context import CURRENT, enter
from dayjob.worker.run import Run


class Isolation:
    """The context variables of one worker."""

    def __init__(self) -> None:
        self._variables = copy_context()
        self._variables.run(enter, None)
        self._values = [item for item in self._variables.items() if item[0] is not CURRENT]
        self._count = len(self._variables)

    def fresh(self) -> Variables:
        """Return the context of a new task."""
        return self._variables.copy()

    def unchanged_by(self, run: Run, task: Task[Any]) -> bool:
        """Return whether the current task, which performed the run, may perform another."""
        if run.interrupted is not None or run.lost or task.cancelling():
            return False  # A cancellation of the task may not be delivered yet.
        variables = copy_context()
        if len(variables) != self._count:
            return False
        for name, value in self._values:  # noqa: SIM110 - a generator is slower
            if variables[name] is not value:
                return False
        return True
