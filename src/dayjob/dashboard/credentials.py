"""The credentials of a dashboard, a token or a user with a password, and the throttle for failed logins."""

from __future__ import annotations

import asyncio
import hmac
from base64 import b64decode
from hashlib import sha256

from dayjob.errors import ConfigError
from dayjob.runtime.clock import SYSTEM, Clock

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
