"""The rate at which runs end: how many jobs a worker should claim ahead."""

from __future__ import annotations

from dayjob.runtime.clock import SYSTEM

AHEAD = 0.05
"""Seconds within which a job that is claimed ahead should begin."""

SHORT_RUN = 0.05
"""Seconds: no job is claimed ahead while runs take longer on average."""

STALE = 0.25
"""Seconds after the last end of a run from which on the rate is unknown: long jobs run, or none."""


class RunRate:
    """Measured between claims, over ``AHEAD`` seconds or more."""

    def __init__(self) -> None:
        self._average_seconds = 1.0
        """The moving average of the duration of runs."""
        self._ended = 0
        """The runs that have ended since the last measurement."""
        self._last_end = float("-inf")
        self._measured_at = SYSTEM.elapsed()
        self._per_second = 0.0

    def record(self, seconds: float, ended_at: float) -> None:
        """Count a run that has ended."""
        self._ended += 1
        self._last_end = ended_at
        self._average_seconds += (seconds - self._average_seconds) * 0.05

    def ahead(self) -> int:
        """Return how many jobs will begin within ``AHEAD`` seconds, if runs end at this rate."""
        now = SYSTEM.elapsed()
        elapsed = now - self._measured_at
        if elapsed >= AHEAD:
            self._per_second = self._ended / elapsed if now - self._last_end < STALE else 0.0
            self._measured_at, self._ended = now, 0
        return int(self._per_second * AHEAD) if self._average_seconds < SHORT_RUN else 0
