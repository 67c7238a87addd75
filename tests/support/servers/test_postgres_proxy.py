"""The faults of the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import AsyncConnection

from dayjob.runtime.clock import SYSTEM
from tests.support.bound import BOUND
from tests.support.servers.postgres import server_url
from tests.support.servers.postgres_proxy import Proxy, proxy
from tests.support.waiting import turns


@pytest.fixture
async def wire() -> AsyncIterator[Proxy]:
    async with proxy(server_url()) as wire:
        yield wire


async def connect(url: str) -> AsyncConnection[tuple[object, ...]]:
    return await AsyncConnection.connect(url, autocommit=True, connect_timeout=10)


@pytest.fixture
async def table() -> AsyncIterator[str]:
    """A table that two connections see."""
    async with await connect(server_url()) as connection:
        name = f"wire_{connection.info.backend_pid}"
        await connection.execute(f"CREATE TABLE {name} (name text)")
        yield name
        await connection.execute(f"DROP TABLE {name}")


async def names(table: str) -> list[object]:
    async with await connect(server_url()) as connection:
        return [name for (name,) in await (await connection.execute(f"SELECT name FROM {table}")).fetchall()]


async def test_everything_is_forwarded(wire: Proxy) -> None:
    async with await connect(wire.through(server_url())) as connection:
        cursor = await connection.execute("SELECT repeat('x', 3000000), %s::int", [7])
        text, number = (await cursor.fetchall())[0]
        assert (len(str(text)), number) == (3_000_000, 7)
        assert wire.connections == 1


async def test_a_slow_link_takes_the_time_of_its_bytes(wire: Proxy) -> None:
    async with await connect(wire.through(server_url())) as connection:
        wire.bytes_per_second, begun = 4_000_000.0, SYSTEM.elapsed()
        await connection.execute("SELECT repeat('x', 400000)")
        assert SYSTEM.elapsed() - begun >= 0.1


async def test_a_cut_breaks_a_connection_that_is_being_opened(wire: Proxy) -> None:
    """Otherwise a client of a slow machine would keep a connection through an outage."""
    wire.stall()
    opening = asyncio.create_task(connect(wire.through(server_url())))
    async with asyncio.timeout(BOUND):
        while not wire.clients:
            await SYSTEM.wait(asyncio.Event(), 0.005)
    wire.refuse()
    wire.cut()
    wire.resume()
    with pytest.raises(psycopg.OperationalError):
        await opening
    assert wire.connections == 0


async def test_a_cut_breaks_connections_and_new_ones_work(wire: Proxy) -> None:
    async with await connect(wire.through(server_url())) as connection:
        wire.cut()
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("SELECT 1")
    async with await connect(wire.through(server_url())) as connection:
        await connection.execute("SELECT 1")


async def test_refused_connections_work_after_accept(wire: Proxy) -> None:
    async with await connect(wire.through(server_url())) as before:
        wire.refuse()
        await turns(5)  # The port is closed in one of the next turns of the loop.
        with pytest.raises(psycopg.OperationalError, match="refused"):
            await connect(wire.through(server_url()))
        await before.execute("SELECT 1")
    await wire.accept()
    async with await connect(wire.through(server_url())) as connection:
        await connection.execute("SELECT 1")


async def test_a_stalled_statement_completes_after_resume(wire: Proxy) -> None:
    async with await connect(wire.through(server_url())) as connection:
        wire.stall()
        reply = asyncio.create_task(connection.execute("SELECT 1"))
        async with await connect(server_url()) as other:
            await other.execute("SELECT 1")
        assert not reply.done()
        wire.resume()
        await reply


@pytest.mark.parametrize("binary", [False, True], ids=["simple", "extended"])
async def test_a_lost_reply_is_that_of_a_commit(wire: Proxy, table: str, binary: bool) -> None:
    async with await connect(wire.through(server_url())) as connection:
        await connection.execute(f"INSERT INTO {table} VALUES ('before')")
        loss = wire.lose_reply(f"INSERT INTO {table}")
        await connection.execute("SELECT 1")
        assert not loss.has_happened
        with pytest.raises(psycopg.OperationalError):
            await connection.execute(f"INSERT INTO {table} VALUES ('lost')", None, prepare=binary)
        await loss.happens()
    assert await names(table) == ["before", "lost"]
    async with await connect(wire.through(server_url())) as connection:
        await connection.execute(f"INSERT INTO {table} VALUES ('after')")
    assert await names(table) == ["before", "lost", "after"]


async def test_in_a_transaction_the_reply_of_the_commit_is_lost(wire: Proxy, table: str) -> None:
    async with await connect(wire.through(server_url())) as connection:
        loss = wire.lose_reply(f"INSERT INTO {table}")
        await connection.execute("BEGIN")
        for name in ("first", "lost"):
            await connection.execute(f"INSERT INTO {table} VALUES (%s)", [name], prepare=True)
        assert not loss.has_happened
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("COMMIT")
        assert loss.has_happened
    assert await names(table) == ["first", "lost"]


async def test_a_failed_statement_loses_no_reply(wire: Proxy, table: str) -> None:
    async with await connect(wire.through(server_url())) as connection:
        loss = wire.lose_reply(f"INSERT INTO {table}")
        with pytest.raises(psycopg.errors.DivisionByZero):
            await connection.execute(f"INSERT INTO {table} VALUES ((1 / 0)::text)")
        with pytest.raises(psycopg.OperationalError):
            await connection.execute(f"INSERT INTO {table} VALUES ('lost')")
        assert loss.has_happened
    assert await names(table) == ["lost"]
