"""Sessions: the login of a browser, in a cookie that is signed with the key of the token.

A session before the login is a random number without a signature, so an anonymous client receives nothing
that depends on a secret. Its CSRF token is a hash of that number, which pages of other sites can't read.
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Awaitable, Callable
from hashlib import sha256

from msgspec import MsgspecError, Struct, msgpack

from dayjob.broker import Broker
from dayjob.dashboard.credentials import Credentials
from dayjob.errors import DayjobError
from dayjob.model.durations import SECOND
from dayjob.runtime.clock import SYSTEM, Clock
from dayjob.runtime.entropy import secret

_log = logging.getLogger("dayjob.dashboard")

LIFETIME = 12 * 3600
"""Seconds that a login lasts."""

LOGOUTS_KEY = b"dayjob.dashboard.logouts"
"""The key-value entry with the sessions that were logged out, for the other processes of a dashboard."""

_ID = re.compile(r"[A-Za-z0-9_-]{22}")


class Session(Struct, frozen=True):
    """One browser. ``token`` is the name of the token it logged in with, or empty."""

    id: str
    token: str = ""
    expires: int = 0

    @property
    def logged_in(self) -> bool:
        return bool(self.token)


class Sessions:
    """Makes, signs and verifies sessions. A session is valid in every process with the same token."""

    def __init__(self, credentials: Credentials, clock: Clock = SYSTEM) -> None:
        self._credentials = credentials
        self._clock = clock

    def new(self, token: str = "") -> Session:
        return Session(secret(16), token, self.now() + LIFETIME if token else 0)

    def now(self) -> int:
        return self._clock.now() // SECOND

    def to_text(self, session: Session) -> str:
        if not session.logged_in:
            return session.id
        text = f"{session.id}.{session.expires}.{session.token}"
        return f"{text}.{self._sign(session.token, 'session', text)}"

    def from_text(self, text: str) -> Session | None:
        """Return the session, or None if it is forged or has expired."""
        if _ID.fullmatch(text):
            return Session(text)
        signed, _, signature = text.rpartition(".")
        match signed.split("."):
            case [id, expires, token] if self._credentials.named(token) is not None:
                right = self._sign(token, "session", signed)
                if hmac.compare_digest(signature.encode(errors="replace"), right.encode()):
                    return Session(id, token, int(expires)) if int(expires) > self.now() else None
        return None

    def csrf(self, session: Session) -> str:
        """Return the token that the forms of this session carry. Another site cannot compute it."""
        if not session.logged_in:
            return sha256(f"dayjob csrf\0{session.id}".encode()).hexdigest()
        return self._sign(session.token, "csrf", session.id)

    def is_csrf(self, session: Session, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.csrf(session).encode())

    def _sign(self, name: str, purpose: str, text: str) -> str:
        token = self._credentials.named(name)
        assert token is not None
        return hmac.digest(token.key, f"{purpose}\0{text}".encode(errors="replace"), "sha256").hex()


class Logouts:
    """The sessions that were logged out before they expired.

    They are stored with the jobs, so that all processes refuse them. If the storage can't be written, this
    process alone does.
    """

    def __init__(self, broker: Callable[[], Awaitable[Broker]], now: Callable[[], int]) -> None:
        self._broker = broker
        self._now = now
        self._known: dict[str, int] = {}

    async def add(self, session: Session) -> None:
        self._known[session.id] = session.expires
        try:
            broker = await self._broker()
            self._merge(await broker.kv_get(LOGOUTS_KEY))
            await broker.kv_put(LOGOUTS_KEY, msgpack.encode(self._known))
        except DayjobError as error:
            _log.warning("the logout holds in this process only: it can't be stored: %s", error)

    async def has(self, session: Session) -> bool:
        if session.id not in self._known:
            try:
                self._merge(await (await self._broker()).kv_get(LOGOUTS_KEY))
            except DayjobError:  # The page shows it.
                return False
        return session.id in self._known

    def _merge(self, stored: bytes | None) -> None:
        try:
            found = {} if stored is None else msgpack.decode(stored, type=dict[str, int])
        except MsgspecError:
            found = {}
        now = self._now()
        self._known = {id: expires for id, expires in (self._known | found).items() if expires > now}
