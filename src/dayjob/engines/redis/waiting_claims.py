"""The waiting claims of this process, and the jobs that the server hands off to them.

A claim that finds no job is registered on the server. An enqueue in any process may then claim its job for it
and send the name of that claim to this process; that ends the registration. The server reclaims a handed-off
job that is not acknowledged within 2 s, so a message may be lost.

A waiting claim that claims again, or was closed, first withdraws the hand-off whose message is still under
way: its job is pending again when the claim looks for jobs. So no later job is claimed before it.

Every client of the server, on any database, may read and write channels. So a message has no part of the job,
and proves nothing: the reply to the acknowledgment has the job, and decides whether its claim is current.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from dayjob.engines.base import ClaimRequest, WaitingClaim
from dayjob.runtime.ids import new_key

_MESSAGE_BYTES = 48
"""A message has the waiting claim's name, the job's id, and the key of the job's claim."""


class Registered(Struct):
    waiting: WaitingClaim
    request: ClaimRequest
    member: bytes | None = None
    """The member of the waiting claim on the server. It may be gone."""
    delivered: set[bytes] = field(default_factory=set)
    """The ids and claim keys of the jobs that were handed off to it."""
    acknowledging: set[asyncio.Task[None]] = field(default_factory=set)
    """The acknowledgments that are under way."""


class WaitingClaims:
    """``acknowledge`` gets the waiting claim, the id of a job, and the key of the job's claim."""

    def __init__(self, acknowledge: Callable[[Registered, bytes, bytes], None]) -> None:
        self.client = new_key()
        self._acknowledge = acknowledge
        self._registered: dict[bytes, Registered] = {}
        self._abandoned: list[bytes] = []
        """The members of claims whose callers gave up before the reply came."""

    def before_claim(self, requests: Sequence[ClaimRequest]) -> list[bytes]:
        """Return the members to remove on the server: of these requests, and of closed waiting claims."""
        removed, self._abandoned = self._abandoned, []
        for request in requests:
            waiting = request.waiting
            if waiting is not None:
                registered = self._registered.setdefault(waiting.name, Registered(waiting, request))
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
        waiting = request.waiting
        if waiting is None:
            self._abandoned.append(reply)
            return []
        self._registered.setdefault(waiting.name, Registered(waiting, request)).member = reply
        return []

    def on_handoff(self, message: bytes) -> None:
        """A job was claimed for a waiting claim. Raise ``ValueError`` for a message of another form."""
        if len(message) != _MESSAGE_BYTES:
            raise ValueError(f"a hand-off has {_MESSAGE_BYTES} bytes, not {len(message)}")
        registered = self._registered.get(message[:16])
        if registered is not None:  # Otherwise the claim was closed a while ago, and the message came late.
            self._acknowledge(registered, message[16:32], message[32:])

    async def acknowledged(self, requests: Sequence[ClaimRequest]) -> None:
        """Wait until the jobs that were handed off to these requests before their replies are delivered."""
        for request in requests:
            if request.waiting is not None:
                registered = self._registered.get(request.waiting.name)
                if registered is not None and registered.acknowledging:
                    await asyncio.wait(registered.acknowledging)

    def close(self) -> list[bytes]:
        """Return the members to remove on the server."""
        registered, self._registered = self._registered, {}
        members = [each.member for each in registered.values() if each.member is not None]
        return members + self._abandoned
