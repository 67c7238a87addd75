"""The PostgreSQL engine under test: a schema on the session's server for each test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tests.support.servers import postgres
from tests.support.storages.base import EngineUnderTest


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


POSTGRES = EngineUnderTest(
    "postgres", postgres.schema_url, POSTGRES_DAMAGE, POSTGRES_UNUSABLE, _postgres_transaction
)
