"""The places of a pool: how many runs may be in its threads or child processes at once.

The rate at which runs end shows how many jobs to claim ahead, for these places and for the slots of a worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from dayjob.runtime.clock import SYSTEM

if TYPE_CHECKING:
    from dayjob.worker.executor import Run


AHEAD = 0.05
"""Seconds within which a job that is claimed ahead should begin."""

SHORT_RUN = 0.05
"""Seconds: no job is claimed ahead while runs take longer on average."""

STALE = 0.25
"""Seconds after the last end of a run from which on the rate is unknown: long jobs run, or none."""

IDLE = 0.01
"""Seconds without a run that do not count: the worker waits for its claim, and not for its runs."""

GROWTH = 10
"""The jobs claimed ahead are at most this many times the runs that the rate was measured from."""

_LAST_WEIGHT = 0.05


class RunRate:
    """Measured over the last 50 to 100 milliseconds in which jobs ran.

    The waits between runs for a slow storage are left out. Otherwise a worker would claim little because its
    claims take long, and would need more of them.
    """

    def __init__(self) -> None:
        self._average_seconds = 0.0
        """The moving average of the duration of runs."""
        self._weight = 1.0
        """The weight of the next run in the average."""
        self._ended = 0.0
        """The runs that have ended in the measured time."""
        self._busy = 0.0
        """The measured time in seconds."""
        self._last_end = float("-inf")

    def record(self, seconds: float, ended_at: float) -> None:
        """Count a run that has ended."""
        since_last = ended_at - self._last_end
        self._last_end = ended_at
        if since_last < IDLE + seconds:
            self._busy += since_last
            self._ended += 1
            if self._busy > 2 * AHEAD:
                self._ended, self._busy = self._ended * AHEAD / self._busy, AHEAD
        elif since_last < STALE:
            self._busy += seconds
            self._ended += 1
        else:
            self._busy, self._ended = seconds, 1
        self._average_seconds += (seconds - self._average_seconds) * self._weight
        if self._weight > _LAST_WEIGHT:
            self._weight = max(1 / (1 / self._weight + 1), _LAST_WEIGHT)

    def ahead(self) -> int:
        """Return how many jobs will begin within ``AHEAD`` seconds, if runs end at this rate."""
        if self._average_seconds >= SHORT_RUN or SYSTEM.elapsed() - self._last_end >= STALE:
            return 0
        return int(self._ended * min(AHEAD / max(self._busy, 1e-9), GROWTH))


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
