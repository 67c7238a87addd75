"""The places of a pool: how many runs may be in its threads or child processes at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from dayjob.worker.run_rate import RunRate

if TYPE_CHECKING:
    from dayjob.worker.executor import Run


class PoolLimit:
    """Up to ``size`` runs have a place. Others wait, in the order of their claims.

    A run gets its place before it begins. ``ready`` is called with a run that has got one after a wait.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.abandoned = 0
        """The places of runs that have ended though their threads are still busy."""
        self.rate = RunRate()
        self.waiting: deque[Run] = deque()
        self.ready: Callable[[Run], None] = lambda run: None

    def admit(self, run: Run) -> bool:
        """Give the run a place and return True, or let it wait and return False."""
        if self.used < self.size:
            self.used += 1
            return True
        self.waiting.append(run)
        return False

    @property
    def is_full(self) -> bool:
        """Whether as many runs wait as there are places, and more than will begin within milliseconds."""
        return len(self.waiting) >= self.size and len(self.waiting) >= self.rate.ahead()

    @property
    def problem(self) -> str | None:
        """Why no run can begin in this pool, if the reason is not other runs."""
        if self.abandoned < self.size:
            return None
        return (
            f"all {self.size} threads are in use by handlers that did not end after their timeouts: "
            "restart the worker, and set timeouts in the calls of these handlers"
        )

    def leave(self) -> None:
        """Free a place. The run that has waited longest gets it."""
        self.used -= 1
        if self.used < self.size:
            with suppress(IndexError):  # None waits. Another thread may take the runs at any time.
                run = self.waiting.popleft()
                self.used += 1
                self.ready(run)

    def abandon(self) -> None:
        """Keep the place of a run that ends, for its busy thread."""
        self.abandoned += 1
        self.used += 1

    def end_abandoned(self) -> None:
        """Free the place of an abandoned thread that has ended its call."""
        self.abandoned -= 1
        self.leave()
