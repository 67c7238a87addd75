"""How a handler ends its run other than by returning or by failing: it raises one of these."""

from __future__ import annotations

from dayjob.model.durations import Duration, to_micros


class DeadLetter(Exception):
    """Failure for good: the job is dead, whatever its attempts."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(Exception):
    """Failure, to be retried after this delay instead of the policy's; the attempt counts."""

    def __init__(self, delay: Duration, reason: str = "asked for a later retry") -> None:
        to_micros(delay, "delay")
        super().__init__(delay, reason)
        self.delay = delay
        self.reason = reason


class Snooze(Exception):
    """Not now: run again after this delay, as if this run had not been."""

    def __init__(self, delay: Duration) -> None:
        to_micros(delay, "delay")
        super().__init__(delay)
        self.delay = delay


class JobCancelled(Exception):
    """The handler gave up because of a cancel; without a cancel request it is a failure like any other."""
