"""The schema: made once however many begin, by a role that owns nothing else, under whatever name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from dayjob import Broker, BrokerConfig, ConfigError
from dayjob.engines.base import DocumentWrite
from dayjob.engines.postgres.migrate import _mark
from dayjob.engines.postgres.statements import Statements, migrations, quoted
from dayjob.engines.registry import find_layout
from tests.engines.postgres.roles import open_new
from tests.engines.postgres.verbs import use_every_verb
from tests.support.arrange import KEEP_ALL, claim_one
from tests.support.processes import Spawn, said_by_all, together
from tests.support.servers.postgres import schema_of, schema_url, server_url, with_options
from tests.support.servers.private import PrivateServer, private_server
from tests.support.workers import within

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
        await together(children)
        assert await said_by_all(children) == [True] * 20
        async with Broker(url, config=QUIET) as broker:
            assert (await broker.stats("q")).pending == 20
    assert [await child.ended() for child in children] == [0] * 20


async def test_the_layout_is_reported(url: str, schema: str, console: Console) -> None:
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
    with pytest.raises(ConfigError, match=f"has layout 9999 and this dayjob knows up to {NEWEST}: upgrade"):
        await Broker(url, config=QUIET).open()
    console.execute(f"UPDATE {schema}.meta SET value = '{NEWEST}' WHERE key = 'layout'")
    async with Broker(url, config=QUIET) as broker:
        assert (await broker.stats("q")).pending == 1, "and it was left as it was"


async def test_the_script_applied_by_hand_gives_a_schema_that_opens(
    url: str, schema: str, console: Console
) -> None:
    layout = find_layout(url)
    assert layout is not None
    script = layout.script()
    assert script.startswith("BEGIN;")
    assert script.rstrip().endswith("COMMIT;")
    console.execute(script)
    assert await layout.apply() == (NEWEST, NEWEST)
    async with Broker(url, config=QUIET) as broker:
        await use_every_verb(broker)


# Bringing up to date.


def create_layout(schema: str, newest: int) -> str:
    """The SQL that makes a schema as a dayjob did that knew no newer layout."""
    statements = Statements(schema)
    parts = [f"CREATE SCHEMA {quoted(schema)};"]
    for number, sql in migrations():
        if number <= newest:
            parts += [statements.placed(sql), _mark(statements, number)]
    return "\n".join(parts)


KEPT = """
INSERT INTO {schema}.jobs (
    id, queue, state, task, payload, priority, max_attempts, enqueued_at, run_at, dedup_until
) VALUES (gen_random_uuid(), 'old', 'pending', '', 'kept', 1000, 3, 1, 1, 'claimed');
INSERT INTO {schema}.counts (queue, pending) VALUES ('old', 1);
"""


@pytest.mark.parametrize("layout", range(1, NEWEST))
async def test_an_older_layout_is_brought_up_to_date_with_what_it_holds(
    url: str, schema: str, console: Console, layout: int
) -> None:
    console.execute(create_layout(schema, layout) + KEPT.format(schema=schema))
    async with Broker(url, config=QUIET) as broker:
        job = await claim_one(broker, "old")
        assert job.payload == b"kept"
        await broker.ack(job)
        await use_every_verb(broker)
    found = find_layout(url)
    assert found is not None
    assert await found.apply() == (NEWEST, NEWEST)


async def test_an_older_layout_is_brought_up_to_date_by_one_of_many(
    url: str, schema: str, console: Console
) -> None:
    console.execute(create_layout(schema, 1) + KEPT.format(schema=schema))
    brokers = [Broker(url, config=QUIET) for _ in range(10)]
    await asyncio.gather(*(broker.open() for broker in brokers))
    written = await asyncio.gather(
        *(broker._engine.compare_and_set([DocumentWrite("k", "a", None, b"1")]) for broker in brokers)
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
        await together(children)
        assert await said_by_all(children) == [True] * 20
        async with Broker(url, config=QUIET) as broker:
            assert (await broker.stats("q")).pending == 20
            assert (await broker._engine.documents("k"))[1] == []
    assert [await child.ended() for child in children] == [0] * 20


async def test_a_table_of_somebody_else_is_not_taken_for_a_new_one(
    url: str, schema: str, console: Console
) -> None:
    console.execute(create_layout(schema, 1))
    console.execute(f"CREATE TABLE {schema}.notes (mine int)")
    with pytest.raises(ConfigError, match="holds tables of somebody else"):
        await Broker(url, config=QUIET).open()
    found = console.execute(f"SELECT value FROM {schema}.meta WHERE key = 'layout'").fetchall()
    assert found == [("1",)], "and it was left as it was"


# Names.


@pytest.mark.parametrize(
    "name",
    ['quo"te', "apo'stro''phe", "two  words ", "dayjob.x", "dayjob.jobs", "ünïcødé 🐘", "$1 %s {}", "A;--"],
)
async def test_any_name_will_do_for_the_schema(name: str, console: Console) -> None:
    url = with_options(server_url(), schema=quote(name, safe=""))
    try:
        async with Broker(url, config=QUIET) as broker, Broker(url, config=QUIET) as other:
            await use_every_verb(broker)
            waiting = other.claim("woken", wait=20)
            enqueued = await broker.enqueue("woken")
            assert [job.id for job in await within(waiting)] == [enqueued.id]
        found = console.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [name]).fetchall()
        assert ("jobs",) in found
    finally:
        console.execute(f"DROP SCHEMA IF EXISTS {quoted(name)} CASCADE")


@pytest.mark.parametrize("name", ["", "x" * 57, "🐘" * 15])
def test_a_name_that_the_server_would_cut_short_is_refused(name: str) -> None:
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


async def test_a_role_that_may_only_use_what_is_there_is_enough_once_it_is_there(
    server: PrivateServer,
) -> None:
    async with Broker(server.url, config=QUIET):
        """The owner has made the tables."""
    await server.fetch("CREATE ROLE worker LOGIN PASSWORD 'secret'")
    await server.fetch("GRANT USAGE ON SCHEMA dayjob TO worker")
    await server.fetch("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dayjob TO worker")
    async with Broker(as_role(server.url, "worker"), config=QUIET) as broker:
        await use_every_verb(broker)


async def test_a_role_that_owns_nothing_is_told_what_to_do(server: PrivateServer) -> None:
    await server.fetch("CREATE ROLE nobody LOGIN PASSWORD 'secret'")
    with pytest.raises(ConfigError, match="may not create the tables") as caught:
        await Broker(as_role(server.url, "nobody"), config=QUIET).open()
    assert 'CREATE SCHEMA "dayjob" AUTHORIZATION role' in str(caught.value)
    assert "dayjob migrate --sql" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert await server.fetch("SELECT FROM pg_namespace WHERE nspname = 'dayjob'") == []


async def test_a_role_that_may_not_even_look_is_told_what_to_do(server: PrivateServer) -> None:
    async with Broker(server.url, config=QUIET):
        """The tables are there, and somebody else's."""
    await server.fetch("CREATE ROLE nobody LOGIN PASSWORD 'secret'")
    with pytest.raises(ConfigError, match="may not use the schema 'dayjob'"):
        await Broker(as_role(server.url, "nobody"), config=QUIET).open()


async def test_a_role_that_may_not_bring_the_schema_up_to_date_is_told_what_to_do(
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
