"""The waiting claims of this process, and the jobs that the server hands off to them.

A claim that finds no job is registered on the server. An enqueue in any process may then claim its job for it
and send the job to this process; that ends the registration. The server reclaims a handed-off job that is not
acknowledged within 2 s, so a message may be lost. After a message that came late, the reply to the
acknowledgment decides whether the claim is still current.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct as Layout

from msgspec import Struct

from dayjob.engines.base import ClaimRequest, WaitingClaim
from dayjob.engines.redis.record import TIME, Corrupt, claimed_job
from dayjob.model.durations import SECOND
from dayjob.model.job import Job
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.ids import new_key

LATE = 0.7
"""Seconds after which a handed-off job may have been reclaimed; the server does so after two."""

_SIZE = Layout(">I")
_RECORD_AT = 36
"""A message has the waiting claim's name, the job's id, the size of the record, the record, the payload."""


class _Registered(Struct):
    waiting: WaitingClaim
    asked: float
    member: bytes | None = None
    """Its member on the server, which may be gone."""


class WaitingClaims:
    """``acknowledge`` gets the waiting claim, the job that was handed off to it, and whether it came late."""

    def __init__(self, acknowledge: Callable[[WaitingClaim, Job, bool], None]) -> None:
        self.client = new_key()
        self._acknowledge = acknowledge
        self._registered: dict[bytes, _Registered] = {}
        self._offset: float | None = None
        """Upper bound of the server's time minus ``SYSTEM.elapsed()``, in seconds."""

    def before_claim(self, requests: Sequence[ClaimRequest]) -> list[bytes]:
        """Return the members to remove on the server: of these requests, and of closed waiting claims."""
        asked = SYSTEM.elapsed()
        removed: list[bytes] = []
        for request in requests:
            waiting = request.waiting
            if waiting is not None:
                registered = self._registered.get(waiting.name)
                if registered is None:
                    self._registered[waiting.name] = _Registered(waiting, asked)
                else:
                    registered.asked = asked
                    if registered.member is not None:
                        removed.append(registered.member)
        for name in [name for name, registered in self._registered.items() if registered.waiting.closed]:
            member = self._registered.pop(name).member
            if member is not None:
                removed.append(member)
        return removed

    def after_claim(self, request: ClaimRequest, reply: list[bytes] | bytes) -> list[bytes]:
        """Return the jobs of a reply, which instead may be the member of the waiting claim."""
        if not isinstance(reply, bytes):
            return reply
        assert request.waiting is not None
        registered = self._registered.setdefault(
            request.waiting.name, _Registered(request.waiting, SYSTEM.elapsed())
        )
        registered.member = reply
        (stamp,) = TIME.unpack_from(reply, reply.index(b"\0") + 1)
        self._offset = stamp / SECOND - registered.asked
        return []

    def on_handoff(self, message: bytes) -> None:
        """A job was claimed for a waiting claim."""
        registered = self._registered.get(message[:16])
        if registered is None:
            return  # The claim was closed a while ago, and the message came late.
        end = _RECORD_AT + _SIZE.unpack_from(message, 32)[0]
        try:
            job = claimed_job(message[16:32], message[_RECORD_AT:end], message[end:])
        except Corrupt:
            return
        sent = registered.asked if self._offset is None else (job.claimed_us or 0) / SECOND - self._offset
        self._acknowledge(registered.waiting, job, SYSTEM.elapsed() - sent > LATE)

    def close(self) -> list[bytes]:
        """Return the members to remove on the server."""
        registered, self._registered = self._registered, {}
        return [each.member for each in registered.values() if each.member is not None]
