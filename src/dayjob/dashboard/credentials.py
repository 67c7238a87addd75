"""Who may come in: a token, or a user with a password; and how often somebody may guess."""

from __future__ import annotations

import asyncio
import hmac
from base64 import b64decode
from hashlib import sha256

from dayjob.errors import ConfigError
from dayjob.runtime.clock import SYSTEM, Clock

DELAY = 0.5
"""Seconds until a wrong guess is answered."""

MOST_GUESSES = 10
WITHIN = 60.0
"""Seconds in which an address has that many wrong guesses; more are not looked at."""

_MOST_ADDRESSES = 10_000


class Credentials:
    """What is asked for; nothing if neither is given."""

    def __init__(self, token: str | None, basic: str | tuple[str, str] | None) -> None:
        if token is not None and not token.strip():
            raise ConfigError("the token is empty: pass one that nobody guesses, or leave it out")
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

    def key(self, otherwise: str) -> bytes:
        """What sessions are signed with: it follows from the secret, so that a new one ends them."""
        given = repr((self._token, self._basic, None if self.required else otherwise))
        return sha256(b"dayjob dashboard\0" + given.encode(errors="replace")).digest()

    def is_token(self, given: str) -> bool:
        return self._token is not None and _same(given, self._token)

    def user(self, encoded: str) -> str | None:
        """The user of an ``Authorization: Basic`` header, if the password is right."""
        if self._basic is None:
            return None
        try:
            user, _, password = b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return None
        right = _same(user, self._basic[0]) & _same(password, self._basic[1])
        return user if right else None


def _same(given: str, expected: str) -> bool:
    """Compare in a time that tells nothing, not even the length."""
    digests = (sha256(text.encode(errors="replace")).digest() for text in (given, expected))
    return hmac.compare_digest(*digests)


class Guesses:
    """Slows down who guesses: each wrong one waits, and an address has only so many a minute."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._wrong: dict[str, list[float]] = {}

    def too_many(self, address: str) -> bool:
        since = self._clock.elapsed() - WITHIN
        recent = [at for at in self._wrong.get(address, ()) if at > since]
        return len(recent) >= MOST_GUESSES

    async def wrong(self, address: str) -> None:
        now = self._clock.elapsed()
        if address not in self._wrong and len(self._wrong) >= _MOST_ADDRESSES:
            self._wrong.pop(next(iter(self._wrong)))
        recent = self._wrong.pop(address, [])
        self._wrong[address] = [*recent[1 - MOST_GUESSES :], now]
        await self._clock.wait(asyncio.Event(), DELAY)
