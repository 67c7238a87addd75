"""Sessions in signed cookies, and their CSRF tokens.

Nothing is stored on the server, so a session is valid in every process with the same key.
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
    """One browser. ``logged_in`` once it has sent the token."""

    id: str
    expires: int
    logged_in: bool = False


class Sessions:
    """Encodes, signs and verifies sessions. A new key invalidates all of them."""

    def __init__(self, key: bytes, clock: Clock = SYSTEM) -> None:
        self._key = key
        self._clock = clock
        self.cookie = f"dayjob-{sha256(key).hexdigest()[:8]}"
        """The cookie's name. All ports of a host share cookies, so each dashboard needs its own name."""

    def new(self, *, logged_in: bool = False) -> Session:
        return Session(secret(16), self._clock.now() // SECOND + LIFETIME, logged_in)

    def to_text(self, session: Session) -> str:
        text = f"{session.id}.{session.expires}.{int(session.logged_in)}"
        return f"{text}.{self._sign('session', text)}"

    def from_text(self, text: str) -> Session | None:
        """Return the session, or None if it is forged or has expired."""
        signed, _, signature = text.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", signed).encode()):
            return None
        id, expires, logged_in = signed.split(".")
        if int(expires) <= self._clock.now() // SECOND:
            return None
        return Session(id, int(expires), logged_in == "1")

    def csrf(self, session: Session) -> str:
        """Return the token that the forms of this session carry. Another site cannot compute it."""
        return self._sign("csrf", session.id)

    def is_csrf(self, session: Session, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.csrf(session).encode())

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.digest(self._key, f"{purpose}\0{text}".encode(errors="replace"), "sha256").hex()
