"""The checks of ``dayjob doctor``: the server's version, its settings, and obstacles to vacuum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dayjob.engines.base import Diagnostic
from dayjob.engines.postgres.database import Connection
from dayjob.engines.postgres.errors import NOTIFICATIONS_REMEDY
from dayjob.engines.postgres.migrate import read_stored
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.engines.postgres.statements import FULL_NOTIFICATION_QUEUE

OLDEST_VERSION = 140_000
LONG_TRANSACTION = 3600
"""Seconds after which a transaction is reported, because it keeps vacuum from removing rows."""

CROWDED_NOTIFICATION_QUEUE = 0.5
"""The usage of the notification queue above which it is reported."""

_SETTINGS = """
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS shown,
    current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('full_page_writes') AS full_page_writes, current_setting('autovacuum') AS autovacuum,
    current_setting('max_connections')::int AS max_connections, pg_is_in_recovery() AS standby,
    pg_notification_queue_usage() AS notifications,
    (SELECT count(*) FROM pg_stat_activity) AS connections,
    (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
        FROM pg_stat_activity WHERE xact_start IS NOT NULL AND datname = current_database()) AS oldest
"""


async def diagnose(connection: Connection, settings: PostgresSettings) -> list[Diagnostic]:
    stored = await read_stored(connection, settings)
    found = await connection.fetchrow(_SETTINGS)
    return [
        Diagnostic("layout", "ok", f"version {stored.version} in schema {settings.schema!r}"),
        *_settings(dict(found)),
    ]


def _settings(found: Mapping[str, Any]) -> Iterator[Diagnostic]:
    old = found["version"] < OLDEST_VERSION
    yield Diagnostic(
        "version", "error" if old else "ok", f"PostgreSQL {found['shown']}",
        "upgrade to PostgreSQL 14 or later" if old else None,
    )  # fmt: skip
    if found["standby"]:
        yield Diagnostic(
            "role", "error", "the server is a standby and accepts no jobs", "connect to the primary"
        )
    unsafe = [
        f"{name} = {found[name]}"
        for name in ("fsync", "synchronous_commit", "full_page_writes")
        if found[name] == "off"
    ]
    if unsafe:
        yield Diagnostic(
            "durability", "error" if "fsync = off" in unsafe else "warning",
            f"a crash of the server may lose accepted jobs ({', '.join(unsafe)})",
            "set them to on for this database",
        )  # fmt: skip
    else:
        yield Diagnostic("durability", "ok", "commits are on disk")
    if found["autovacuum"] == "off":
        yield Diagnostic(
            "vacuum", "error", "autovacuum is off, so the tables only grow", "set autovacuum = on"
        )
    elif found["oldest"] > LONG_TRANSACTION:
        yield Diagnostic(
            "vacuum", "warning", f"a transaction has been open for {found['oldest'] / 60:.0f} minutes",
            "it keeps vacuum from removing rows: find it in pg_stat_activity",
        )  # fmt: skip
    else:
        yield Diagnostic("vacuum", "ok", "autovacuum is on, and no transaction holds it up")
    usage = found["notifications"]
    crowded = usage > CROWDED_NOTIFICATION_QUEUE
    yield Diagnostic(
        "notifications", "warning" if crowded else "ok", f"{usage:.0%} of the notification queue is in use",
        f"from {FULL_NOTIFICATION_QUEUE:.0%} on, workers find jobs by polling: {NOTIFICATIONS_REMEDY}"
        if crowded else None,
    )  # fmt: skip
    used, allowed = found["connections"], found["max_connections"]
    few = used > 0.9 * allowed
    yield Diagnostic(
        "connections", "warning" if few else "ok", f"{used} of {allowed} are in use",
        "raise max_connections, or put PgBouncer in between (?pgbouncer=1)" if few else None,
    )  # fmt: skip
