"""The engines under test. A new one is one entry in ``ENGINES``."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from tests.servers import postgres


@dataclass(frozen=True)
class EngineUnderTest:
    """How to reach an engine's storage, and how to harm it."""

    name: str

    url: Callable[[Path], str]
    """The URL of a fresh storage that belongs to the directory; the same directory, the same storage."""

    corrupt: Mapping[str, Callable[[Path, str], None]] = field(default_factory=dict)
    """Ways to make the stored record of a job undecodable. Needed if jobs are stored in encoded form."""

    unusable: Mapping[str, Callable[[Path], str]] = field(default_factory=dict)
    """URLs that can't be opened, by the reason: each makes what is in the way and returns the URL."""

    connect: Callable[[Path], AbstractContextManager[Any]] | None = None
    """A user's own connection to the storage, with an open transaction. Needed for transactional enqueue."""

    def __str__(self) -> str:
        return self.name


# Memory.


def memory_url(directory: Path) -> str:
    return f"memory://{directory.name}"


# SQLite.


def sqlite_url(directory: Path) -> str:
    return f"sqlite:///{directory}/jobs.db"


def _sqlite(directory: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(directory / "jobs.db", timeout=20, isolation_level=None))


def _sqlite_transaction(directory: Path) -> closing[sqlite3.Connection]:
    connection = sqlite3.connect(directory / "jobs.db", timeout=20, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return closing(connection)


def _sqlite_damage(assignment: str) -> Callable[[Path, str], None]:
    def damage(directory: Path, id: str) -> None:
        with _sqlite(directory) as connection:
            changed = connection.execute(
                f"UPDATE dayjob_jobs SET {assignment} WHERE id = ?", (UUID(id).bytes,)
            ).rowcount
        assert changed == 1

    return damage


SQLITE_DAMAGE = {
    assignment: _sqlite_damage(assignment)
    for assignment in (
        "headers = x'c1ff00'",
        "headers = x'920102'",
        "headers = 'text'",
        "payload = 'text'",
        "payload = 5",
        "task = x'00ff'",
        "task = CAST(x'ff' AS TEXT)",
        "tenant = x'00ff'",
        "tenant = CAST(x'61ff62' AS TEXT)",
        "attempts = 'many'",
        "max_attempts = 'many'",
        "epoch = x'00'",
        "run_at = 'soon'",
        "enqueued_at = 1.5",
    )
}


def _not_a_database(directory: Path) -> str:
    (directory / "jobs.db").write_bytes(b"this is no database\n" * 100)
    return sqlite_url(directory)


def _parent_is_a_file(directory: Path) -> str:
    (directory / "file").write_text("in the way")
    return f"sqlite:///{directory}/file/jobs.db"


def _is_a_folder(directory: Path) -> str:
    (directory / "jobs.db").mkdir()
    return sqlite_url(directory)


def _no_such_folder(directory: Path) -> str:
    return f"sqlite:///{directory}/missing/jobs.db"


def _from_the_future(directory: Path) -> str:
    with _sqlite(directory) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE dayjob_meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL)")
        connection.execute("INSERT INTO dayjob_meta VALUES ('layout', 9999)")
    return sqlite_url(directory)


def _option(text: str) -> Callable[[Path], str]:
    return lambda directory: f"{sqlite_url(directory)}?{text}"


SQLITE_UNUSABLE: dict[str, Callable[[Path], str]] = {
    "not a database": _not_a_database,
    "parent is a file": _parent_is_a_file,
    "is a folder": _is_a_folder,
    "no such folder": _no_such_folder,
    "schema from the future": _from_the_future,
    "unknown option": _option("colour=blue"),
    "bad synchronous": _option("synchronous=perhaps"),
    "bad busy_timeout": _option("busy_timeout=soon"),
    "no path": lambda directory: "sqlite:///",
    "a host": lambda directory: "sqlite://host/jobs.db",
}


# PostgreSQL.


def _postgres(directory: Path) -> closing[psycopg.Connection[tuple[Any, ...]]]:
    return closing(psycopg.connect(postgres.server_url(), autocommit=True))


def _postgres_transaction(directory: Path) -> closing[psycopg.Connection[tuple[Any, ...]]]:
    return closing(psycopg.connect(postgres.server_url()))


def _postgres_damage(assignment: str) -> Callable[[Path, str], None]:
    def damage(directory: Path, id: str) -> None:
        with _postgres(directory) as connection:
            statement = f'UPDATE "{postgres.schema_of(directory)}".jobs SET {assignment} WHERE id = %s'
            changed = connection.execute(statement, (id,)).rowcount
        assert changed == 1

    return damage


POSTGRES_DAMAGE = {
    assignment: _postgres_damage(assignment)
    for assignment in (
        "headers = '[1, 2]'",
        "headers = '\"text\"'",
        "headers = '{\"h\": 1}'",
        "headers = 'null', errors = '{no json}', progress = '{}'",
    )
}


def _postgres_from_the_future(directory: Path) -> str:
    url = postgres.schema_url(directory)
    schema = postgres.schema_of(directory)
    with _postgres(directory) as connection:
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        connection.execute(
            f"""CREATE TABLE "{schema}".meta AS SELECT 'layout'::text AS key, '9999'::text AS value"""
        )
    return url


def _postgres_tables_of_others(directory: Path) -> str:
    url = postgres.schema_url(directory)
    with _postgres(directory) as connection:
        schema = postgres.schema_of(directory)
        connection.execute(f'CREATE SCHEMA "{schema}" CREATE TABLE jobs (id int)')
    return url


def _postgres_option(**options: str) -> Callable[[Path], str]:
    return lambda directory: postgres.with_options(postgres.schema_url(directory), **options)


POSTGRES_UNUSABLE: dict[str, Callable[[Path], str]] = {
    "schema from the future": _postgres_from_the_future,
    "tables of others": _postgres_tables_of_others,
    "unknown option": _postgres_option(colour="blue"),
    "bad pgbouncer": _postgres_option(pgbouncer="perhaps"),
    "bad connections": _postgres_option(connections="0"),
    "bad timeout": _postgres_option(timeout="soon"),
    "bad poll": _postgres_option(poll="-1"),
    "unknown database": lambda _: f"{postgres.server_url()}_that_is_not_there",
}


ENGINES: list[EngineUnderTest] = [
    EngineUnderTest("memory", memory_url, unusable={"unknown option": lambda _: "memory://x?colour=blue"}),
    EngineUnderTest("sqlite", sqlite_url, SQLITE_DAMAGE, SQLITE_UNUSABLE, _sqlite_transaction),
    EngineUnderTest(
        "postgres", postgres.schema_url, POSTGRES_DAMAGE, POSTGRES_UNUSABLE, _postgres_transaction
    ),
]
