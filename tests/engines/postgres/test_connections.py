"""Connections to the server: none is left open, whenever whoever wanted it gives up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from dayjob.engines.postgres.place import Place
from dayjob.engines.postgres.pool import Pool, connect
from tests.support.servers.postgres import server_url
from tests.support.workers import within


@pytest.fixture
def place() -> Place:
    return Place("postgresql://…", server_url(), connections=1)


@dataclass
class Opened:
    """The connections that were opened since; each stops short of being set up."""

    connections: list[Any]
    stopped: asyncio.Event

    async def give_up(self, connecting: asyncio.Task[Any]) -> None:
        """Give up while the connection is being set up."""
        await within(self.stopped.wait())
        connecting.cancel()
        await asyncio.wait({connecting})
        assert connecting.cancelled()
        assert [connection.is_closed() for connection in self.connections] == [True]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    opened = Opened([], asyncio.Event())
    really = asyncpg.connect

    async def open_one(*arguments: Any, **options: Any) -> Any:
        connection = await really(*arguments, **options)
        opened.connections.append(connection)
        return connection

    async def never(*_: Any, **__: Any) -> None:
        opened.stopped.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncpg, "connect", open_one)
    monkeypatch.setattr(asyncpg.Connection, "set_type_codec", never)
    return opened


async def test_a_connection_that_is_given_up_while_it_is_set_up_is_closed(
    place: Place, opened: Opened
) -> None:
    await opened.give_up(asyncio.create_task(connect(place, 20)))


async def test_the_pool_has_room_again_when_a_connection_was_given_up(
    place: Place, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(place)
    await opened.give_up(asyncio.create_task(pool.acquire(20)))
    monkeypatch.undo()
    connection = await within(pool.acquire(20))
    assert await connection.fetchval("SELECT 1") == 1
    pool.release(connection, sound=True)
    await pool.close()
    assert connection.is_closed()


async def test_a_connection_that_failed_is_not_handed_out_again(place: Place) -> None:
    pool = Pool(place)
    first = await pool.acquire(20)
    pool.release(first, sound=False)
    assert first.is_closed()
    second = await pool.acquire(20)
    assert second is not first
    pool.release(second, sound=True)
    third = await pool.acquire(20)
    assert third is second, "what is sound is kept"
    await pool.close()
    assert not third.is_closed(), "what is in use is closed when it is given back"
    pool.release(third, sound=True)
    assert third.is_closed()
