"""Migrations: an older file gets the newest layout, once, with its content, while other processes use it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from dayjob import Broker, BrokerConfig, ConfigError, EngineUnavailable, JobState, LeaseLost
from dayjob.engines.base import DocumentWrite
from dayjob.engines.registry import find_layout
from dayjob.engines.sqlite import database
from dayjob.engines.sqlite.statements import migrations
from dayjob.model.job import NO_CLAIM
from tests.engines.sqlite.roles import open_new
from tests.support.arrange import record
from tests.support.processes import Spawn, receive_from_all, start_together

QUIET = BrokerConfig(duties=False)
NEWEST = migrations()[-1][0]
OLDER = [number for number, _ in migrations()[:-1]]


@pytest.fixture
def old_code(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A dayjob with the first layout only, until it is undone."""
    monkeypatch.setattr(database, "migrations", lambda: migrations()[:1])
    return monkeypatch


def older(path: Path, layout: int) -> None:
    """Create a file of an older layout, with a job and a kv pair."""
    with closing(sqlite3.connect(path)) as connection:
        for number, script in migrations()[:layout]:
            connection.executescript(script)
            connection.execute("INSERT OR REPLACE INTO dayjob_meta VALUES ('layout', ?)", (number,))
        connection.execute("INSERT INTO dayjob_queues (name, pending) VALUES ('q', 1)")
        insert_job(connection, bytes(range(16)), 1, "pending")
        connection.execute("INSERT INTO dayjob_kv VALUES (x'6b', x'76')")
        connection.commit()


def insert_job(connection: sqlite3.Connection, key: bytes, queue: int, state: str, **values: int) -> None:
    row = {
        "id": key, "queue_id": queue, "state": state, "priority": 1000, "max_attempts": 3, "enqueued_at": 1,
        "run_at": 1, "dedup_until": "claimed", "task": "task", "payload": b"old", **values,
    }  # fmt: skip
    columns, places = ", ".join(row), ", ".join("?" for _ in row)
    connection.execute(f"INSERT INTO dayjob_jobs ({columns}) VALUES ({places})", [*row.values()])


def layout(path: Path) -> tuple[int, list[tuple[str, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        [(number,)] = connection.execute("SELECT value FROM dayjob_meta WHERE key = 'layout'").fetchall()
        objects = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
        return number, objects


async def write_a_document(broker: Broker) -> None:
    assert await broker._engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    assert [one.name for one in (await broker._engine.documents("k"))[1]] == ["a"]


@pytest.mark.parametrize("number", OLDER)
async def test_an_older_file_is_migrated_and_keeps_its_content(
    path: Path, url: str, tmp_path: Path, number: int
) -> None:
    older(path, number)
    async with Broker(url, config=QUIET) as broker:
        [job] = await broker.claim("q")
        assert (job.task, job.payload) == ("task", b"old")
        assert await broker.kv_get(b"k") == b"v"
        await broker.ack(job)
        await write_a_document(broker)
    async with Broker(f"sqlite:///{tmp_path}/new.db"):
        pass
    assert layout(path) == layout(tmp_path / "new.db")
    assert layout(path)[0] == NEWEST


def fill_every_table(path: Path) -> None:
    """Add a row to each table, with another value in each column."""
    with closing(sqlite3.connect(path)) as connection:
        for table in tables(connection):
            row: dict[str, object] = {}
            for number, name, kind in connection.execute(
                f"SELECT cid, name, type FROM pragma_table_info('{table}')"
            ):
                row[name] = {"TEXT": f"{name} {number}", "BLOB": b"%d" % number}.get(kind, 1000 + number)
            row |= (
                {"id": bytes(range(16, 32)), "queue_id": 1, "state": "done"} if table == "dayjob_jobs" else {}
            )
            places = ", ".join("?" for _ in row)
            connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", [*row.values()])
        connection.commit()


def tables(connection: sqlite3.Connection) -> list[str]:
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'dayjob%' ORDER BY name"
    return [name for (name,) in connection.execute(sql) if name != "dayjob_meta"]


def content(path: Path, columns: dict[str, list[str]] | None = None) -> dict[str, list[dict[str, object]]]:
    """Return the rows of all tables, or the given columns of some."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        selected = columns or {table: ["*"] for table in tables(connection)}
        return {
            table: [
                dict(row) for row in connection.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY 1")
            ]
            for table, names in selected.items()
        }


@pytest.mark.parametrize("number", OLDER)
async def test_a_migration_keeps_every_value_of_every_table(path: Path, url: str, number: int) -> None:
    """SQLite can't add a column before the payload, so migrations copy the table of jobs."""
    older(path, number)
    fill_every_table(path)
    before = content(path)
    assert sum(len(rows) for rows in before.values()) >= len(before) + 3
    found = find_layout(url)
    assert found is not None
    await found.apply(print)
    if "dayjob_notes" in before:
        before["dayjob_documents"] = before.pop("dayjob_notes")
    assert content(path, {table: [*rows[0]] for table, rows in before.items()}) == before


async def test_dead_jobs_of_an_older_file_are_found_by_finish_time(path: Path, url: str) -> None:
    older(path, 1)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO dayjob_queues (name, dead) VALUES ('r', 2)")
        for number, finished in enumerate((5, 3, 9, 1)):
            insert_job(connection, bytes([number]) * 16, 1 + number % 2, "dead", finished_at=finished)
        connection.commit()
    async with Broker(url, config=QUIET) as broker:
        assert [job.key[0] for job in await broker.latest_dead()] == [2, 0, 1, 3]
        assert [job.key[0] for job in await broker.latest_dead("r")] == [1, 3]


async def test_a_claim_of_an_older_dayjob_ends_with_its_lease(path: Path, url: str) -> None:
    """It has no key, so no process can settle it."""
    older(path, 3)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE dayjob_queues SET running = 1")
        insert_job(connection, bytes(16), 1, "running", attempts=1, epoch=7, lease_expires_at=8)
        connection.commit()
    async with Broker(url, config=QUIET) as broker:
        claim = await record(broker, str(UUID(int=0)))
        assert (claim.state, claim.epoch) == (JobState.RUNNING, 7)
        with pytest.raises(LeaseLost):
            await broker.ack(replace(claim, claim=NO_CLAIM))
        assert await broker.reap() == 1
        [again] = await broker.claim("q")
        assert (again.id, again.attempts) == (claim.id, 2)
        with pytest.raises(LeaseLost):
            await broker.ack(claim)
        await broker.ack(again)


@pytest.mark.parametrize("number", OLDER)
async def test_the_command_returns_the_old_and_the_new_version(path: Path, url: str, number: int) -> None:
    older(path, number)
    found = find_layout(url)
    assert found is not None
    assert await found.apply(print) == (number, NEWEST)
    assert await found.apply(print) == (NEWEST, NEWEST)


@pytest.mark.slow
async def test_sixteen_processes_may_open_an_older_file_at_once(tmp_path: Path, spawn: Spawn) -> None:
    paths = [tmp_path / f"{number}.db" for number in range(3)]
    for path in paths:
        older(path, 1)
    children = await spawn.many(16, open_new, [f"sqlite:///{path}" for path in paths])
    for _ in paths:
        await start_together(children)
        assert set(await receive_from_all(children)) == {"closed"}
    assert [await child.wait() for child in children] == [0] * 16
    for path in paths:
        assert layout(path) == layout(paths[0])
        async with Broker(f"sqlite:///{path}", config=QUIET) as broker:
            assert (await broker.stats("q")).pending == 17
            await write_a_document(broker)


async def test_an_older_dayjob_refuses_a_migrated_file(url: str, old_code: pytest.MonkeyPatch) -> None:
    with old_code.context() as new_code:
        new_code.setattr(database, "migrations", migrations)
        async with Broker(url, config=QUIET):
            pass
    with pytest.raises(ConfigError, match=f"has layout {NEWEST} and this dayjob supports up to 1: upgrade"):
        await Broker(url, config=QUIET).open()


async def test_an_older_dayjob_with_the_file_open_keeps_working(
    path: Path, url: str, old_code: pytest.MonkeyPatch
) -> None:
    async with Broker(url, config=QUIET) as before:
        first = await before.enqueue("q")
        assert layout(path)[0] == 1
        old_code.undo()
        async with Broker(url, config=QUIET) as after:
            assert layout(path)[0] == NEWEST
            second = await after.enqueue("q")
            claimed = await before.claim("q", limit=2)
            assert [job.id for job in claimed] == [first.id, second.id]
            for job in claimed:
                await before.ack(job)
            assert (await after.stats("q")).done == 2


async def test_a_migration_that_fails_changes_nothing(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    older(path, 1)
    before = layout(path)
    broken = [*migrations(), (NEWEST + 1, "CREATE TABLE dayjob_more (a);\nCREATE TABLE dayjob_more (a);\n")]
    monkeypatch.setattr(database, "migrations", lambda: broken)
    with pytest.raises(EngineUnavailable, match="dayjob_more already exists"):
        await Broker(url, config=QUIET).open()
    assert layout(path) == before
    monkeypatch.undo()
    async with Broker(url, config=QUIET) as broker:
        assert len(await broker.claim("q")) == 1
        await write_a_document(broker)


@pytest.mark.parametrize("layout", [*OLDER, NEWEST])
async def test_the_index_of_dedup_keys_admits_one_holder(tmp_path: Path, layout: int) -> None:
    """Another program that writes to the file can't give a key to a second job."""
    path = tmp_path / "jobs.db"
    older(path, layout)
    async with Broker(f"sqlite:///{path}", config=QUIET) as broker:
        await broker.enqueue("q", dedup_key="k")
        await broker.enqueue("q")
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="UNIQUE"),
    ):
        connection.execute("UPDATE dayjob_jobs SET held_key = 'k' WHERE queue_id = 1")
