"""Authentication: the token or password of a dashboard, the throttle for failed logins, and sessions."""

from __future__ import annotations

import asyncio
import hmac
from base64 import b64decode
from hashlib import sha256

from msgspec import Struct

from dayjob.errors import ConfigError
from dayjob.model.durations import SECOND
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.runtime.entropy import secret

LIFETIME = 12 * 3600
"""Seconds that a login lasts."""

FAILURE_DELAY = 0.5
"""Seconds until a failed login is answered."""

MAX_FAILURES = 10
FAILURE_WINDOW = 60.0
"""Seconds in which an address may fail that often. Further attempts are refused unread."""

_MAX_ADDRESSES = 10_000


class Credentials:
    """The configured token and password. Without either, no login is required."""

    def __init__(self, token: str | None, basic: str | tuple[str, str] | None) -> None:
        if token is not None and not token.strip():
            raise ConfigError("the token is empty: pass one that is hard to guess, or leave it out")
        if isinstance(basic, str):
            user, colon, password = basic.partition(":")
            if not (user and colon and password):
                raise ConfigError("basic: pass user:password, neither of them empty")
            basic = (user, password)
        self._token = token
        self._basic = basic

    @property
    def required(self) -> bool:
        return self._token is not None or self._basic is not None

    @property
    def has_token(self) -> bool:
        return self._token is not None

    def key(self, fallback: str) -> bytes:
        """Return the key that signs sessions. It is derived from the secret, so a new secret ends them."""
        given = repr((self._token, self._basic, None if self.required else fallback))
        return sha256(b"dayjob dashboard\0" + given.encode(errors="replace")).digest()

    def is_token(self, given: str) -> bool:
        return self._token is not None and _same(given, self._token)

    def user(self, encoded: str) -> str | None:
        """Return the user of an ``Authorization: Basic`` header, or None if the password is wrong."""
        if self._basic is None:
            return None
        try:
            user, _, password = b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return None
        right = _same(user, self._basic[0]) & _same(password, self._basic[1])
        return user if right else None


def _same(given: str, expected: str) -> bool:
    """Compare in constant time. The hashes hide the length too."""
    digests = (sha256(text.encode(errors="replace")).digest() for text in (given, expected))
    return hmac.compare_digest(*digests)


class LoginThrottle:
    """Delays the answer to a failed login, and limits the failures of an address per minute."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._failures: dict[str, list[float]] = {}

    def is_blocked(self, address: str) -> bool:
        since = self._clock.elapsed() - FAILURE_WINDOW
        recent = [at for at in self._failures.get(address, ()) if at > since]
        return len(recent) >= MAX_FAILURES

    async def record_failure(self, address: str) -> None:
        now = self._clock.elapsed()
        if address not in self._failures and len(self._failures) >= _MAX_ADDRESSES:
            self._failures.pop(next(iter(self._failures)))
        recent = self._failures.pop(address, [])
        self._failures[address] = [*recent[1 - MAX_FAILURES :], now]
        await self._clock.wait(asyncio.Event(), FAILURE_DELAY)


class Session(Struct, frozen=True):
    """One browser. ``logged_in`` once it has sent the token."""

    id: str
    expires: int
    logged_in: bool = False


class Sessions:
    """Encodes, signs and verifies sessions, in cookies. A new key invalidates all of them.

    Nothing is stored on the server, so a session is valid in every process with the same key.
    """

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
