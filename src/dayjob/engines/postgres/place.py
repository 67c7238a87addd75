"""Which server, database and schema, and how they are reached: the URL taken apart."""

from __future__ import annotations

from urllib.parse import urlencode

from msgspec import Struct

from dayjob.engines.registry import Location
from dayjob.errors import ConfigError

_DRIVER_OPTIONS = frozenset(
    {
        "database", "dbname", "gsslib", "host", "krbsrvname", "passfile", "password", "port", "service",
        "servicefile", "sslcert", "sslcrl", "sslkey", "sslmode", "sslnegotiation", "sslpassword",
        "sslrootcert", "ssl_max_protocol_version", "ssl_min_protocol_version", "target_session_attrs", "user",
    }
)  # fmt: skip
"""Options of the URL that are handed on to the driver."""

_KNOWN = (
    "postgresql:// takes schema, connections, timeout, poll and pgbouncer, and the connection options of "
    "libpq, such as sslmode"
)

MOST_CONNECTIONS = 100
LONGEST_NAME = 63


class Place(Struct, frozen=True):
    """A database, a schema in it, and the habits of this engine there."""

    url: str
    """As shown in messages: without a password."""

    dsn: str
    schema: str = "dayjob"
    connections: int = 4
    timeout: float = 15.0
    poll: float = 1.0
    pgbouncer: bool = False

    @property
    def channel(self) -> str:
        """What the listeners of this schema listen to."""
        return f"dayjob {self.schema}"[:LONGEST_NAME]


def read(location: Location) -> Place:
    """The place that a URL names.

    ``schema``: where the tables are (default ``dayjob``); ``connections``: how many at most, the listening
    one not counted (4); ``timeout``: seconds until an operation gives up on the server (15); ``poll``:
    seconds between looks where notifications can't be had (1); ``pgbouncer=1``: use no session state.
    """
    url = location.shown
    schema = location.take("schema", "dayjob")
    if not schema or "\0" in schema or len(schema.encode()) > LONGEST_NAME - len("dayjob "):
        raise ConfigError(f"the URL {url!r} has schema={schema!r}: write a name of 1 to 56 bytes")
    connections = int(_number(location, "connections", "4", 1, MOST_CONNECTIONS))
    timeout = _number(location, "timeout", "15", 0.1, 3600)
    poll = _number(location, "poll", "1", 0.01, 3600)
    pgbouncer = location.take("pgbouncer", "0")
    if pgbouncer not in ("0", "1"):
        raise ConfigError(f"the URL {url!r} has pgbouncer={pgbouncer!r}: write 0 or 1")
    passed_on = {name: location.take(name, "") for name in _DRIVER_OPTIONS & {*location.options}}
    location.done(_KNOWN)
    dsn = location.parts._replace(scheme="postgresql", query=urlencode(passed_on)).geturl()
    return Place(url, dsn, schema, connections, timeout, poll, pgbouncer == "1")


def _number(location: Location, name: str, default: str, least: float, most: float) -> float:
    text = location.take(name, default)
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise ConfigError(
            f"the URL {location.shown!r} has {name}={text!r}: write a number from {least:g} to {most:g}"
        )
    return number
