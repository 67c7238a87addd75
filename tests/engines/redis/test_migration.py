"""An older layout is raised to ours when it is opened, by whoever comes first; a newer one is left alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dayjob import Broker, BrokerConfig, ConfigError, EngineUnavailable
from dayjob.engines.base import DocumentWrite
from dayjob.engines.redis import opening
from dayjob.engines.redis.keys import LAYOUT, Keys
from dayjob.engines.redis.link import Link
from dayjob.engines.redis.scripts import script
from tests.engines.redis.conftest import QUIET
from tests.support.arrange import KEEP_ALL, cancelled, dead, done
from tests.support.observe import everything
from tests.support.servers.redis import Server, client

VERSION = Keys("dayjob").layout


def first_layout(server: Server) -> None:
    """Layout 1 is what is there without notes and without an index of failures."""
    with client(server.url) as connection:
        assert not connection.exists(Keys("dayjob").documents)
        connection.delete(Keys("dayjob").deaths)
        connection.set(VERSION, 1)


async def test_a_new_namespace_has_our_layout(server: Server, broker: Broker) -> None:
    with client(server.url) as connection:
        assert connection.get(VERSION) == b"%d" % LAYOUT == b"2"


async def test_the_first_layout_is_raised_and_keeps_its_jobs(server: Server) -> None:
    async with Broker(server.url, config=QUIET) as broker:
        await broker.enqueue("q", b"kept", dedup_key="k", kv={b"k": b"v"})
        before = await everything(broker)
    first_layout(server)
    brokers = [Broker(server.url, config=QUIET) for _ in range(8)]
    await asyncio.gather(*(broker.open() for broker in brokers))
    with client(server.url) as connection:
        assert connection.get(VERSION) == b"2"
    assert await everything(brokers[0]) == before
    written = [broker._engine.compare_and_set([DocumentWrite("k", "a", None, b"1")]) for broker in brokers]
    assert (await asyncio.gather(*written)).count(True) == 1
    for broker in brokers:
        await broker.close()


@pytest.mark.parametrize("part", [1, 4, 5, 250])
async def test_dead_jobs_of_the_first_layout_are_among_the_latest_failures(
    server: Server, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(opening, "_INDEXED", part)
    async with Broker(server.url, config=BrokerConfig(duties=False, retention=KEEP_ALL)) as broker:
        for queue in ("b", "a", "b", "c", "a"):
            await dead(broker, queue)
            await done(broker, queue)
            await cancelled(broker, queue)
        before = [await broker.latest_dead(queue) for queue in (None, "a", "b", "c")]
    first_layout(server)
    brokers = [Broker(server.url, config=QUIET) for _ in range(3)]
    await asyncio.gather(*(broker.open() for broker in brokers))
    for broker in brokers:
        found = [await broker.latest_dead(queue) for queue in (None, "a", "b", "c")]
        assert [[job.id for job in jobs] for jobs in found] == [[job.id for job in jobs] for jobs in before]
        await broker.close()


async def test_an_index_that_was_cut_short_is_completed_by_the_next_opening(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout counts as raised only when all is done; meanwhile jobs may come back to life."""
    async with Broker(server.url, config=QUIET) as broker:
        ids = [await dead(broker) for _ in range(4)]
    first_layout(server)
    monkeypatch.setattr(opening, "_INDEXED", 2)
    tend = Link.tend
    calls = 0

    async def cut_short(link: Link, verb: str, *arguments: bytes | str | int) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise EngineUnavailable("the server is gone")
        return await tend(link, verb, *arguments)

    monkeypatch.setattr(Link, "tend", cut_short)
    with pytest.raises(EngineUnavailable):
        await Broker(server.url, config=QUIET).open()
    with client(server.url) as connection:
        assert connection.get(VERSION) == b"1"
    async with Broker(server.url, config=QUIET) as broker:
        assert [job.id for job in await broker.latest_dead()] == ids[::-1]


async def test_a_full_server_can_be_opened_with_newer_code(server: Server, broker: Broker) -> None:
    id = await dead(broker)
    first_layout(server)
    with client(server.url) as connection:
        connection.config_set("maxmemory", 1)
        async with Broker(server.url, config=QUIET) as newer:
            assert connection.get(VERSION) == b"2"
            assert [job.id for job in await newer.latest_dead()] == [id]


async def test_a_layout_that_was_raised_meanwhile_is_not_lowered(server: Server, broker: Broker) -> None:
    """Between our look and our raise, newer code came first."""
    with client(server.url) as connection:
        connection.set(VERSION, 3)
        assert connection.eval(script("raise_layout").source, 1, VERSION, LAYOUT) == b"3"
        assert connection.get(VERSION) == b"3"


async def test_code_that_knows_the_first_layout_only_refuses_ours(
    server: Server, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "LAYOUT", 1)
    with pytest.raises(ConfigError, match="have layout 2 and this dayjob knows up to 1: upgrade dayjob"):
        await Broker(server.url, config=QUIET).open()
