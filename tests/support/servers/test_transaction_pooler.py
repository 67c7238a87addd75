"""The pooler keeps no session state between transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import AsyncConnection

from tests.support.servers.postgres import server_url, with_options
from tests.support.servers.transaction_pooler import Pooler, pooler


@pytest.fixture
async def pool() -> AsyncIterator[Pooler]:
    async with pooler(server_url(), size=2) as pool:
        yield pool


async def connect(pool: Pooler) -> AsyncConnection[tuple[object, ...]]:
    url = pool.through(server_url())
    return await AsyncConnection.connect(url, autocommit=True, prepare_threshold=None)


async def value(connection: AsyncConnection[tuple[object, ...]], query: str) -> object:
    return (await (await connection.execute(query)).fetchall())[0][0]


async def test_the_transactions_of_a_client_alternate_between_server_connections(pool: Pooler) -> None:
    async with await connect(pool) as connection:
        sessions = [await value(connection, "SELECT pg_backend_pid()") for _ in range(4)]
        assert sessions == [*sessions[:2], *sessions[:2]]
        assert len(set(sessions)) == 2
        async with connection.transaction():
            inside = [await value(connection, "SELECT pg_backend_pid()") for _ in range(4)]
        assert len(set(inside)) == 1


async def test_many_clients_share_the_server_connections(pool: Pooler) -> None:
    async def one(number: int) -> object:
        async with await connect(pool) as connection, connection.transaction():
            return await value(connection, f"SELECT {number}")

    assert await asyncio.gather(*map(one, range(20))) == list(range(20))


async def test_a_named_statement_is_refused_and_the_session_continues(pool: Pooler) -> None:
    async with await connect(pool) as connection:
        connection.prepare_threshold = 0
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="prepared statement"):
            await connection.execute("SELECT %s::int", [1], prepare=True)
        assert pool.refusals == 1
        connection.prepare_threshold = None
        assert await value(connection, "SELECT 2") == 2


async def test_settings_and_temporary_tables_do_not_last(pool: Pooler) -> None:
    async with await connect(pool) as connection:
        await connection.execute("SET work_mem = '5MB'")
        await connection.execute("CREATE TEMPORARY TABLE kept (name text)")
        for _ in range(2):
            assert await value(connection, "SHOW work_mem") != "5MB"
            assert await value(connection, "SELECT to_regclass('kept') IS NULL")
    assert pool.session_statements == ["SET work_mem = '5MB'"]


async def test_an_unsupported_startup_parameter_is_refused(pool: Pooler) -> None:
    url = with_options(pool.through(server_url()), options="-csearch_path%3Dother")
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter: options"):
        await AsyncConnection.connect(url)


async def test_a_client_that_leaves_inside_a_transaction_does_not_affect_others(pool: Pooler) -> None:
    for _ in range(4):
        connection = await connect(pool)
        await connection.execute("BEGIN")
        await connection.close()
    async with await connect(pool) as connection:
        assert await value(connection, "SELECT 1") == 1
