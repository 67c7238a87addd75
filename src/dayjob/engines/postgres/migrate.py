"""Creates the schema and migrates its layout, by one process at a time, while others use it.

A new schema is created in one transaction. An older layout is migrated in steps: transactions, and indexes
that the server builds while jobs are written. Each completed step is stored, and the next run continues after
it. A transaction that has to wait for a lock gives up soon and is tried again, as every other statement on
the table would queue behind it. A layout names the oldest layout whose processes can use it, so that these
keep running during an upgrade.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import asyncpg
from msgspec import Struct

from dayjob.engines.base import Transient
from dayjob.engines.postgres.database import Connection, Pool, connect
from dayjob.engines.postgres.errors import public_error
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.engines.postgres.statements import Statements, migrations, quoted
from dayjob.errors import ConfigError, DayjobError, EngineUnavailable
from dayjob.runtime.backoff import Backoff
from dayjob.runtime.clock import SYSTEM

OnProgress = Callable[[str], None]
"""Gets a line of text about the progress of a migration."""

PROGRESS_INTERVAL = 5.0
"""Seconds between the lines about an index that is being built."""

LOCK_TIMEOUT = "200ms"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0

_SESSION_SETTINGS = {"statement_timeout": "0", "lock_timeout": "0"}
"""The settings of a session that builds indexes. Such a build blocks no writes, so its waits may be long."""

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0; SET LOCAL "
_BEGIN_LOCK = f"{_BEGIN} idle_in_transaction_session_timeout = 0"
_BEGIN_STEP = f"{_BEGIN} lock_timeout = '{LOCK_TIMEOUT}'"

_DROP_SNAPSHOT = "SELECT pg_stat_clear_snapshot()"
"""Replaces the portal of the last statement, and with it its snapshot: an index build would wait for it."""

_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('dayjob migrations of ' || $1, 0))"

_HAS_META = """
SELECT EXISTS (
    SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = $1 AND relname = 'meta'
)
"""
# Reads the catalogs themselves: to_regclass may use a cache that is older than the lock.

_INDEX_IS_VALID = """
SELECT indisvalid
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = $1 AND relname = $2
"""

_BUILDS = (
    "FROM pg_stat_progress_create_index WHERE datname = current_database() AND index_relid = to_regclass($1)"
)
_BUILD_PROGRESS = f"SELECT phase, blocks_done, blocks_total, current_locker_pid {_BUILDS}"
_CANCEL_BUILD = f"SELECT pg_cancel_backend(pid) {_BUILDS}"

_READABLE_SINCE = re.compile(r"^-- Readable since layout (\d+)\.$", re.MULTILINE)
_CONCURRENT = re.compile(r"^CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+) ON [^;]+;", re.MULTILINE)
_STATEMENT = re.compile(r"^(?!--)\S", re.MULTILINE)


class Step(Struct, frozen=True):
    """Statements for one transaction, or one that builds an ``index`` outside of any."""

    sql: str
    index: str | None = None


class Migration(Struct, frozen=True):
    """The steps to a layout from the one before."""

    number: int
    readable_since: int
    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, number: int, sql: str) -> Migration:
        readable_since = _READABLE_SINCE.search(sql)
        assert readable_since is not None, f"layout {number} lacks a line '-- Readable since layout N.'"
        return cls(number, int(readable_since[1]), tuple(_steps(sql)))

    def stored(self, version: int, steps: int = 0) -> Stored:
        """Return the layout to store after some steps, or with the own number after all."""
        return Stored(version, self.readable_since, steps)


def _steps(sql: str) -> Iterator[Step]:
    """Yield the steps of a script. The statements between two concurrent ones are one transaction."""
    start = 0
    for statement in _CONCURRENT.finditer(sql):
        if _STATEMENT.search(before := sql[start : statement.start()]):
            yield Step(before.strip())
        yield Step(statement[0], statement[1])
        start = statement.end()
    if _STATEMENT.search(rest := sql[start:]):
        yield Step(rest.strip())


def read_migrations() -> list[Migration]:
    """Return the migrations in order. Their SQL names the schema ``dayjob``."""
    return [Migration.parse(number, sql) for number, sql in migrations()]


class Stored(Struct, frozen=True):
    """The layout of a schema: its version (0 for none), and the completed steps to the next.

    Processes that support no layout from ``readable_since`` on can't use it.
    """

    version: int = 0
    readable_since: int = 0
    steps: int = 0

    def steps_to(self, migration: Migration) -> int:
        return self.steps if migration.number == self.version + 1 else 0

    def mark(self) -> str:
        """Return the SQL that stores this layout."""
        values = {"layout": self.version, "readable_since": self.readable_since, "steps": self.steps}
        return (
            "INSERT INTO dayjob.meta (key, value) VALUES "
            + ", ".join(f"('{key}', '{value}')" for key, value in values.items())
            + " ON CONFLICT (key) DO UPDATE SET value = excluded.value;"
        )


async def read_stored(connection: Connection, settings: PostgresSettings, lock: str = "") -> Stored:
    """Return the layout of the schema. ``lock`` is the locking clause of the read."""
    if not await connection.fetchval(_HAS_META, settings.schema):
        return Stored()
    try:
        found = await connection.fetch(
            f"SELECT key, value FROM {quoted(settings.schema)}.meta "
            f"WHERE key IN ('layout', 'readable_since', 'steps') ORDER BY key {lock}"
        )
    except asyncpg.InsufficientPrivilegeError as error:
        raise ConfigError(
            f"{settings.url}: the role may not use the schema {settings.schema!r} ({error}): make the role "
            "its owner, or grant it USAGE, and SELECT, INSERT, UPDATE and DELETE on its tables"
        ) from error
    values = {row[0]: int(row[1]) for row in found}
    version = values.get("layout", 0)
    return Stored(version, values.get("readable_since", version), values.get("steps", 0))


async def check(connection: Connection, settings: PostgresSettings) -> Stored:
    """Return the layout of the schema. Raise ``ConfigError`` if this dayjob can't use or migrate it."""
    encoding = await connection.fetchval("SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise ConfigError(
            f"{settings.url}: the encoding of the database is {encoding}: jobs may hold any text, "
            "so create a database in UTF8"
        )
    stored = await read_stored(connection, settings)
    newest = migrations()[-1][0]
    if stored.readable_since > newest:
        raise ConfigError(
            f"{settings.url}: the schema {settings.schema!r} has layout {stored.version}, which needs a "
            f"dayjob that supports layout {stored.readable_since}, and this dayjob supports up to {newest}: "
            "upgrade dayjob, or name another ?schema="
        )
    return stored


async def prepare(pool: Pool, settings: PostgresSettings, on_progress: OnProgress) -> tuple[int, int]:
    """Create or migrate the layout. Return its versions before and after. Refuse one that can't be used."""
    stored = await pool.run_retrying(lambda connection: check(connection, settings))
    newest = migrations()[-1][0]
    if stored.version >= newest:
        return stored.version, stored.version
    await Migrator(settings, on_progress).run()
    return stored.version, newest


class PostgresLayout(Struct, frozen=True):
    """The tables of one schema."""

    settings: PostgresSettings

    async def script(self, since: int | None = None) -> str:
        """Return the SQL from a layout, or from the stored one, to the newest. 0 creates the schema."""
        known = read_migrations()
        if since is None:
            pool = Pool(self.settings)
            try:
                stored = await pool.run_retrying(lambda connection: check(connection, self.settings))
            finally:
                await pool.close()
        elif 0 <= since <= known[-1].number:
            stored = Stored(since)
        else:
            raise ConfigError(f"there is no layout {since}: pass 0 to {known[-1].number}")
        with_schema = Statements(self.settings.schema).with_schema
        if stored.version == 0:
            create = f"CREATE SCHEMA IF NOT EXISTS {quoted(self.settings.schema)};"
            return "\n\n".join(["BEGIN;", create, with_schema(_creation(known)), "COMMIT;", ""])
        return with_schema("\n\n".join([*_upgrade(known, stored), ""]))

    async def apply(self, on_progress: OnProgress) -> tuple[int, int]:
        pool = Pool(self.settings)
        try:
            return await prepare(pool, self.settings, on_progress)
        finally:
            await pool.close()


def _creation(known: Sequence[Migration]) -> str:
    """Return the SQL of a new schema, for one transaction. The tables are empty, so no index takes time."""
    parts: list[str] = []
    for migration in known:
        parts.append(f"-- Layout {migration.number}")
        parts += [step.sql.replace(" CONCURRENTLY", "", 1) for step in migration.steps]
        parts.append(migration.stored(migration.number).mark())
    return "\n\n".join(parts)


def _upgrade(known: Sequence[Migration], stored: Stored) -> Iterator[str]:
    """Yield the SQL from the stored layout to the newest."""
    yield f"-- From layout {stored.version} to {known[-1].number}"
    for migration in known[stored.version :]:
        yield f"-- Layout {migration.number}"
        for step in migration.steps[stored.steps_to(migration) :]:
            if step.index is None:
                yield f"{_BEGIN_STEP};\n\n{step.sql}\n\nCOMMIT;"
            else:
                yield f"DROP INDEX CONCURRENTLY IF EXISTS dayjob.{step.index};\n\n{step.sql}"
        yield migration.stored(migration.number).mark()


class Migrator:
    """Migrates one schema within the time limit of the settings."""

    def __init__(self, settings: PostgresSettings, on_progress: OnProgress) -> None:
        self._settings = settings
        self._on_progress = on_progress
        self._with_schema = Statements(settings.schema).with_schema
        self._migrations = read_migrations()
        self._newest = self._migrations[-1].number
        self._obstacle = ""

    async def run(self) -> None:
        """Migrate to the newest layout, again after transient errors."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True)
        limit = self._settings.migration_timeout
        try:
            async with asyncio.timeout(limit):
                while not await self._try():
                    await backoff.wait(SYSTEM)
        except TimeoutError:
            raise EngineUnavailable(
                f"{self._settings.url}: the migration to layout {self._newest} did not end within {limit:g} "
                f"s ({self._obstacle or 'no obstacle was seen'}): the next run continues it; run  "
                "dayjob migrate,  or raise ?migration_timeout="
            ) from None

    async def _try(self) -> bool:
        """Migrate, if no other process does. Return whether the layout is the newest now."""
        try:
            lock = await connect(self._settings, self._settings.timeout, _SESSION_SETTINGS)
            try:
                await lock.execute(_BEGIN_LOCK)
                locked = await lock.fetchval(_LOCK, self._settings.schema)
                stored = await check(lock, self._settings)
                if stored.version < self._newest and not locked:
                    self._wait_for("another process migrates it")
                    return False
                if stored.version < self._newest:
                    await lock.execute(_DROP_SNAPSHOT)
                    await self._migrate(lock, stored)
                return True
            finally:
                lock.terminate()
        except asyncpg.LockNotAvailableError:
            self._wait_for("a transaction of another client holds a lock on a table")
        except Exception as error:
            public = error if isinstance(error, DayjobError) else public_error(self._settings, error)
            if not isinstance(public, Transient):
                raise public from (None if public is error else error)
            self._wait_for(str(public))
        return False

    def _wait_for(self, obstacle: str) -> None:
        if obstacle != self._obstacle:
            self._obstacle = obstacle
            self._on_progress(f"the migration to layout {self._newest} waits: {obstacle}")

    async def _migrate(self, lock: Connection, stored: Stored) -> None:
        schema, version = self._settings.schema, stored.version
        try:
            if version == 0:
                await self._create(lock)
            else:
                await self._upgrade(stored)
        except asyncpg.InsufficientPrivilegeError as error:
            if version > 0:
                raise ConfigError(
                    f"{self._settings.url}: the role may not migrate the schema {schema!r} from layout "
                    f"{version} to {self._newest} ({error}): run  dayjob migrate  as its owner"
                ) from error
            raise ConfigError(
                f"{self._settings.url}: the role may not create the tables ({error}): create the schema for "
                f"it, as in  CREATE SCHEMA {quoted(schema)} AUTHORIZATION role,  or run the output of  "
                "dayjob migrate --sql  as a role that may"
            ) from error
        except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
            raise ConfigError(
                f"{self._settings.url}: the schema {schema!r} holds a table or function of the same name "
                f"({error}): name another ?schema="
            ) from error

    async def _create(self, connection: Connection) -> None:
        """Create the schema in the transaction that holds the lock."""
        schema = self._settings.schema
        if not await connection.fetchval(
            "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema
        ):
            await connection.execute(f"CREATE SCHEMA {quoted(schema)}")
        await connection.execute(self._with_schema(_creation(self._migrations)))
        await connection.execute("COMMIT")

    async def _upgrade(self, stored: Stored) -> None:
        """Take the missing steps on a connection of its own."""
        work = await connect(self._settings, self._settings.timeout, _SESSION_SETTINGS)
        try:
            for migration in self._migrations[stored.version :]:
                for number, step in enumerate(migration.steps):
                    if number < stored.steps_to(migration):
                        continue
                    self._on_progress(
                        f"layout {migration.number}: step {number + 1} of {len(migration.steps)}"
                        + (f", index {step.index}" if step.index else "")
                    )
                    if step.index is not None:
                        await self._build(work, step.index, step.sql)
                    last = number + 1 == len(migration.steps)
                    after = (
                        migration.stored(migration.number)
                        if last
                        else migration.stored(stored.version, number + 1)
                    )
                    await self._store(work, stored, after, "" if step.index else step.sql)
                    stored = after
        finally:
            work.terminate()

    async def _store(self, work: Connection, before: Stored, after: Stored, sql: str) -> None:
        """Run SQL, if any, and store the layout after it, in one transaction."""
        await work.execute(_BEGIN_STEP)
        if await read_stored(work, self._settings, "FOR UPDATE") != before:
            raise Transient("another process has taken a step of the migration")
        await work.execute(self._with_schema(f"{sql}\n{after.mark()}"))
        await work.execute("COMMIT")

    async def _build(self, work: Connection, index: str, sql: str) -> None:
        """Build an index while jobs are written, unless it is there. Drop one whose build was cut off."""
        valid = await work.fetchval(_INDEX_IS_VALID, self._settings.schema, index)
        if valid:
            return
        name = f"{quoted(self._settings.schema)}.{index}"
        if valid is False:
            self._obstacle = f"index {index}: dropping the part that was built, once open transactions end"
            self._on_progress(self._obstacle)
            await work.execute(f"DROP INDEX CONCURRENTLY {name}")
        # Not the connection with the lock: a build waits for the end of each transaction that is reading.
        watch = await connect(self._settings, self._settings.timeout, _SESSION_SETTINGS)
        building = asyncio.ensure_future(work.execute(self._with_schema(sql)))
        try:
            while not (await asyncio.wait({building}, timeout=PROGRESS_INTERVAL))[0]:
                for phase, done, total, blocker in await watch.fetch(_BUILD_PROGRESS, name):
                    self._obstacle = f"index {index}: {phase}" + (
                        f", which waits for the transaction of process {blocker}" if blocker else ""
                    )
                    share = f", {done / total:.0%} of the blocks" if total else ""
                    self._on_progress(f"{self._obstacle}{share}")
            await building
        finally:
            if not building.done():  # A cancelled call does not end the statement.
                with suppress(Exception):
                    await watch.fetch(_CANCEL_BUILD, name)
                building.cancel()
            watch.terminate()
