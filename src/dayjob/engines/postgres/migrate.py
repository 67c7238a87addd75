"""Creates the schema and migrates its layout, under a lock, as many processes may start at once."""

from __future__ import annotations

import asyncpg
from msgspec import Struct

from dayjob.engines.postgres.database import Connection, Pool
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.engines.postgres.statements import Statements, migrations, quoted
from dayjob.errors import ConfigError

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('dayjob migrations of ' || $1, 0))"

_HAS_META = """
SELECT EXISTS (
    SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = $1 AND relname = 'meta'
)
"""
# Reads the catalogs themselves: to_regclass may use a cache that is older than the lock.


class PostgresLayout(Struct, frozen=True):
    """The tables of one schema."""

    settings: PostgresSettings

    def script(self) -> str:
        """Return the SQL that creates them, as one transaction."""
        statements = Statements(self.settings.schema)
        parts = ["BEGIN;", f"CREATE SCHEMA IF NOT EXISTS {quoted(self.settings.schema)};"]
        for number, sql in migrations():
            parts += [f"-- Layout {number}", statements.with_schema(sql).strip(), _mark(statements, number)]
        return "\n\n".join([*parts, "COMMIT;", ""])

    async def apply(self) -> tuple[int, int]:
        pool = Pool(self.settings)
        try:
            return await pool.run_retrying(lambda connection: prepare(connection, self.settings))
        finally:
            await pool.close()


async def prepare(connection: Connection, settings: PostgresSettings) -> tuple[int, int]:
    """Create or migrate the layout. Return its versions before and after. Refuse one that can't be used."""
    encoding = await connection.fetchval("SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise ConfigError(
            f"{settings.url}: the encoding of the database is {encoding}: jobs may hold any text, "
            "so create a database in UTF8"
        )
    newest = migrations()[-1][0]
    version = await layout_version(connection, settings)
    if version != newest:
        async with connection.transaction():
            await connection.execute(_LOCK, settings.schema)
            version = await layout_version(connection, settings)
            await _apply(connection, settings, version, newest)
    return version, newest


async def layout_version(connection: Connection, settings: PostgresSettings) -> int:
    """Return the version of the layout; 0 if there is none."""
    if not await connection.fetchval(_HAS_META, settings.schema):
        return 0
    try:
        found = await connection.fetchval(
            f"SELECT value FROM {quoted(settings.schema)}.meta WHERE key = 'layout'"
        )
    except asyncpg.InsufficientPrivilegeError as error:
        raise ConfigError(
            f"{settings.url}: the role may not use the schema {settings.schema!r} ({error}): make the role "
            "its owner, or grant it USAGE, and SELECT, INSERT, UPDATE and DELETE on its tables"
        ) from error
    return int(found) if found is not None else 0


async def _apply(connection: Connection, settings: PostgresSettings, version: int, newest: int) -> None:
    if version > newest:
        raise ConfigError(
            f"{settings.url}: the schema {settings.schema!r} has layout {version} and this dayjob supports "
            f"up to {newest}: upgrade dayjob, or name another ?schema="
        )
    statements = Statements(settings.schema)
    try:
        if version == 0 and not await connection.fetchval(
            "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", settings.schema
        ):
            await connection.execute(f"CREATE SCHEMA {quoted(settings.schema)}")
        for number, sql in migrations():
            if number > version:
                await connection.execute(statements.with_schema(sql))
                await connection.execute(_mark(statements, number))
    except asyncpg.InsufficientPrivilegeError as error:
        if version > 0:
            raise ConfigError(
                f"{settings.url}: the role may not migrate the schema {settings.schema!r} from layout "
                f"{version} to {newest} ({error}): run  dayjob migrate  as its owner"
            ) from error
        raise ConfigError(
            f"{settings.url}: the role may not create the tables ({error}): create the schema for it, as in  "
            f"CREATE SCHEMA {quoted(settings.schema)} AUTHORIZATION role,  or run the output of  "
            "dayjob migrate --sql  as a role that may"
        ) from error
    except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
        raise ConfigError(
            f"{settings.url}: the schema {settings.schema!r} holds a table or function of the same name "
            f"({error}): name another ?schema="
        ) from error


def _mark(statements: Statements, number: int) -> str:
    return statements.with_schema(
        f"INSERT INTO dayjob.meta (key, value) VALUES ('layout', '{number}') "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value;"
    )
