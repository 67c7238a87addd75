"""The pool: no connection stays open, whenever its caller is cancelled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from dayjob import Broker, BrokerConfig
from dayjob.engines.postgres.database import Pool, connect
from dayjob.engines.postgres.settings import PostgresSettings, read_settings
from dayjob.engines.registry import parse
from dayjob.errors import ConfigError
from tests.support.servers.postgres import server_url, with_options
from tests.support.servers.postgres_cluster import free_port
from tests.support.workers import with_timeout

QUIET = BrokerConfig(duties=False)


@pytest.fixture
def settings() -> PostgresSettings:
    return PostgresSettings("postgresql://…", server_url(), connections=1)


@dataclass
class Opened:
    """The connections opened so far; each blocks while it is set up."""

    connections: list[Any]
    stopped: asyncio.Event

    async def cancel(self, connecting: asyncio.Task[Any]) -> None:
        """Cancel the task while the connection is set up."""
        await with_timeout(self.stopped.wait())
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


async def test_a_read_takes_a_small_buffer_and_large_values_arrive(settings: PostgresSettings) -> None:
    """With 256 KiB the heap of a worker grew by 0.6 MiB a minute, though no more of it was in use."""
    connection: Any = await connect(settings, 20)
    assert connection._transport.max_size == 64 * 1024
    assert await connection.fetchval("SELECT repeat('x', 1000000)") == "x" * 1_000_000
    await connection.close()


async def test_a_connection_that_is_cancelled_while_it_is_set_up_is_closed(
    settings: PostgresSettings, opened: Opened
) -> None:
    await opened.cancel(asyncio.create_task(connect(settings, 20)))


async def test_a_cancelled_connection_frees_its_slot_in_the_pool(
    settings: PostgresSettings, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(settings)
    await opened.cancel(asyncio.create_task(pool.acquire(20)))
    monkeypatch.undo()
    connection = await with_timeout(pool.acquire(20))
    assert await connection.fetchval("SELECT 1") == 1
    pool.release(connection, sound=True)
    await pool.close()
    assert connection.is_closed()


async def test_a_failed_connection_is_not_reused(settings: PostgresSettings) -> None:
    pool = Pool(settings)
    first = await pool.acquire(20)
    pool.release(first, sound=False)
    assert first.is_closed()
    second = await pool.acquire(20)
    assert second is not first
    pool.release(second, sound=True)
    third = await pool.acquire(20)
    assert third is second, "a sound connection is reused"
    await pool.close()
    assert not third.is_closed(), "a connection in use is closed when it is released"
    pool.release(third, sound=True)
    assert third.is_closed()


async def test_a_password_with_a_slash_is_refused_and_not_shown() -> None:
    settings = PostgresSettings("postgresql://u:***@127.0.0.1/db", "postgresql://u:s3/cret@127.0.0.1/db")
    with pytest.raises(ConfigError, match="%2F for a slash") as caught:
        await connect(settings, 20)
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql+asyncpg", "postgresql+psycopg"])
async def test_urls_of_other_libraries_connect(url: str, scheme: str) -> None:
    async with Broker(url.replace("postgresql", scheme, 1), config=QUIET) as broker:
        assert (await broker.enqueue("q")).created


async def test_several_hosts_a_password_file_and_session_attributes_reach_the_driver(
    url: str, schema: str, tmp_path: Path
) -> None:
    server = urlsplit(server_url())
    address = f"{server.hostname}:{server.port}"
    passwords = tmp_path / "passwords"
    passwords.touch(0o600)
    passwords.write_text(f"*:*:*:*:{server.password}\n")
    one = f"postgresql://{server.username}@{address}{server.path}"
    hosts = one.replace(address, f"127.0.0.1:{free_port()},{address}")
    options = {"passfile": str(passwords), "schema": schema}
    async with (
        Broker(with_options(hosts, **options, target_session_attrs="read-write"), config=QUIET) as broker,
        Broker(url, config=QUIET) as direct,
    ):
        enqueued = await broker.enqueue("q")
        assert [job.id for job in await direct.claim("q")] == [enqueued.id]
    standby_only = with_options(one, **options, target_session_attrs="standby")
    with pytest.raises(asyncpg.TargetServerAttributeNotMatched):
        await connect(read_settings(parse(standby_only)), 20)
    without_password = with_options(one, passfile=str(tmp_path / "none"))
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        await connect(read_settings(parse(without_password)), 20)
