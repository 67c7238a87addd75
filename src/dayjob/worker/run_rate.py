"""The rate at which runs end: how many jobs a worker should claim ahead."""

from __future__ import annotations

from dayjob.runtime.clock import SYSTEM

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
