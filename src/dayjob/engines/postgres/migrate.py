"""Creating the schema and bringing its layout up to date, safely with many processes starting at once."""

from __future__ import annotations

import asyncpg
from msgspec import Struct

from dayjob.engines.postgres.courier import Courier
from dayjob.engines.postgres.place import Place
from dayjob.engines.postgres.pool import Connection
from dayjob.engines.postgres.statements import Statements, migrations, quoted
from dayjob.errors import ConfigError

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('dayjob migrations of ' || $1, 0))"

_HAS_META = """
SELECT EXISTS (
    SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = $1 AND relname = 'meta'
)
"""
# A look into the catalogs themselves: to_regclass may answer from a cache that is older than the lock.


class PostgresLayout(Struct, frozen=True):
    """The tables of one schema."""

    place: Place

    def script(self) -> str:
        """The SQL that creates them, as one transaction."""
        statements = Statements(self.place.schema)
        parts = ["BEGIN;", f"CREATE SCHEMA IF NOT EXISTS {quoted(self.place.schema)};"]
        for number, sql in migrations():
            parts += [f"-- Layout {number}", statements.placed(sql).strip(), _mark(statements, number)]
        return "\n\n".join([*parts, "COMMIT;", ""])

    async def apply(self) -> tuple[int, int]:
        courier = Courier(self.place, Statements(self.place.schema))
        try:
            return await courier.carry(lambda connection: prepare(connection, self.place))
        finally:
            await courier.close()


async def prepare(connection: Connection, place: Place) -> tuple[int, int]:
    """Refuse what can't be used; create or migrate what is missing or old; the layouts before and after."""
    encoding = await connection.fetchval("SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise ConfigError(
            f"{place.url}: the database is encoded in {encoding}: jobs may hold any text, "
            "so create one in UTF8"
        )
    newest = migrations()[-1][0]
    version = await layout_version(connection, place)
    if version != newest:
        async with connection.transaction():
            await connection.execute(_LOCK, place.schema)
            version = await layout_version(connection, place)
            await _apply(connection, place, version, newest)
    return version, newest


async def layout_version(connection: Connection, place: Place) -> int:
    """The layout that the schema has; 0 if it has none."""
    if not await connection.fetchval(_HAS_META, place.schema):
        return 0
    try:
        found = await connection.fetchval(
            f"SELECT value FROM {quoted(place.schema)}.meta WHERE key = 'layout'"
        )
    except asyncpg.InsufficientPrivilegeError as error:
        raise ConfigError(
            f"{place.url}: the role may not use the schema {place.schema!r} ({error}): give it to the role, "
            "or the rights to use it and to read and write its tables"
        ) from error
    return int(found) if found is not None else 0


async def _apply(connection: Connection, place: Place, version: int, newest: int) -> None:
    if version > newest:
        raise ConfigError(
            f"{place.url}: the schema {place.schema!r} has layout {version} and this dayjob knows up to "
            f"{newest}: upgrade dayjob, or name another ?schema="
        )
    statements = Statements(place.schema)
    try:
        if version == 0 and not await connection.fetchval(
            "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", place.schema
        ):
            await connection.execute(f"CREATE SCHEMA {quoted(place.schema)}")
        for number, sql in migrations():
            if number > version:
                await connection.execute(statements.placed(sql))
                await connection.execute(_mark(statements, number))
    except asyncpg.InsufficientPrivilegeError as error:
        if version > 0:
            raise ConfigError(
                f"{place.url}: the role may not bring the schema {place.schema!r} from layout {version} to "
                f"{newest} ({error}): run  dayjob migrate  as its owner"
            ) from error
        raise ConfigError(
            f"{place.url}: the role may not create the tables ({error}): create the schema for it, as in  "
            f"CREATE SCHEMA {quoted(place.schema)} AUTHORIZATION role,  or apply what  dayjob migrate --sql  "
            "prints as a role that may"
        ) from error
    except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
        raise ConfigError(
            f"{place.url}: the schema {place.schema!r} holds tables of somebody else ({error}): "
            "name another ?schema="
        ) from error


def _mark(statements: Statements, number: int) -> str:
    return statements.placed(
        f"INSERT INTO dayjob.meta (key, value) VALUES ('layout', '{number}') "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value;"
    )
