"""Connection settings: the server, the database, the schema and the options of the URL."""

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
"""Options of the URL that are passed to the driver."""

_KNOWN = (
    "postgresql:// takes schema, connections, timeout, migration_timeout, poll and pgbouncer, and the "
    "connection options of libpq, such as sslmode"
)

LISTENER = "dayjob listener"
"""The application name of the session that receives notifications. All others are named ``dayjob``."""

MAX_CONNECTIONS = 100
MAX_NAME_BYTES = 63


class PostgresSettings(Struct, frozen=True):
    """The settings of one engine."""

    url: str
    """The URL for messages, without the password."""

    dsn: str
    schema: str = "dayjob"
    connections: int = 4
    timeout: float = 15.0
    migration_timeout: float = 3600.0
    poll: float = 1.0
    pgbouncer: bool = False
    prepared: bool = True
    """Whether statements are prepared by name, and thus planned once."""

    @property
    def channel(self) -> str:
        return f"dayjob {self.schema}"[:MAX_NAME_BYTES]


def read_settings(location: Location) -> PostgresSettings:
    """Return the settings of a URL. Raise ``ConfigError`` for a bad or unknown option."""
    url = location.shown
    schema = location.take("schema", "dayjob")
    if not schema or "\0" in schema or len(schema.encode()) > MAX_NAME_BYTES - len("dayjob "):
        raise ConfigError(f"the URL {url!r} has schema={schema!r}: write a name of 1 to 56 bytes")
    pgbouncer = location.choice("pgbouncer", "0", "1", "prepared")
    passed = {name: location.take(name, "") for name in _DRIVER_OPTIONS & {*location.options}}
    dsn = location.parts._replace(scheme="postgresql", query=urlencode(passed)).geturl()
    settings = PostgresSettings(
        url, dsn, schema,
        connections=int(location.number("connections", "4", 1, MAX_CONNECTIONS)),
        timeout=location.number("timeout", "15", 0.1, 3600),
        migration_timeout=location.number("migration_timeout", "3600", 0.1, 604_800),
        poll=location.number("poll", "1", 0.01, 3600),
        pgbouncer=pgbouncer != "0", prepared=pgbouncer != "1",
    )  # fmt: skip
    location.done(_KNOWN)
    return settings
