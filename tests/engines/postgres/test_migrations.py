"""The schema: created once by many processes, by a role that owns only it, and under any name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from dayjob import Broker, BrokerConfig, ConfigError, NewJob
from dayjob.engines.base import DocumentWrite
from dayjob.engines.postgres.migrate import _mark
from dayjob.engines.postgres.statements import Statements, migrations, quoted
from dayjob.engines.registry import find_layout
from tests.engines.postgres.roles import open_new
from tests.engines.postgres.verbs import use_every_verb
from tests.support.arrange import KEEP_ALL, claim_one
from tests.support.processes import Spawn, receive_from_all, start_together
from tests.support.servers.postgres import schema_of, schema_url, server_url, with_options
from tests.support.servers.private_postgres import PrivateServer, private_server
from tests.support.workers import with_timeout

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)

NEWEST = migrations()[-1][0]

Console = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
async def server() -> AsyncIterator[PrivateServer]:
    """Roles belong to a whole server."""
    async with private_server() as server:
        yield server


# Creating.


@pytest.mark.slow
async def test_twenty_processes_open_a_new_schema_at_once(tmp_path: Path, spawn: Spawn) -> None:
    urls = [schema_url(tmp_path / str(number)) for number in range(2)]
    children = await spawn.many(20, open_new, urls)
    for url in urls:
        await start_together(children)
        assert await receive_from_all(children) == [True] * 20
        async with Broker(url, config=QUIET) as broker:
            assert (await broker.stats("q")).pending == 20
    assert [await child.wait() for child in children] == [0] * 20


async def test_apply_returns_the_versions_before_and_after(url: str, schema: str, console: Console) -> None:
    layout = find_layout(url)
    assert layout is not None
    assert await layout.apply() == (0, NEWEST)
    assert await layout.apply() == (NEWEST, NEWEST)
    found = console.execute(f"SELECT value FROM {schema}.meta WHERE key = 'layout'").fetchall()
    assert found == [(str(NEWEST),)]


async def test_a_newer_layout_is_refused(url: str, schema: str, console: Console) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q")
    console.execute(f"UPDATE {schema}.meta SET value = '9999' WHERE key = 'layout'")
    with pytest.raises(
        ConfigError, match=f"has layout 9999 and this dayjob supports up to {NEWEST}: upgrade"
    ):
        await Broker(url, config=QUIET).open()
    console.execute(f"UPDATE {schema}.meta SET value = '{NEWEST}' WHERE key = 'layout'")
    async with Broker(url, config=QUIET) as broker:
        assert (await broker.stats("q")).pending == 1, "it is unchanged"


async def test_a_schema_created_by_the_printed_script_opens(url: str, schema: str, console: Console) -> None:
    layout = find_layout(url)
    assert layout is not None
    script = layout.script()
    assert script.startswith("BEGIN;")
    assert script.rstrip().endswith("COMMIT;")
    console.execute(script)
    assert await layout.apply() == (NEWEST, NEWEST)
    async with Broker(url, config=QUIET) as broker:
        await use_every_verb(broker)


# Migrating.


def create_layout(schema: str, newest: int) -> str:
    """Return the SQL that creates a schema with an older layout."""
    statements = Statements(schema)
    parts = [f"CREATE SCHEMA {quoted(schema)};"]
    for number, sql in migrations():
        if number <= newest:
            parts += [statements.with_schema(sql), _mark(statements, number)]
    return "\n".join(parts)


OLD_JOB = """
INSERT INTO {schema}.jobs (
    id, queue, state, task, payload, priority, max_attempts, enqueued_at, run_at, dedup_until
) VALUES (gen_random_uuid(), 'old', 'pending', '', 'kept', 1000, 3, 1, 1, 'claimed');
INSERT INTO {schema}.{counters} (queue, pending) VALUES ('old', 1);
"""


OLD_DOCUMENT = "INSERT INTO {schema}.notes VALUES ('old', 'a', 1, 'kept')"


@pytest.mark.parametrize("layout", range(1, NEWEST))
async def test_an_older_layout_is_migrated_with_its_jobs(
    url: str, schema: str, console: Console, layout: int
) -> None:
    counters = "counts" if layout < 3 else "counters"
    console.execute(create_layout(schema, layout) + OLD_JOB.format(schema=schema, counters=counters))
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
    found = find_layout(url)
    assert found is not None
    assert await found.apply() == (NEWEST, NEWEST)


async def test_brokers_that_open_an_older_layout_at_once_migrate_it_once(
    url: str, schema: str, console: Console
) -> None:
    console.execute(create_layout(schema, 1) + OLD_JOB.format(schema=schema, counters="counts"))
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
    tmp_path: Path, spawn: Spawn, console: Console
) -> None:
    urls = [schema_url(tmp_path / str(number)) for number in range(2)]
    for number in range(2):
        console.execute(create_layout(schema_of(tmp_path / str(number)), 1))
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
    found = console.execute(f"SELECT value FROM {schema}.meta WHERE key = 'layout'").fetchall()
    assert found == [(str(layout),)], "it is unchanged"


# Names.


@pytest.mark.parametrize(
    "name",
    ['quo"te', "apo'stro''phe", "two  words ", "dayjob.x", "dayjob.jobs", "ünïcødé 🐘", "$1 %s {}", "A;--"],
)
async def test_the_schema_may_have_any_name(name: str, console: Console) -> None:
    url = with_options(server_url(), schema=quote(name, safe=""))
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
    for statement in create_layout("dayjob", 1).split(";\n\n"):
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
