"""The connections of an engine: their settings from the URL. No password is shown."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from msgspec import Struct
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection

from dayjob.engines.redis.keys import Keys
from dayjob.engines.registry import Location
from dayjob.errors import ConfigError

_KNOWN = "redis://, rediss:// and unix:// take prefix and timeout, rediss:// ca_certs, unix:// db"
_CONNECT_TIMEOUT = 5.0


class RedisSettings(Struct, frozen=True):
    """The address, the namespace and the timeout. ``shown`` is the URL without its password."""

    shown: str
    keys: Keys
    timeout: float
    connection_type: type[AbstractConnection]
    options: dict[str, Any]

    def __repr__(self) -> str:
        return f"RedisSettings({self.shown!r})"

    def connection(self, target: tuple[str, int] | None = None) -> AbstractConnection:
        """Return a connection, not yet open, to the server or to the given cluster node."""
        options = self.options if target is None else {**self.options, "host": target[0], "port": target[1]}
        return self.connection_type(
            **options, protocol=2, socket_timeout=None, socket_connect_timeout=_CONNECT_TIMEOUT,
            client_name="dayjob",
        )  # fmt: skip


def read_settings(location: Location) -> RedisSettings:
    parts = location.parts
    prefix = location.take("prefix", "dayjob")
    if not prefix or any(character in prefix for character in "{}\0"):
        raise ConfigError(f"the URL {location.shown!r} has prefix={prefix!r}: write a name without braces")
    timeout = location.number("timeout", "15", 0.001, 3600)
    options: dict[str, Any] = {}
    connection_type: type[AbstractConnection]
    if parts.scheme == "unix":
        connection_type = UnixDomainSocketConnection
        if parts.hostname or len(parts.path) < 2:
            raise ConfigError(f"the URL {location.shown!r} names no socket: write unix:///run/redis.sock")
        options["path"] = unquote(parts.path)
        database = location.take("db", "0")
    else:
        connection_type = SSLConnection if parts.scheme == "rediss" else Connection
        options["socket_keepalive"] = True
        options["host"] = parts.hostname or "localhost"
        try:
            options["port"] = parts.port or 6379
        except ValueError:
            raise ConfigError(f"the URL {location.shown!r} has a bad port: write 1 to 65535") from None
        if connection_type is SSLConnection:
            options |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True}  # Not the driver's defaults.
            if certificates := location.take("ca_certs", ""):
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
    return RedisSettings(location.shown, Keys(prefix), timeout, connection_type, options)
