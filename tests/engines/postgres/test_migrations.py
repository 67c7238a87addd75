"""The schema: created once by many processes, by a role that owns only it, and under any name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from dayjob import Broker, BrokerConfig, ConfigError, EngineUnavailable, NewJob
from dayjob.engines.base import DocumentWrite
from dayjob.engines.postgres import migrate
from dayjob.engines.postgres.migrate import Migration, Step, read_migrations
from dayjob.engines.postgres.statements import Statements, quoted
from dayjob.engines.registry import Layout, find_layout
from tests.engines.postgres.roles import open_new
from tests.engines.postgres.verbs import use_every_verb
from tests.support.arrange import KEEP_ALL, claim_one
from tests.support.processes import Spawn, receive_from_all, start_together
from tests.support.servers.postgres import schema_of, server_url, with_options
from tests.support.servers.private_postgres import PrivateServer, private_server
from tests.support.workers import pause, until, with_timeout

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)

NEWEST = read_migrations()[-1].number

Console = psycopg.Connection[tuple[object, ...]]


def layout_of(url: str) -> Layout:
    found = find_layout(url)
    assert found is not None
    return found


def stored_layout(console: Console, schema: str) -> dict[object, object]:
    found = console.execute(f"SELECT key, value FROM {schema}.meta WHERE key <> 'installation'").fetchall()
    return {row[0]: row[1] for row in found}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a database of these tests: an index build waits for all snapshots of its database."""
    name = schema_of(tmp_path_factory.mktemp("database"))
    with psycopg.connect(server_url(), autocommit=True) as console:
        console.execute(f"CREATE DATABASE {name}")
        yield urlsplit(server_url())._replace(path=f"/{name}").geturl()
        console.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def url(database: str, schema: str) -> str:
    return with_options(database, schema=schema)


@pytest.fixture
def console(database: str) -> Iterator[Console]:
    """A session of another client of the database."""
    with psycopg.connect(database, autocommit=True) as console:
        yield console


@pytest.fixture
async def server() -> AsyncIterator[PrivateServer]:
    """Roles belong to a whole server."""
    async with private_server() as server:
        yield server


# Creating.


@pytest.mark.slow
async def test_twenty_processes_open_a_new_schema_at_once(
    tmp_path: Path, spawn: Spawn, database: str
) -> None:
    urls = [with_options(database, schema=schema_of(tmp_path / str(number))) for number in range(2)]
    children = await spawn.many(20, open_new, urls)
    for url in urls:
        await start_together(children)
        assert await receive_from_all(children) == [True] * 20
        async with Broker(url, config=QUIET) as broker:
            assert (await broker.stats("q")).pending == 20
    assert [await child.wait() for child in children] == [0] * 20


async def test_apply_returns_the_versions_before_and_after(url: str, schema: str, console: Console) -> None:
    assert await layout_of(url).apply(print) == (0, NEWEST)
    assert await layout_of(url).apply(print) == (NEWEST, NEWEST)
    assert stored_layout(console, schema)["layout"] == str(NEWEST)


async def test_a_newer_layout_that_needs_a_newer_dayjob_is_refused(
    url: str, schema: str, console: Console
) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q")
    later = f"UPDATE {schema}.meta SET value = '{{}}' WHERE key IN ('layout', 'readable_since')"
    console.execute(later.format(9999))
    with pytest.raises(
        ConfigError,
        match=f"needs a dayjob that supports layout 9999, and this dayjob supports up to {NEWEST}",
    ):
        await Broker(url, config=QUIET).open()
    console.execute(later.format(NEWEST))
    async with Broker(url, config=QUIET) as broker:
        assert (await broker.stats("q")).pending == 1, "it is unchanged"


async def test_a_newer_layout_that_this_dayjob_can_use_is_used_and_left_alone(
    url: str, schema: str, console: Console
) -> None:
    await layout_of(url).apply(print)
    console.execute(f"UPDATE {schema}.meta SET value = '9999' WHERE key = 'layout'")
    console.execute(f"UPDATE {schema}.meta SET value = '{NEWEST}' WHERE key = 'readable_since'")
    assert await layout_of(url).apply(print) == (9999, 9999)
    async with Broker(url, config=QUIET) as broker:
        await use_every_verb(broker)
    assert stored_layout(console, schema)["layout"] == "9999"


async def test_a_migration_under_way_to_a_layout_that_this_dayjob_cannot_use_is_refused(
    url: str, schema: str, console: Console
) -> None:
    await layout_of(url).apply(print)
    console.execute(f"UPDATE {schema}.meta SET value = '9999' WHERE key = 'readable_since'")
    with pytest.raises(ConfigError, match="supports layout 9999"):
        await Broker(url, config=QUIET).open()


async def test_a_schema_created_by_the_printed_script_opens(url: str, schema: str, console: Console) -> None:
    script = await layout_of(url).script()
    assert script.startswith("BEGIN;")
    assert script.rstrip().endswith("COMMIT;")
    console.execute(script)
    assert await layout_of(url).apply(print) == (NEWEST, NEWEST)
    async with Broker(url, config=QUIET) as broker:
        await use_every_verb(broker)


# Migrating.


def create_layout(schema: str, newest: int) -> str:
    """Return the SQL that creates a schema with an older layout."""
    known = [migration for migration in read_migrations() if migration.number <= newest]
    return f"CREATE SCHEMA {quoted(schema)};\n{Statements(schema).with_schema(migrate._creation(known))}\n"


def insert_job(schema: str, queue: str = "q", payload: str = "") -> str:
    return (
        f"INSERT INTO {schema}.jobs "
        "(id, queue, state, task, payload, priority, max_attempts, enqueued_at, run_at, dedup_until) "
        f"VALUES (gen_random_uuid(), '{queue}', 'pending', '', '{payload}', 1000, 3, 1, 1, 'claimed');"
    )


def old_job(schema: str, layout: int) -> str:
    counters = "counts" if layout < 3 else "counters"
    count = f"INSERT INTO {schema}.{counters} (queue, pending) VALUES ('old', 1);"
    highest = f"UPDATE {schema}.jobs SET epoch = 2147483647;"
    return insert_job(schema, "old", "kept") + highest + count


OLD_DOCUMENT = "INSERT INTO {schema}.notes VALUES ('old', 'a', 1, 'kept')"


@pytest.mark.parametrize("layout", range(1, NEWEST))
async def test_an_older_layout_is_migrated_with_its_jobs(
    url: str, schema: str, console: Console, layout: int
) -> None:
    console.execute(create_layout(schema, layout) + old_job(schema, layout))
    if layout == 2:
        console.execute(OLD_DOCUMENT.format(schema=schema))
    async with Broker(url, config=QUIET) as broker:
        job = await claim_one(broker, "old")
        assert job.payload == b"kept"
        await broker.ack(job)
        if layout == 2:
            (document,) = (await broker._engine.documents("old"))[1]
            assert (document.name, document.value) == ("a", b"kept")
        await use_every_verb(broker)
    assert await layout_of(url).apply(print) == (NEWEST, NEWEST)


@pytest.mark.parametrize("since", range(1, NEWEST))
@pytest.mark.parametrize("given", [True, False])
async def test_the_printed_script_migrates_from_any_layout(
    url: str, schema: str, console: Console, since: int, given: bool
) -> None:
    console.execute(create_layout(schema, since) + old_job(schema, since))
    script = await layout_of(url).script(since if given else None)
    for statement in script.split(";\n\n"):
        console.execute(statement)
    assert await layout_of(url).apply(print) == (NEWEST, NEWEST)
    async with Broker(url, config=QUIET) as broker:
        assert (await claim_one(broker, "old")).payload == b"kept"
        await use_every_verb(broker)


@pytest.mark.parametrize("since", [-1, NEWEST + 1])
async def test_a_script_from_an_unknown_layout_is_refused(url: str, since: int) -> None:
    with pytest.raises(ConfigError, match=f"no layout {since}: pass 0 to {NEWEST}"):
        await layout_of(url).script(since)


async def test_brokers_that_open_an_older_layout_at_once_migrate_it_once(
    url: str, schema: str, console: Console
) -> None:
    console.execute(create_layout(schema, 1) + old_job(schema, 1))
    brokers = [Broker(url, config=QUIET) for _ in range(10)]
    await asyncio.gather(*(broker.open() for broker in brokers))
    written = await asyncio.gather(
        *(
            broker._session.storage.compare_and_set([DocumentWrite("k", "a", None, b"1")])
            for broker in brokers
        )
    )
    assert written.count(True) == 1
    await asyncio.gather(*(broker.close() for broker in brokers))


@pytest.mark.slow
async def test_twenty_processes_open_an_older_layout_at_once(
    tmp_path: Path, spawn: Spawn, database: str, console: Console
) -> None:
    schemas = [schema_of(tmp_path / str(number)) for number in range(2)]
    urls = [with_options(database, schema=schema) for schema in schemas]
    for schema in schemas:
        console.execute(create_layout(schema, 1))
    children = await spawn.many(20, open_new, urls)
    for url in urls:
        await start_together(children)
        assert await receive_from_all(children) == [True] * 20
        async with Broker(url, config=QUIET) as broker:
            assert (await broker.stats("q")).pending == 20
            assert (await broker._engine.documents("k"))[1] == []
    assert [await child.wait() for child in children] == [0] * 20


@pytest.mark.parametrize(("layout", "table"), [(1, "notes"), (2, "documents")])
async def test_a_table_of_the_same_name_is_refused_and_left_alone(
    url: str, schema: str, console: Console, layout: int, table: str
) -> None:
    console.execute(create_layout(schema, layout))
    console.execute(f"CREATE TABLE {schema}.{table} (mine int)")
    with pytest.raises(ConfigError, match="holds a table or function of the same name"):
        await Broker(url, config=QUIET).open()
    assert stored_layout(console, schema)["layout"] == str(layout), "it is unchanged"


def test_a_script_is_split_at_its_concurrent_statements() -> None:
    index = "CREATE INDEX CONCURRENTLY a ON dayjob.jobs (queue)\n    WHERE state = 'dead';"
    unique = "CREATE UNIQUE INDEX CONCURRENTLY b ON dayjob.jobs (id);"
    first, last = "CREATE TABLE dayjob.x (y int);\nDROP TABLE dayjob.z;", "DROP TABLE dayjob.x;"
    text = (
        f"-- A comment.\n-- Readable since layout 3.\n\n{first}\n{index}\n\n-- Another.\n{unique}\n\n{last}\n"
    )
    migration = Migration.parse(7, text)
    assert (migration.number, migration.readable_since) == (7, 3)
    transaction, *rest = migration.steps
    assert transaction.sql.endswith(first)
    assert rest == [Step(index, "a"), Step(unique, "b"), Step(last)]


# Migrating while others use the tables.


@contextmanager
def open_transaction(database: str, *statements: str) -> Iterator[Console]:
    """A transaction of another client that has run the statements."""
    with psycopg.connect(database) as other:
        for statement in statements:
            other.execute(statement)
        yield other
        other.rollback()


class Lines(list[str]):
    """Collects the progress of a migration."""

    async def wait_for(self, text: str) -> None:
        async def contains() -> bool:
            return any(text in line for line in self)

        await until(contains)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    monkeypatch.setattr(migrate, "PROGRESS_INTERVAL", 0.02)
    return Lines()


async def test_jobs_are_written_while_an_index_is_built(
    database: str, url: str, schema: str, console: Console, lines: Lines
) -> None:
    """The build waits for an open transaction, for longer than the timeout of an operation."""
    console.execute(create_layout(schema, 1))
    url = with_options(url, timeout="5")
    with open_transaction(database, insert_job(schema)):
        migrating = asyncio.ensure_future(layout_of(url).apply(lines.append))
        await lines.wait_for(
            "index jobs_dead: waiting for writers before build, which waits for the transaction"
        )
        await pause(5.5)
        console.execute("SET lock_timeout = '100ms'")
        console.execute(insert_job(schema))
        assert not migrating.done()
    assert await with_timeout(migrating) == (1, NEWEST)


async def test_the_progress_of_an_index_build_names_the_transaction_that_it_waits_for_now(
    database: str, url: str, schema: str, console: Console, lines: Lines
) -> None:
    console.execute(create_layout(schema, 1))
    job = insert_job(schema)
    with open_transaction(database, job) as first, open_transaction(database, job) as second:
        migrating = asyncio.ensure_future(layout_of(url).apply(lines.append))
        await lines.wait_for("waits for the transaction of process")
        if not lines[-1].endswith(f" {first.info.backend_pid}"):
            first, second = second, first
        first.rollback()
        await lines.wait_for(f"waits for the transaction of process {second.info.backend_pid}")
    assert await with_timeout(migrating) == (1, NEWEST)


async def test_an_index_build_does_not_wait_for_the_look_at_its_progress(
    database: str, url: str, schema: str, console: Console, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its last phase a build waits for the end of each transaction that was reading when it began."""
    console.execute(create_layout(schema, 1))
    slow = migrate._BUILD_PROGRESS.replace("FROM ", "FROM (SELECT pg_sleep(1) OFFSET 0) AS slow, ", 1)
    monkeypatch.setattr(migrate, "_BUILD_PROGRESS", slow)
    with open_transaction(database, insert_job(schema)):
        migrating = asyncio.ensure_future(layout_of(url).apply(lines.append))
        await lines.wait_for("index jobs_dead: waiting for writers before build")
        await pause(0.1)
    assert await with_timeout(migrating) == (1, NEWEST)


async def test_a_migration_does_not_make_others_wait_behind_a_long_transaction(
    database: str, url: str, schema: str, console: Console, lines: Lines
) -> None:
    console.execute(create_layout(schema, 2))
    read = f"SELECT count(*) FROM {schema}.notes"
    with open_transaction(database, read):
        migrating = asyncio.ensure_future(layout_of(url).apply(lines.append))
        await lines.wait_for("waits: a transaction of another client holds a lock on a table")
        console.execute("SET lock_timeout = '5s'")
        for _ in range(20):
            await asyncio.to_thread(console.execute, read)
            await pause(0.03)
        assert not migrating.done()
    assert await with_timeout(migrating) == (2, NEWEST)


async def test_a_migration_that_was_cut_off_is_continued(
    database: str, url: str, schema: str, console: Console, lines: Lines
) -> None:
    console.execute(create_layout(schema, 1) + old_job(schema, 1))
    short = with_options(url, migration_timeout="6")
    with open_transaction(database, insert_job(schema)):
        with pytest.raises(
            EngineUnavailable, match=r"did not end within 6 s \(index jobs_dead: .* waits for"
        ):
            await layout_of(short).apply(lines.append)
        invalid = (
            "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid AND indrelid = %s::regclass"
        )
        jobs = [f"{schema}.jobs"]

        async def cancelled() -> bool:
            return not console.execute("SELECT FROM pg_stat_progress_create_index").fetchall()

        await until(cancelled)
        assert console.execute(invalid, jobs).fetchall() == [(f"{schema}.jobs_dead",)]
        assert stored_layout(console, schema) == {"layout": "1", "readable_since": "1", "steps": "1"}
        migrating = asyncio.ensure_future(layout_of(url).apply(lines.append))
        await lines.wait_for("index jobs_dead: dropping the part that was built, once open transactions end")
    assert await with_timeout(migrating) == (1, NEWEST)
    async with Broker(url, config=QUIET) as broker:
        assert (await claim_one(broker, "old")).payload == b"kept"
        await use_every_verb(broker)
    assert console.execute(invalid, jobs).fetchall() == []
    assert stored_layout(console, schema)["layout"] == str(NEWEST)


async def test_a_broker_waits_while_another_process_migrates(
    database: str, url: str, schema: str, console: Console, lines: Lines
) -> None:
    console.execute(create_layout(schema, 1))
    with open_transaction(database, insert_job(schema)):
        migrating = asyncio.ensure_future(layout_of(url).apply(lines.append))
        await lines.wait_for("waiting for writers")
        others = Lines()
        waiting = asyncio.ensure_future(layout_of(url).apply(others.append))
        await others.wait_for("another process migrates it")
    assert await with_timeout(migrating) == (1, NEWEST)
    assert await with_timeout(waiting) == (1, NEWEST)


# Names.


@pytest.mark.parametrize(
    "name",
    [
        'quo"te',
        "apo'stro''phe",
        "two  words ",
        "dayjob.x",
        "dayjob.jobs",
        "ünïcødé 🐘",
        "$1 %s {}",
        "A;--",
        "a$$b$q$",
    ],
)
async def test_the_schema_may_have_any_name(name: str, database: str, console: Console) -> None:
    url = with_options(database, schema=quote(name, safe=""))
    try:
        async with Broker(url, config=QUIET) as broker, Broker(url, config=QUIET) as other:
            await use_every_verb(broker)
            waiting = other.claim("woken", wait=20)
            enqueued = await broker.enqueue("woken")
            assert [job.id for job in await with_timeout(waiting)] == [enqueued.id]
        found = console.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [name]).fetchall()
        assert ("jobs",) in found
    finally:
        console.execute(f"DROP SCHEMA IF EXISTS {quoted(name)} CASCADE")


@pytest.mark.parametrize("name", ["", "x" * 57, "🐘" * 15])
def test_a_schema_name_that_the_server_would_truncate_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="write a name of 1 to 56 bytes"):
        Broker(with_options(server_url(), schema=quote(name, safe="")))


# Roles.


def as_role(url: str, role: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{role}:secret@{parts.hostname}:{parts.port}").geturl()


async def test_a_role_that_owns_only_the_schema_is_enough(server: PrivateServer) -> None:
    await server.fetch("CREATE ROLE worker LOGIN PASSWORD 'secret'")
    await server.fetch("REVOKE CREATE, TEMPORARY ON DATABASE postgres FROM PUBLIC")
    await server.fetch("CREATE SCHEMA dayjob AUTHORIZATION worker")
    async with Broker(as_role(server.url, "worker"), config=QUIET) as broker:
        await use_every_verb(broker)


async def test_a_role_with_grants_on_existing_tables_is_enough(
    server: PrivateServer,
) -> None:
    async with Broker(server.url, config=QUIET):
        """The owner has created the tables."""
    await server.fetch("CREATE ROLE worker LOGIN PASSWORD 'secret'")
    await server.fetch("GRANT USAGE ON SCHEMA dayjob TO worker")
    await server.fetch("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dayjob TO worker")
    async with Broker(as_role(server.url, "worker"), config=QUIET) as broker:
        await use_every_verb(broker)


async def test_a_role_that_may_not_create_the_schema_gets_the_remedy(server: PrivateServer) -> None:
    await server.fetch("CREATE ROLE stranger LOGIN PASSWORD 'secret'")
    with pytest.raises(ConfigError, match="may not create the tables") as caught:
        await Broker(as_role(server.url, "stranger"), config=QUIET).open()
    assert 'CREATE SCHEMA "dayjob" AUTHORIZATION role' in str(caught.value)
    assert "dayjob migrate --sql" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert await server.fetch("SELECT FROM pg_namespace WHERE nspname = 'dayjob'") == []


async def test_a_role_without_access_to_the_schema_gets_the_remedy(server: PrivateServer) -> None:
    async with Broker(server.url, config=QUIET):
        """The tables exist, and belong to another role."""
    await server.fetch("CREATE ROLE stranger LOGIN PASSWORD 'secret'")
    with pytest.raises(ConfigError, match="may not use the schema 'dayjob'"):
        await Broker(as_role(server.url, "stranger"), config=QUIET).open()


async def test_a_role_that_may_not_migrate_the_schema_gets_the_remedy(
    server: PrivateServer,
) -> None:
    for statement in create_layout("dayjob", 1).split(";\n"):
        await server.fetch(statement)
    await server.fetch("CREATE ROLE worker LOGIN PASSWORD 'secret'")
    await server.fetch("GRANT USAGE ON SCHEMA dayjob TO worker")
    await server.fetch("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dayjob TO worker")
    with pytest.raises(
        ConfigError, match=f"from layout 1 to {NEWEST} .* run {{2}}dayjob migrate {{2}}as its owner"
    ):
        await Broker(as_role(server.url, "worker"), config=QUIET).open()


# Logical replication.


async def test_every_verb_works_with_a_publication_for_all_tables(server: PrivateServer) -> None:
    """The server refuses to update or delete rows of a published table without a primary key."""
    config = BrokerConfig(duties=False)
    async with Broker(server.url, config=QUIET) as broker, Broker(server.url, config=config) as forgetful:
        await server.fetch("CREATE PUBLICATION everything FOR ALL TABLES")
        await use_every_verb(broker)
        await forgetful.enqueue_many([NewJob("other")] * 3)
        for job in await forgetful.claim("other", limit=3):
            await forgetful.ack(job)
        await broker.kv_put(b"k", b"v")
        await broker.kv_delete(b"k")
        await server.fetch("UPDATE dayjob.replies SET stored_at = 0")
        await broker.sweep()
        assert await server.fetch("SELECT FROM dayjob.replies WHERE stored_at = 0") == []
        assert (await broker.stats("other")).done == 3
    keyless = await server.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'dayjob'::regnamespace AND relkind = 'r'"
        " AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary)"
    )
    assert keyless == []
