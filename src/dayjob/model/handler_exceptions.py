"""Exceptions by which a handler ends its run other than by success or failure."""

from __future__ import annotations

from dayjob.model.durations import Duration, to_micros


class DeadLetter(Exception):
    """Permanent failure: the job is dead, regardless of its attempts."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(Exception):
    """Failure, with a retry after this delay instead of the policy's. The attempt counts."""

    def __init__(self, delay: Duration, reason: str = "retry later") -> None:
        to_micros(delay, "delay")
        super().__init__(delay, reason)
        self.delay = delay
        self.reason = reason


class Snooze(Exception):
    """Run the job again after this delay. The run does not count as an attempt."""

    def __init__(self, delay: Duration) -> None:
        to_micros(delay, "delay")
        super().__init__(delay)
        self.delay = delay


class JobCancelled(Exception):
    """The handler stopped because of a cancel. Without a cancel request it counts as a failure."""
