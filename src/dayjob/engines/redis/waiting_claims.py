"""The waiting claims of this process that are registered on the server.

A claim that finds no job is registered. An enqueue in any process may then claim its job for it, and hand the
job off (``handoffs.py``); that ends the registration.

A waiting claim that claims again, or was closed, first withdraws the hand-off whose message is still under
way: its job is pending again when the claim looks for jobs. So no later job is claimed before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from struct import Struct as Layout
from struct import error as LayoutError

from msgspec import Struct, field

from dayjob.engines.base import ClaimRequest, WaitingClaim
from dayjob.model.job import Job
from dayjob.runtime.ids import new_key

_SIZE = Layout(">H")


class Registered(Struct):
    waiting: WaitingClaim
    request: ClaimRequest
    member: bytes | None = None
    """The member of the waiting claim on the server. It may be gone."""
    claiming: bool = True
    """Whether a claim is under way, which ends this registration."""
    delivered: set[bytes] = field(default_factory=set)
    """The ids of the jobs that were handed off to it and delivered."""
    acknowledging: set[asyncio.Future[None]] = field(default_factory=set)
    """The acknowledgments that are under way."""


class Handoff(Struct):
    """The message of a job that was claimed for a waiting claim.

    It has a size (2 bytes), the member of the waiting claim of that size, the job's id (16), and its record.
    """

    registered: Registered
    member: bytes
    key: bytes
    record: bytes
    """Empty if the payload is stored apart."""
    acknowledged: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def claim(self) -> bytes:
        """The key of the job's claim."""
        return self.registered.waiting.name

    @property
    def is_awaited(self) -> bool:
        """Whether the waiting claim is still registered as it was when the job was claimed for it."""
        registered = self.registered
        return not (registered.claiming or registered.waiting.closed) and self.member == registered.member

    def begin(self) -> None:
        self.registered.acknowledging.add(self.acknowledged)

    def end(self) -> None:
        """The job was acknowledged, and delivered if its claim is current."""
        self.registered.acknowledging.discard(self.acknowledged)
        self.acknowledged.set_result(None)

    def deliver(self, job: Job) -> None:
        registered = self.registered
        if self.key in registered.delivered:
            return
        registered.delivered.add(self.key)
        if registered.member == self.member:
            registered.member = None
        registered.waiting.deliver(job)


class WaitingClaims:
    def __init__(self) -> None:
        self.client = new_key()
        self._registered: dict[bytes, Registered] = {}
        self._abandoned: list[bytes] = []
        """The members of claims whose callers gave up before the reply came."""

    async def acknowledged(self, requests: Sequence[ClaimRequest]) -> None:
        """Wait until the jobs that were handed off to these requests are acknowledged and delivered."""
        for request in requests:
            if request.waiting is not None:
                registered = self._registered.get(request.waiting.name)
                if registered is not None and registered.acknowledging:
                    await asyncio.wait(registered.acknowledging)

    def before_claim(self, requests: Sequence[ClaimRequest]) -> list[bytes]:
        """Return the members to remove on the server: of these requests, and of closed waiting claims."""
        removed, self._abandoned = self._abandoned, []
        for request in requests:
            waiting = request.waiting
            if waiting is not None:
                registered = self._registered.setdefault(waiting.name, Registered(waiting, request))
                registered.claiming = True
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
        registered = self._registered.setdefault(waiting.name, Registered(waiting, request))
        registered.member, registered.claiming = reply, False
        return []

    def handoff(self, message: bytes) -> Handoff | None:
        """Return the hand-off of a message, or None if its waiting claim was closed a while ago.

        Raise ``ValueError`` for a message of another form.
        """
        try:
            end = _SIZE.size + _SIZE.unpack_from(message)[0]
            name = message.index(0, _SIZE.size) + 25  # after the time and the client
        except LayoutError:
            raise ValueError(f"a hand-off has more than {len(message)} bytes") from None
        if len(message) < end + 16:
            raise ValueError(f"a hand-off has at least {end + 16} bytes, not {len(message)}")
        registered = self._registered.get(message[name : name + 16])
        if registered is None:
            return None
        return Handoff(registered, message[_SIZE.size : end], message[end : end + 16], message[end + 16 :])

    def close(self) -> list[bytes]:
        """Return the members to remove on the server."""
        registered, self._registered = self._registered, {}
        members = [each.member for each in registered.values() if each.member is not None]
        return members + self._abandoned
