"""Opening: many at once, and during outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from dayjob import Broker, BrokerConfig, EngineUnavailable
from dayjob.runtime.clock import SYSTEM
from tests.support.servers.postgres import schema_of, schema_url, server_url, with_options
from tests.support.servers.postgres_proxy import Proxy, proxy
from tests.support.workers import with_timeout

QUIET = BrokerConfig(duties=False)


@pytest.fixture
async def wire() -> AsyncIterator[Proxy]:
    async with proxy(server_url()) as wire:
        yield wire


async def test_many_open_a_new_schema_at_once(tmp_path: Path) -> None:
    brokers = [Broker(schema_url(tmp_path), config=QUIET) for _ in range(20)]
    try:
        await with_timeout(asyncio.gather(*(broker.open() for broker in brokers)))
        await asyncio.gather(*(broker.enqueue("q") for broker in brokers))
        assert (await brokers[0].stats("q")).pending == 20
    finally:
        for broker in brokers:
            await broker.close()


async def test_an_unreachable_server_fails_within_the_timeout(wire: Proxy, tmp_path: Path) -> None:
    wire.refuse()
    begun = SYSTEM.elapsed()
    with pytest.raises(EngineUnavailable, match="ConnectionRefusedError") as raised:
        await Broker(with_options(wire.through(schema_url(tmp_path)), timeout="0.5"), config=QUIET).open()
    assert SYSTEM.elapsed() - begun < 10
    assert ":***@" in str(raised.value), "no password is shown"
    assert isinstance(raised.value.__cause__, OSError)


async def test_a_server_that_does_not_reply_fails_within_the_timeout(wire: Proxy, tmp_path: Path) -> None:
    wire.stall()
    begun = SYSTEM.elapsed()
    with pytest.raises(EngineUnavailable, match="TimeoutError"):
        await Broker(with_options(wire.through(schema_url(tmp_path)), timeout="0.5"), config=QUIET).open()
    assert SYSTEM.elapsed() - begun < 10


async def test_opening_succeeds_when_the_server_comes_back(wire: Proxy, tmp_path: Path) -> None:
    wire.refuse()
    broker = Broker(wire.through(schema_url(tmp_path)), config=QUIET)
    opening = asyncio.create_task(broker.open())
    await wire.accept()
    async with await with_timeout(opening):
        await broker.enqueue("q")


@pytest.mark.parametrize("statement", ["CREATE SCHEMA", "CREATE TABLE", "layout"])
async def test_a_migration_whose_reply_was_lost_is_not_repeated(
    wire: Proxy, tmp_path: Path, statement: str
) -> None:
    loss = wire.lose_reply(statement)
    async with Broker(wire.through(schema_url(tmp_path)), config=QUIET) as broker:
        assert loss.has_happened
        await broker.enqueue("q")
    assert tables(schema_of(tmp_path)) >= {"jobs", "meta"}


async def test_an_interrupted_migration_is_rolled_back_and_repeated(wire: Proxy, tmp_path: Path) -> None:
    """The connection is cut between the first statement of the migration and its commit."""
    url = wire.through(schema_url(tmp_path))
    cut = asyncio.Event()

    def is_first(statement: str) -> bool:
        if "CREATE TABLE" in statement and not cut.is_set():
            cut.set()
            wire.cut()
        return False

    wire.lose_reply(is_first)
    async with Broker(url, config=QUIET) as broker:
        assert cut.is_set()
        await broker.enqueue("q")
        assert (await broker.stats("q")).pending == 1


def tables(schema: str) -> set[str]:
    with psycopg.connect(server_url()) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])
        return {name for (name,) in found}
