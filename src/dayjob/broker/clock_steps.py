"""Steps of the engine's clock, measured against the elapsed time of this process.

A lease expires by the engine's clock, and is renewed by the elapsed time of its holder. After a step forward,
leases expire before their holders renew them. A read whose reply comes late looks the same, and has the same
consequence: in an outage no lease can be renewed.
"""

from __future__ import annotations

import logging

from dayjob.model.durations import SECOND
from dayjob.runtime.clock import Clock

_log = logging.getLogger("dayjob.broker")

TOLERANCE = 1.0
"""Seconds by which the two clocks may differ between two reads."""


class ClockSteps:
    """The last step forward that this process has observed."""

    def __init__(self, clock: Clock) -> None:
        self.elapsed = clock.elapsed
        self._read: tuple[int, float, float] | None = None
        """The engine's time of the last read, and the elapsed times of its call and of its reply."""
        self._stepped_at = float("-inf")
        self._step = 0.0

    def observe(self, now: int, asked: float) -> None:
        """Compare the engine's time with that of the last read. This read began at the time ``asked``."""
        replied = self.elapsed()
        last, read = self._read, (now, asked, replied)
        if last is None:
            self._read = read
            return
        then, last_asked, last_replied = last
        overlap = asked < last_replied
        # Reads that overlap do not show which came first: no more than the time of both passed between them.
        passed = replied - last_asked if overlap else asked - last_replied
        step = (now - then) / SECOND - passed
        if step > TOLERANCE or not overlap:
            self._read = read
        if step > TOLERANCE:
            _log.info(
                "the storage's clock advanced %.1f s in %.1f s: it was set, or the storage did not reply; "
                "leases that expired meanwhile get the time for a renewal",
                (now - then) / SECOND, passed,
            )  # fmt: skip
            self._step = max(step, self._stepped_at + self._step - replied)
            self._stepped_at = replied

    def rest(self, longest: float) -> float:
        """Return seconds until a duty may act on the new time: as many as the step, and at most ``longest``.

        A lease that a step ended had less time left than the step. Its holder renews it when half its time is
        left, so before that time is over.
        """
        return self._stepped_at + min(self._step, longest) - self.elapsed()
