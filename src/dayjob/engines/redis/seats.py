"""Seats: claims of this process that wait on a queue, and the jobs that enqueues elsewhere claimed for them.

A seat is taken by a look that finds nothing, and ends with one job, sent to this process as a message. The
server takes a job back of which it is not told in some seconds that it came. So a message may be lost; and of
one that comes late, because the process was held up, the server is asked whether it still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from dayjob.engines.base import ClaimRequest, WaitingClaim
from dayjob.engines.redis.record import TIME, Corrupt, claimed_job
from dayjob.model.durations import SECOND
from dayjob.model.job import Job
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.ids import new_key

LATEST = 1.0
"""Seconds after which a job that was sent may be in doubt; the server takes it back after three."""


class _Taken(Struct):
    waiting: WaitingClaim
    asked: float
    member: bytes | None = None
    """What stands for it on the server; it may be gone there."""


class Seats:
    """``confirm`` gets the seat, the job that came for it, and whether that is in doubt."""

    def __init__(self, confirm: Callable[[WaitingClaim, Job, bool], None]) -> None:
        self.client = new_key()
        self._confirm = confirm
        self._taken: dict[bytes, _Taken] = {}
        self._offset: float | None = None
        """How far the server's clock is ahead of ours, or a little more."""

    def before(self, requests: Sequence[ClaimRequest]) -> list[bytes]:
        """Somebody looks; what to remove on the server: where it sat before, and what was left by others."""
        asked = SYSTEM.elapsed()
        removed: list[bytes] = []
        for request in requests:
            waiting = request.waiting
            if waiting is not None:
                taken = self._taken.get(waiting.name)
                if taken is None:
                    self._taken[waiting.name] = _Taken(waiting, asked)
                else:
                    taken.asked = asked
                    if taken.member is not None:
                        removed.append(taken.member)
        for name in [name for name, taken in self._taken.items() if taken.waiting.closed]:
            member = self._taken.pop(name).member
            if member is not None:
                removed.append(member)
        return removed

    def after(self, request: ClaimRequest, answer: list[bytes] | bytes) -> list[bytes]:
        """The jobs of an answer that may be a seat instead."""
        if not isinstance(answer, bytes):
            return answer
        assert request.waiting is not None
        taken = self._taken.setdefault(request.waiting.name, _Taken(request.waiting, SYSTEM.elapsed()))
        taken.member = answer
        (stamp,) = TIME.unpack_from(answer, answer.index(b"\0") + 1)
        self._offset = stamp / SECOND - taken.asked
        return []

    def hear(self, message: bytes) -> None:
        """A job was claimed for a seat."""
        taken = self._taken.get(message[:16])
        if taken is None:
            return  # It left a while ago, and the message took its time.
        try:
            job = claimed_job(message[16:32], message[32:])
        except Corrupt:
            return
        sent = taken.asked if self._offset is None else (job.claimed_us or 0) / SECOND - self._offset
        self._confirm(taken.waiting, job, SYSTEM.elapsed() - sent > LATEST)

    def close(self) -> list[bytes]:
        """What to remove on the server when nobody looks any more."""
        taken, self._taken = self._taken, {}
        return [each.member for each in taken.values() if each.member is not None]
