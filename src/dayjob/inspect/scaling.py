"""How many workers the load of a queue needs, for autoscalers: ``dayjob scale``, ``dayjob_workers_wanted``.

The number follows from the wait of the oldest pending job, the running jobs and the rate of the live workers.
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct

TARGET = 30.0
"""Seconds within which a pending job should start."""


class Load(Struct, frozen=True, kw_only=True):
    """The load of one queue or several, with the live workers that serve them."""

    pending: int
    limited: int
    """More workers do not start these earlier."""
    running: int
    waiting_seconds: float
    """How long the oldest pending job has been due."""
    done_per_second: float
    workers: int
    slots: int
    """Of all these workers."""

    def workers_wanted(self, target: float = TARGET) -> int:
        """Return how many workers it takes to start each pending job within ``target`` seconds.

        - Without a live worker: one, if there are jobs.
        - Late, the oldest job waits for longer than the target: the live workers, and as many more as end the
          pending jobs within the target at their present rate. They double if they have ended none lately.
        - Nearly late, over half the target: the live workers.
        - Otherwise as many as the running jobs fill.

        There is never more than one worker for each pending or running job, and none without jobs. Limited
        jobs need one, which claims them in time.
        """
        jobs = self.pending + self.running
        if not jobs or not self.workers:
            return min(jobs + self.limited, 1)
        busy = ceil(self.running * self.workers / max(self.slots, 1))
        late = self.waiting_seconds > target
        if late and self.done_per_second > 0:
            more = ceil(self.pending * self.workers / (self.done_per_second * target))
        else:
            more = self.workers if late else 0
        kept = self.workers if self.pending and self.waiting_seconds > target / 2 else 1
        return min(max(busy, kept) + more, jobs)
