"""Which server, which namespace, and how patiently: a URL taken apart. Its password is never shown."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from msgspec import Struct
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection

from dayjob.engines.redis.keys import Keys
from dayjob.engines.registry import Location
from dayjob.errors import ConfigError

_KNOWN = "redis://, rediss:// and unix:// take prefix and patience, rediss:// ca_certs, unix:// db"
_CONNECT_TIMEOUT = 5.0


class Place(Struct, frozen=True):
    """Everything that is needed to connect, and ``shown``, the URL without its password."""

    shown: str
    keys: Keys
    patience: float
    kind: type[AbstractConnection]
    options: dict[str, Any]

    def __repr__(self) -> str:
        return f"Place({self.shown!r})"

    def connection(self, target: tuple[str, int] | None = None) -> AbstractConnection:
        """A connection, not yet open, to the server or to the cluster node that it named."""
        options = self.options if target is None else {**self.options, "host": target[0], "port": target[1]}
        return self.kind(
            **options, protocol=2, socket_timeout=None, socket_connect_timeout=_CONNECT_TIMEOUT,
            client_name="dayjob",
        )  # fmt: skip


def place_of(location: Location) -> Place:
    parts = location.parts
    prefix = location.take("prefix", "dayjob")
    if not prefix or any(character in prefix for character in "{}\0"):
        raise ConfigError(f"the URL {location.shown!r} has prefix={prefix!r}: write a name without braces")
    patience = _seconds(location)
    options: dict[str, Any] = {}
    kind: type[AbstractConnection]
    if parts.scheme == "unix":
        kind = UnixDomainSocketConnection
        if parts.hostname or len(parts.path) < 2:
            raise ConfigError(f"the URL {location.shown!r} names no socket: write unix:///run/redis.sock")
        options["path"] = unquote(parts.path)
        database = location.take("db", "0")
    else:
        kind = SSLConnection if parts.scheme == "rediss" else Connection
        options["socket_keepalive"] = True
        options["host"] = parts.hostname or "localhost"
        try:
            options["port"] = parts.port or 6379
        except ValueError:
            raise ConfigError(f"the URL {location.shown!r} has a bad port: write 1 to 65535") from None
        if kind is SSLConnection and (certificates := location.take("ca_certs", "")):
            options["ssl_ca_certs"] = certificates
        database = parts.path.removeprefix("/") or "0"
    if not (database.isascii() and database.isdigit()):
        raise ConfigError(
            f"the URL {location.shown!r} names the database {database!r}: write a number, as in redis://host/0"
        )
    options["db"] = int(database)
    if parts.username:
        options["username"] = unquote(parts.username)
    if parts.password:
        options["password"] = unquote(parts.password)
    location.done(_KNOWN)
    return Place(location.shown, Keys(prefix), patience, kind, options)


def _seconds(location: Location) -> float:
    text = location.take("patience", "15")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise ConfigError(
            f"the URL {location.shown!r} has patience={text!r}: write the seconds to ride out an outage, "
            "3600 at most"
        )
    return seconds
