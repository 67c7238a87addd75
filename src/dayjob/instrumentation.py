"""What an app tells of its jobs as they pass: to a meter that counts, and to tracing that follows them.

Both are None unless asked for, and then cost nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dayjob.context import Context
from dayjob.model.job import Job, NewJob


class Meter(Protocol):
    """Counts and times; ``dayjob.metrics`` has one."""

    def enqueued(self, job: NewJob) -> None: ...

    def started(self, job: Job, waited: float) -> Ending:
        """A run begins, that many seconds after the job was due; what to tell how it ends."""
        ...


class Ending(Protocol):
    def ended(self, outcome: str, seconds: float) -> None:
        """``outcome`` is the state that the job went into, or "lost"."""
        ...


class Tracing(Protocol):
    """Follows jobs from where they are enqueued to where they run; ``dayjob.tracing`` has one."""

    def producing(self, jobs: Sequence[NewJob]) -> AbstractContextManager[list[NewJob]]:
        """Around storing the jobs; gives them with the headers that lead back here."""
        ...

    def stamped(self, job: NewJob) -> NewJob:
        """The job with the headers of what goes on here; for one that is stored later."""
        ...

    def enter(self, job: Job) -> Any | None:
        """Go on in the job's trace if nothing is recorded of it: what to ``leave`` with after the run."""
        ...

    def leave(self, entered: Any) -> None: ...

    async def run(self, context: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Around a run that is recorded, and all of its middleware."""
        ...
