"""What an app tells of its jobs as they pass: to a meter that counts, and to tracing that follows them.

Both are None unless asked for, and then cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from dayjob.job import Job, NewJob


class Meter(Protocol):
    """Counts and times; ``dayjob.metrics`` has one."""

    def enqueued(self, job: NewJob) -> None: ...
    def started(self, job: Job, waited: float) -> None: ...
    def ended(self, job: Job, outcome: str, seconds: float) -> None: ...


class Tracing(Protocol):
    """Follows jobs from where they are enqueued to where they run; ``dayjob.tracing`` has one."""

    def producing(self, jobs: Sequence[NewJob]) -> AbstractContextManager[list[NewJob]]:
        """Around storing the jobs; gives them with the headers that lead back here."""
        ...

    def stamped(self, job: NewJob) -> NewJob:
        """The job with the headers of what goes on here; for one that is stored later."""
        ...
