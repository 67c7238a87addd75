"""A server that stops, crashes, or turns clients away costs time, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import psycopg
import pytest
from psycopg import AsyncConnection

from dayjob import Broker, BrokerConfig, EngineUnavailable
from dayjob.runtime.entropy import fraction
from tests.faults.postgres.load import Load, again
from tests.support.servers.postgres import with_options
from tests.support.servers.private import PrivateServer, Stop, private_server
from tests.support.workers import pause, until

pytestmark = pytest.mark.slow

END_ALL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dayjob'"
END_SOME = f"{END_ALL} AND random() < 0.5"


@pytest.mark.parametrize("how", Stop, ids=str)
async def test_restarts(server: PrivateServer, how: Stop) -> None:
    load = Load(server.url)
    async with load.working():
        for _ in range(3):
            await load.progress()
            await server.restart(how)
        await load.progress()
    await load.check()


async def test_a_server_that_is_down_for_a_while(server: PrivateServer) -> None:
    load = Load(server.url)
    async with load.working():
        await load.progress()
        await server.stop(Stop.IMMEDIATE)
        await pause(0.5)
        await server.start()
        await load.progress()
    await load.check()


async def test_sessions_that_are_terminated_again_and_again(server: PrivateServer) -> None:
    load = Load(server.url)
    ended = 0
    async with load.working():
        await load.progress()
        for turn in range(24):
            ended += len(await server.fetch(END_ALL if turn % 4 == 0 else END_SOME))
            await pause(fraction() * 0.05)
            if turn % 8 == 7:
                await load.progress()
    await load.check()
    assert ended > 24


async def test_a_server_that_is_read_only_for_a_while(server: PrivateServer) -> None:
    load = Load(server.url)
    async with load.working():
        await load.progress()
        await server.set("default_transaction_read_only", "on")
        accepted = len(load.accepted)
        await pause(0.7)
        assert len(load.accepted) - accepted < 30, "it is not read-only"
        await server.set("default_transaction_read_only", "off")
        await load.progress()
    await load.check()


async def test_a_server_whose_connections_are_all_taken_by_others() -> None:
    async with private_server(max_connections="25") as server:
        load = Load(server.url)
        async with load.working():
            await load.progress()
            async with AsyncExitStack() as others:
                await take_all_connections(server, 25, others)
                await pause(0.3)
            await load.progress()
        await load.check()


async def take_all_connections(server: PrivateServer, most: int, others: AsyncExitStack) -> None:
    """Take connections, from those who have them, until no other is left."""
    taken: list[AsyncConnection[tuple[object, ...]]] = []
    while len(taken) < most:
        try:
            connection = await AsyncConnection.connect(server.url, autocommit=True)
        except psycopg.OperationalError:
            if taken:
                await taken[0].execute(END_ALL)
            await pause(0.01)
        else:
            taken.append(await others.enter_async_context(connection))


async def test_an_outage_that_lasts_is_told_with_its_cause_and_over_when_it_is_over(
    server: PrivateServer,
) -> None:
    async with hasty(server) as broker:
        await server.stop(Stop.IMMEDIATE)
        await told(broker, "ConnectionRefused")
        await server.start()
        await again(lambda: broker.enqueue("q", b"after"))
        assert [job.payload for job in await broker.jobs("q")] == [b"before", b"after"]


async def test_a_server_without_free_connections_is_told_as_such() -> None:
    async with private_server(max_connections="10") as server, hasty(server) as broker:
        async with AsyncExitStack() as others:
            await take_all_connections(server, 10, others)
            await told(broker, "max_connections")
        await again(lambda: broker.enqueue("q", b"after"))


async def test_a_server_that_is_read_only_is_told_as_such(server: PrivateServer) -> None:
    async with hasty(server) as broker:
        await server.set("default_transaction_read_only", "on")
        await told(broker, "read-only")
        assert [job.payload for job in await broker.jobs("q")] == [b"before"], "reading goes on"
        await server.set("default_transaction_read_only", "off")
        await again(lambda: broker.enqueue("q", b"after"))
        assert [job.payload for job in await broker.jobs("q")] == [b"before", b"after"]


async def told(broker: Broker, cause: str) -> None:
    """Nothing can be stored, and the error says why, if there was time to find out."""

    async def is_told() -> bool:
        with pytest.raises(EngineUnavailable) as raised:
            await broker.enqueue("q", b"during")
        return cause in str(raised.value)

    await until(is_told)


@asynccontextmanager
async def hasty(server: PrivateServer) -> AsyncIterator[Broker]:
    """A broker with one connection that gives up soon, on a queue with one job."""
    async with Broker(server.url, config=BrokerConfig(duties=False)) as broker:
        await broker.enqueue("q", b"before")
    url = with_options(server.url, timeout="1", connections="1")
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        yield broker
