"""The rate at which runs end: how many jobs a worker should claim ahead."""

from __future__ import annotations

from dayjob.runtime.clock import SYSTEM

AHEAD = 0.02
"""Seconds within which a job that is claimed ahead should begin."""

SHORT_RUN = 0.05
"""Seconds: no job is claimed ahead while runs take longer on average."""


class RunRate:
    """Measured over the last ``AHEAD`` seconds or more, so that it falls as soon as long jobs arrive."""

    def __init__(self) -> None:
        self._average_seconds = 1.0
        """The moving average of the duration of runs."""
        self._ended = 0
        """The runs that have ended since the last measurement."""
        self._measured_at = SYSTEM.elapsed()
        self._per_second = 0.0

    def record(self, seconds: float) -> None:
        """Count a run that has ended."""
        self._ended += 1
        self._average_seconds += (seconds - self._average_seconds) * 0.05

    def ahead(self) -> int:
        """Return how many jobs will begin within ``AHEAD`` seconds, if runs end at this rate."""
        now = SYSTEM.elapsed()
        elapsed = now - self._measured_at
        if elapsed >= AHEAD:
            self._per_second = self._ended / elapsed
            self._measured_at, self._ended = now, 0
        return int(self._per_second * AHEAD) if self._average_seconds < SHORT_RUN else 0
