"""The hooks of an app for metrics and tracing. Without them, an app calls nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dayjob.context import Context
from dayjob.model.job import EndedJob, Job, NewJob


class Meter(Protocol):
    """Counts jobs and measures runs. Implemented by ``dayjob.metrics``."""

    def enqueued(self, queue: str, task: str) -> None: ...

    def ended(self, job: EndedJob) -> None:
        """Count a job that ended without a worker."""
        ...

    def started(self, job: Job, waited: float) -> RunMeter:
        """Count a run that starts ``waited`` seconds after the job was due. Return the meter of the run."""
        ...


class RunMeter(Protocol):
    def ended(self, outcome: str, seconds: float) -> None:
        """Count the end of the run. ``outcome`` is the new state of the job, or "lost"."""
        ...


class Tracing(Protocol):
    """Traces jobs from enqueue to run. Implemented by ``dayjob.tracing``."""

    def producing(self, jobs: Sequence[NewJob]) -> AbstractContextManager[list[NewJob]]:
        """Open a producer span around an enqueue. Return the jobs with the headers of the span."""
        ...

    def stamped(self, job: NewJob) -> NewJob:
        """Return the job with the headers of the current span. For a job that is stored later."""
        ...

    def enter(self, job: Job) -> Any | None:
        """If the job's trace is not sampled, make it current. Return the argument for ``leave``."""
        ...

    def leave(self, entered: Any) -> None: ...

    async def run(self, context: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Open a consumer span around a sampled run and its middleware."""
        ...
