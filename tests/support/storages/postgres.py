"""The PostgreSQL engine under test, with a schema of the session's server for each test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tests.support.servers import postgres
from tests.support.storages.base import EngineUnderTest


def _console(directory: Path) -> closing[psycopg.Connection[tuple[Any, ...]]]:
    return closing(psycopg.connect(postgres.server_url(), autocommit=True))


def _transaction(directory: Path) -> closing[psycopg.Connection[tuple[Any, ...]]]:
    return closing(psycopg.connect(postgres.server_url()))


def _damage(assignment: str) -> Callable[[Path, str], None]:
    def damage(directory: Path, id: str) -> None:
        with _console(directory) as connection:
            statement = f'UPDATE "{postgres.schema_of(directory)}".jobs SET {assignment} WHERE id = %s'
            changed = connection.execute(statement, (id,)).rowcount
        assert changed == 1

    return damage


POSTGRES_DAMAGE = {
    assignment: _damage(assignment)
    for assignment in (
        "headers = '[1, 2]'",
        "headers = '\"text\"'",
        "headers = '{\"h\": 1}'",
        "headers = 'null', errors = '{no json}', progress = '{}'",
    )
}


def _newer_layout(directory: Path) -> str:
    url = postgres.schema_url(directory)
    schema = postgres.schema_of(directory)
    with _console(directory) as connection:
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        connection.execute(
            f"""CREATE TABLE "{schema}".meta AS SELECT 'layout'::text AS key, '9999'::text AS value"""
        )
    return url


def _foreign_tables(directory: Path) -> str:
    url = postgres.schema_url(directory)
    with _console(directory) as connection:
        schema = postgres.schema_of(directory)
        connection.execute(f'CREATE SCHEMA "{schema}" CREATE TABLE jobs (id int)')
    return url


def _with_option(**options: str) -> Callable[[Path], str]:
    return lambda directory: postgres.with_options(postgres.schema_url(directory), **options)


POSTGRES_UNUSABLE: dict[str, Callable[[Path], str]] = {
    "newer layout": _newer_layout,
    "foreign tables": _foreign_tables,
    "unknown option": _with_option(colour="blue"),
    "bad pgbouncer": _with_option(pgbouncer="perhaps"),
    "bad connections": _with_option(connections="0"),
    "bad timeout": _with_option(timeout="soon"),
    "bad poll": _with_option(poll="-1"),
    "unknown database": lambda _: f"{postgres.server_url()}_that_is_not_there",
}


def _snapshot(directory: Path) -> Callable[[], None]:
    """A copy of the tables that writes change. Identity columns keep their values."""
    schema = postgres.schema_of(directory)
    rows: dict[str, bytes] = {}
    with _console(directory) as connection, connection.cursor() as cursor:
        for table in ("jobs", "counters", "replies", "kv", "documents", "pauses"):
            with cursor.copy(f'COPY "{schema}".{table} TO STDOUT') as copy:
                rows[table] = b"".join(map(bytes, copy))

    def restore() -> None:
        with _console(directory) as connection, connection.cursor() as cursor:
            for table, content in rows.items():
                cursor.execute(f'TRUNCATE "{schema}".{table}')
                with cursor.copy(f'COPY "{schema}".{table} FROM STDIN') as copy:
                    copy.write(content)

    return restore


POSTGRES = EngineUnderTest(
    "postgres", postgres.schema_url, POSTGRES_DAMAGE, POSTGRES_UNUSABLE, _transaction, _snapshot
)
