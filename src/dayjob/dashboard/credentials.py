"""The credentials of a dashboard: tokens to read or to act, a password, an application's own check."""

from __future__ import annotations

import hmac
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import scrypt, sha256
from inspect import isawaitable

from msgspec import Struct
from starlette.requests import Request

from dayjob.errors import ConfigError
from dayjob.runtime.entropy import secret

MIN_TOKEN_CHARACTERS = 16

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
"""The name of a token. It is stored in cookies and printed in the audit log."""


class User(Struct, frozen=True):
    """The user of a request. Without ``may_act`` all actions are refused."""

    name: str
    may_act: bool = True


Authorize = Callable[[Request], User | Awaitable[User | None] | None]
"""An application's own check. It returns the user, or None if the request has none."""


class Token:
    """A named secret."""

    def __init__(self, name: str, secret: str, *, may_act: bool) -> None:
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"the token name {name!r} is invalid: pass 1 to 40 letters, digits, - or _, beginning with a "
                "letter"
            )
        if len(secret.strip()) < MIN_TOKEN_CHARACTERS:
            raise ConfigError(
                f"the token {name!r} has fewer than {MIN_TOKEN_CHARACTERS} characters, so it can be guessed: "
                "make one with  dayjob dashboard --new-token"
            )
        self.user = User(name, may_act)
        self._secret = secret.strip()

    @cached_property
    def key(self) -> bytes:
        """The key that signs this token's sessions. A new secret ends them, in every process.

        The derivation is slow, so a stolen cookie is of little use for guesses of the secret.
        """
        return scrypt(
            _encoded(self._secret),
            salt=b"dayjob dashboard session",
            n=1 << 15,
            r=8,
            p=1,
            maxmem=1 << 26,
            dklen=32,
        )

    def is_secret(self, given: str) -> bool:
        return _same(given, self._secret)


class Credentials:
    """All credentials of a dashboard. Without any, no login is required."""

    def __init__(
        self,
        token: str | Mapping[str, str] | None = None,
        read_token: str | Mapping[str, str] | None = None,
        basic: str | tuple[str, str] | None = None,
        authorize: Authorize | None = None,
    ) -> None:
        self._tokens: dict[str, Token] = {}
        for given, may_act in ((token, True), (read_token, False)):
            for name, value in _named(given, "token" if may_act else "reader"):
                if name in self._tokens:
                    raise ConfigError(f"two tokens have the name {name!r}: give each its own name")
                self._tokens[name] = Token(name, value, may_act=may_act)
        if isinstance(basic, str):
            user, colon, password = basic.partition(":")
            if not (user and colon and password):
                raise ConfigError("basic: pass user:password, neither of them empty")
            basic = (user, password)
        self._basic = basic
        self._authorize = authorize

    @property
    def required(self) -> bool:
        return bool(self._tokens) or self._basic is not None or self._authorize is not None

    @property
    def has_token(self) -> bool:
        return bool(self._tokens)

    def named(self, name: str) -> Token | None:
        return self._tokens.get(name)

    def token(self, given: str) -> Token | None:
        """Return the token with this secret. The time is the same for every wrong one."""
        found = [token for token in self._tokens.values() if token.is_secret(given.strip())]
        return found[0] if found else None

    def basic_user(self, encoded: str) -> User | None:
        """Return the user of an ``Authorization: Basic`` header, or None if the password is wrong."""
        if self._basic is None:
            return None
        try:
            user, _, password = b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return None
        right = _same(user, self._basic[0]) & _same(password, self._basic[1])
        return User(f"user {user}") if right else None

    async def authorized(self, request: Request) -> User | None:
        if self._authorize is None:
            return None
        found = self._authorize(request)
        user = await found if isawaitable(found) else found
        if not isinstance(user, User | None):
            raise ConfigError(f"authorize returned {user!r}: return a dayjob.dashboard.User or None")
        return user


def new_token() -> str:
    """Return a token that can't be guessed."""
    return secret(24)


def named_tokens(given: Iterable[str], default: str) -> dict[str, str]:
    """Return tokens by name, from texts ``NAME=SECRET`` or ``SECRET``."""
    found: dict[str, str] = {}
    for text in filter(None, map(str.strip, given)):
        name, _, value = text.partition("=")
        if _NAME.fullmatch(name) is None or len(value) < MIN_TOKEN_CHARACTERS:  # = may end a secret
            name, value = default if not found else f"{default}-{len(found) + 1}", text
        if name in found:
            raise ConfigError(f"two tokens have the name {name!r}: give each its own name")
        found[name] = value
    return found


def _named(given: str | Mapping[str, str] | None, default: str) -> Iterator[tuple[str, str]]:
    if isinstance(given, str):
        yield default, given
    elif given is not None:
        yield from given.items()


def _same(given: str, expected: str) -> bool:
    """Compare in constant time. The hashes hide the length too."""
    return hmac.compare_digest(*(sha256(_encoded(text)).digest() for text in (given, expected)))


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")
