"""The places of a pool: how many runs may be in its threads or child processes at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from dayjob.worker.run_rate import RunRate

if TYPE_CHECKING:
    from dayjob.worker.executor import Run


class PoolLimit:
    """Up to ``size`` runs have a place. Others wait, in the order of their claims.

    A run gets its place before it begins. ``ready`` is called with a run that has got one after a wait. The
    runs for which ``needs_loop`` is false are left to ``ThreadRuns``: its threads have places, and take them.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.abandoned = 0
        """The places of runs that have ended though their threads are still busy."""
        self.granted = 0
        """The places that ``ThreadRuns`` has for its threads. Changed on the event loop."""
        self.active = 0
        """The granted places whose threads have a run. Changed by the threads too."""
        self.rate = RunRate()
        self.waiting: deque[Run] = deque()
        self.lock = Lock()
        """Held to take a waiting run, and to change ``granted`` and ``active``."""
        self.ready: Callable[[Run], None] = lambda run: None
        self.needs_loop: Callable[[Run], bool] = lambda run: True

    def admit(self, run: Run) -> bool:
        """Give the run a place and return True, or let it wait and return False."""
        if self.used < self.size and not self.waiting:
            self.used += 1
            return True
        self.waiting.append(run)
        return False

    @property
    def free(self) -> int:
        """The number of places without a run."""
        return max(self.size - self.used, 0) + self.granted - self.active

    @property
    def unplaced(self) -> int:
        """The number of waiting runs for which no place is free."""
        return max(len(self.waiting) - self.free, 0)

    @property
    def is_full(self) -> bool:
        """Whether as many runs wait as there are places, and more than will begin within milliseconds."""
        return self.unplaced >= self.size and self.unplaced >= self.rate.ahead()

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
        """Free a place. The run that has waited longest gets it, if it needs the event loop."""
        self.used -= 1
        self.place_waiting()

    def place_waiting(self) -> None:
        """Give free places to the first waiting runs that need the event loop."""
        while self.waiting and self.used < self.size:
            with self.lock:
                if not self.waiting or not self.needs_loop(self.waiting[0]):
                    return
                run = self.waiting.popleft()
            self.used += 1
            self.ready(run)

    def take_waiting(self, accepted_by: float) -> list[Run]:
        """Remove and return the runs that were accepted by then and have not begun.

        Callable from any thread.
        """
        with self.lock:
            return take(self.waiting, accepted_by)

    def abandon(self) -> None:
        """Keep the place of a run that ends, for its busy thread."""
        self.abandoned += 1
        self.used += 1

    def end_abandoned(self) -> None:
        """Free the place of an abandoned thread that has ended its call."""
        self.abandoned -= 1
        self.leave()


def take(waiting: deque[Run], accepted_by: float) -> list[Run]:
    """Remove and return the runs that were accepted by then."""
    taken: list[Run] = []
    with suppress(IndexError):  # Another thread may take the last one.
        while waiting[0].accepted_at <= accepted_by:
            taken.append(waiting.popleft())
    return taken
