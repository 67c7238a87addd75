"""Delivery of the jobs that the server hands off to the waiting claims of this process.

The message of a hand-off is pushed to a list of this process, which blocks on it (``subscriber.py``). The
server reclaims a job that is not acknowledged within 2 s, so a message may be lost.

The message has the record of the job. So the job starts while the acknowledgment is under way, if it is
certain that its claim is current. It is not certain for a message that may be late, because this process was
frozen; nor for one of a registration that a claim of this process may have ended. Then the reply to the
acknowledgment decides.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from dayjob.engines.base import ClaimRequest
from dayjob.engines.record import Corrupt
from dayjob.engines.redis import record
from dayjob.engines.redis.client import Client, Command, packed
from dayjob.engines.redis.waiting_claims import Handoff, WaitingClaims
from dayjob.errors import DayjobError
from dayjob.model.job import Job, id_text
from dayjob.runtime.clock import SYSTEM

_log = logging.getLogger("dayjob.redis")

_PROMPT = 1_000_000
"""Microseconds: the acknowledgment of a younger message arrives long before the job is reclaimed."""

OnReplies = Callable[[list[Any] | None], None]
"""Gets the replies to a call, or None if the connection was lost. An error reply is one of them."""

Acknowledgment = tuple[bytes, int, OnReplies]
"""Packed commands to send on the connection of the message, and their number."""

Claimed = Callable[[Sequence[ClaimRequest], list[list[bytes]]], Awaitable[list[list[Job]]]]
"""Decodes the reply to claims. Jobs that can't be decoded are quarantined."""


class Handoffs:
    def __init__(
        self,
        client: Client,
        waiting_claims: WaitingClaims,
        claimed: Claimed,
        in_background: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        self._client = client
        self._keys = client.settings.keys
        self.list = self._keys.handoffs_to(waiting_claims.client)
        self._waiting_claims = waiting_claims
        self._claimed = claimed
        self._in_background = in_background
        self._server_ahead: int | None = None
        """An upper bound of the server's time minus that of this process, by the last reply that has it."""

    def receive(self, message: bytes) -> Acknowledgment | None:
        """Return the acknowledgment of a hand-off, and deliver its job: at once, or after the replies.

        The handler begins after the acknowledgment was sent. So the attempt counts if it ends this process.
        Return None if the waiting claim was closed a while ago. Raise ``ValueError`` for a malformed message.
        """
        handoff = self._waiting_claims.handoff(message)
        if handoff is None:
            return None
        job = self._certain_job(handoff)
        commands = self._commands(handoff, read=job is None)
        handoff.begin()
        if job is not None:
            handoff.deliver(job)
        requests = b"".join([packed(command) for command in commands])
        return requests, len(commands), partial(self._on_replies, handoff, _monotonic())

    def _commands(self, handoff: Handoff, *, read: bool) -> list[Command]:
        """Return the commands of an acknowledgment. With ``read``, they get the record and the payload."""
        commands: list[Command] = [
            ("ZREM", self._keys.handoffs, handoff.key + handoff.claim),
            ("ZREM", self._keys.handoff_clients, self._waiting_claims.client),
            ("TIME",),
        ]
        if read:
            commands += [("HGET", self._keys.jobs, handoff.key), ("HGET", self._keys.payloads, handoff.key)]
        return commands

    def _certain_job(self, handoff: Handoff) -> Job | None:
        """Return the job of a message whose claim is current."""
        if self._server_ahead is None or not handoff.is_awaited:
            return None
        if not record.is_claimed_by(handoff.claim, handoff.record):
            return None
        try:
            job = record.claimed_job(handoff.key, handoff.record, b"")
        except Corrupt:
            return None
        age = self._server_ahead + _monotonic() - (job.claimed_us or 0)
        return job if abs(age) < _PROMPT else None

    def _on_replies(self, handoff: Handoff, sent: int, replies: list[Any] | None) -> None:
        if replies is not None and not any(isinstance(reply, Exception) for reply in replies):
            removed, _, (seconds, micros), *read = replies
            self._server_ahead = int(seconds) * 1_000_000 + int(micros) - sent
            if read:
                self._in_background(self._deliver(handoff, *read))
                return
            if not removed:
                _log.warning("job %s was acknowledged too late: its claim is lost", id_text(handoff.key))
            handoff.end()
        else:
            self._in_background(self._acknowledge_again(handoff))

    async def _acknowledge_again(self, handoff: Handoff) -> None:
        """Repeat the acknowledgment after a lost reply. Its claim may be current, or reclaimed meanwhile."""
        commands = self._commands(handoff, read=True)
        try:
            _, _, _, *read = await self._client.execute_retrying(
                *commands, timeout=self._client.settings.timeout
            )
        except DayjobError as error:
            _log.warning("the hand-off of job %s can't be acknowledged: %s", id_text(handoff.key), error)
            handoff.end()
        else:
            await self._deliver(handoff, *read)

    async def _deliver(self, handoff: Handoff, blob: bytes | None, payload: bytes | None) -> None:
        """Deliver the job if its claim is current, and it was not delivered before."""
        try:
            if blob is not None and record.is_claimed_by(handoff.claim, blob):
                reply = [handoff.key, blob, payload or b""]
                [jobs] = await self._claimed([handoff.registered.request], [reply])
                for job in jobs:
                    handoff.deliver(job)
        except DayjobError as error:
            _log.warning("job %s was handed off and can't be read: %s", id_text(handoff.key), error)
        finally:
            handoff.end()


def _monotonic() -> int:
    return int(SYSTEM.elapsed() * 1_000_000)
