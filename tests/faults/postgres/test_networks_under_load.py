"""Connections that break at any moment cost time, but no job."""

from __future__ import annotations

import pytest

from dayjob import Broker, BrokerConfig, EngineUnavailable
from dayjob.runtime.entropy import fraction
from tests.faults.postgres.load import Load, again
from tests.support.servers.postgres import with_options
from tests.support.servers.postgres_proxy import Proxy
from tests.support.workers import pause

pytestmark = pytest.mark.slow


async def test_connections_that_are_cut_repeatedly(wire: Proxy, url: str) -> None:
    load = Load(url)
    async with load.working():
        await load.progress()
        for turn in range(24):
            wire.cut()
            await pause(fraction() * 0.05)
            if turn % 8 == 7:
                await load.progress()
    await load.check()


async def test_replies_that_are_lost_repeatedly(wire: Proxy, url: str) -> None:
    load = Load(url)
    losses = []
    async with load.working():
        await load.progress()
        for _ in range(30):
            loss = wire.lose_reply("INSERT INTO")
            await loss.happens()
            losses.append(loss)
        await load.progress()
    await load.check()


async def test_a_network_that_stalls_and_then_breaks(wire: Proxy, url: str) -> None:
    load = Load(url)
    async with load.working():
        await load.progress()
        wire.stall()
        await pause(0.3)
        wire.refuse()
        wire.cut()
        wire.resume()
        await pause(0.3)
        await wire.accept()
        await load.progress()
    await load.check()


async def test_a_server_that_does_not_reply_raises_a_timeout(wire: Proxy, url: str, direct_url: str) -> None:
    async with Broker(direct_url, config=BrokerConfig(duties=False)) as broker:
        await broker.enqueue("q", b"before")
    async with Broker(with_options(url, timeout="3"), config=BrokerConfig(duties=False)) as broker:
        wire.stall()
        with pytest.raises(EngineUnavailable, match="TimeoutError"):
            await broker.enqueue("q", b"during")
        wire.resume()
        await again(lambda: broker.enqueue("q", b"after"))
        payloads = [job.payload for job in await broker.jobs("q")]
    assert payloads in ([b"before", b"after"], [b"before", b"during", b"after"])
