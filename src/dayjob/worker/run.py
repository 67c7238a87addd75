"""One run of a claimed job."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from dayjob.context import Context
from dayjob.instrumentation import RunMeter
from dayjob.model.job import Job
from dayjob.runtime.stop_signal import Reason
from dayjob.task import Task


class Run(Struct, eq=False):
    """A claimed job, from its claim to its settlement. Changed on the worker's event loop only."""

    job: Job
    context: Context
    task: Task[Any, Any, Any] | None
    renew_at: float
    """The time of half the lease, on the clock's ``elapsed``."""
    worker_task: asyncio.Task[Any] | None = None
    interrupted: Reason | None = None
    """The reason why the worker cancelled the handler. None: a ``CancelledError`` is the handler's own."""
    lost: bool = False
    seconds: float = 0.0
    """The duration, set at the end."""
    meter: RunMeter | None = None
    abandoned: bool = False
    """Whether the run was settled though its handler did not end."""
    _timer: asyncio.TimerHandle | None = None

    def cancel_requested(self) -> None:
        """Set the cancel flag and signal, and interrupt the handler if its task is configured so."""
        self.job.cancel_requested = True
        self.context.cancelled.set("cancel")
        if self.task is not None and self.task.config.cancel == "interrupt" and not self._in_thread():
            self.interrupt("cancel")

    def lose(self) -> None:
        """Mark the claim as lost: the outcome of this run no longer counts."""
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

    def start_timer(self, seconds: float | None) -> None:
        """Interrupt the run after this many seconds from now."""
        self.stop_timer()
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.interrupt, "timeout")

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _in_thread(self) -> bool:
        task = self.task
        return task is not None and not task.is_async and task.config.pool != "process"
