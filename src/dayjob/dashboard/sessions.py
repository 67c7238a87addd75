"""Sessions in signed cookies, and the CSRF tokens that belong to them.

Nothing is kept on the server, so any of several processes with the same key knows a session of the others.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from msgspec import Struct

from dayjob.model.durations import SECOND
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.runtime.entropy import secret

LIFETIME = 12 * 3600
"""Seconds that a login lasts."""


class Session(Struct, frozen=True):
    """A browser that has been here before; ``known`` once it has shown the token."""

    id: str
    expires: int
    known: bool = False


class Sessions:
    """Makes and reads them. Another key means other cookies, and ends all sessions."""

    def __init__(self, key: bytes, clock: Clock = SYSTEM) -> None:
        self._key = key
        self._clock = clock
        self.cookie = f"dayjob-{sha256(key).hexdigest()[:8]}"
        """Cookies are shared by all ports of a host, so that each dashboard there needs a name of its own."""

    def new(self, *, known: bool = False) -> Session:
        return Session(secret(16), self._clock.now() // SECOND + LIFETIME, known)

    def to_text(self, session: Session) -> str:
        text = f"{session.id}.{session.expires}.{int(session.known)}"
        return f"{text}.{self._sign('session', text)}"

    def from_text(self, text: str) -> Session | None:
        """The session, unless it is forged or over."""
        signed, _, signature = text.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", signed).encode()):
            return None
        id, expires, known = signed.split(".")
        if int(expires) <= self._clock.now() // SECOND:
            return None
        return Session(id, int(expires), known == "1")

    def csrf(self, session: Session) -> str:
        """What a form of this session carries, and no other site can know."""
        return self._sign("csrf", session.id)

    def is_csrf(self, session: Session, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.csrf(session).encode())

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.digest(self._key, f"{purpose}\0{text}".encode(errors="replace"), "sha256").hex()
