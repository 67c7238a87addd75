"""One claim on its way through the worker."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from dayjob.context import Context
from dayjob.instrumentation import Ending
from dayjob.model.job import Job
from dayjob.runtime.stop_signal import Reason
from dayjob.task import Task


class Run(Struct, eq=False):
    """A claimed job, from its claim to its settlement. Changed on the worker's event loop only."""

    job: Job
    context: Context
    task: Task[Any, Any, Any] | None
    renew_at: float
    """When the claim is past half its lease, on the clock's ``elapsed``."""
    worker_task: asyncio.Task[Any] | None = None
    interrupted: Reason | None = None
    """Why the handler was stopped from outside; its ``CancelledError`` is then not its own."""
    lost: bool = False
    took: float = 0.0
    """Seconds, once it has ended."""
    ending: Ending | None = None
    """Who counts how it ends."""
    abandoned: bool = False
    """Whether it was settled without its handler, which would not end."""
    _alarm: asyncio.TimerHandle | None = None

    def cancel_requested(self) -> None:
        """Somebody asked for the job to stop."""
        self.job.cancel_requested = True
        self.context.cancelled.set("cancel")
        if self.task is not None and self.task.config.cancel == "interrupt" and not self._in_thread():
            self.interrupt("cancel")

    def lose(self) -> None:
        """The claim is somebody else's now: what this run does no longer counts."""
        self.lost = True
        self.context.cancelled.set("lost")
        if not self._in_thread():
            self.interrupt("lost")

    def interrupt(self, reason: Reason) -> None:
        """Stop the handler: cancel a coroutine, kill a process, abandon a thread."""
        if self.interrupted is None:
            self.interrupted = reason
            self.context.cancelled.set(reason)
            if self.worker_task is not None:
                self.worker_task.cancel()

    def start_alarm(self, seconds: float | None) -> None:
        """Interrupt the run when it has taken that long from now."""
        self.stop_alarm()
        if seconds is not None:
            self._alarm = asyncio.get_running_loop().call_later(seconds, self.interrupt, "timeout")

    def stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _in_thread(self) -> bool:
        task = self.task
        return task is not None and not task.is_async and task.config.pool != "process"
