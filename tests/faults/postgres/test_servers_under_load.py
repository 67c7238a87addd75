"""A server that stops, crashes or refuses clients costs time, but no job."""

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
from tests.support.servers.private_postgres import PrivateServer, Stop, private_server
from tests.support.workers import pause, until

pytestmark = pytest.mark.slow

TERMINATE_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE starts_with(application_name, 'dayjob')"
)
TERMINATE_SOME = f"{TERMINATE_ALL} AND random() < 0.5"


@pytest.mark.parametrize("how", Stop, ids=str)
async def test_no_job_is_lost_by_restarts(server: PrivateServer, how: Stop) -> None:
    load = Load(server.url)
    async with load.working():
        for _ in range(3):
            await load.progress()
            await server.restart(how)
        await load.progress()
    await load.check()


async def test_no_job_is_lost_while_the_server_is_down(server: PrivateServer) -> None:
    load = Load(server.url)
    async with load.working():
        await load.progress()
        await server.stop(Stop.IMMEDIATE)
        await pause(0.5)
        await server.start()
        await load.progress()
    await load.check()


async def test_no_job_is_lost_by_terminated_sessions(server: PrivateServer) -> None:
    load = Load(server.url)
    ended = 0
    async with load.working():
        await load.progress()
        for turn in range(24):
            ended += len(await server.fetch(TERMINATE_ALL if turn % 4 == 0 else TERMINATE_SOME))
            await pause(fraction() * 0.05)
            if turn % 8 == 7:
                await load.progress()
    await load.check()
    assert ended > 24


async def test_no_job_is_lost_while_the_server_is_read_only(server: PrivateServer) -> None:
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


async def test_no_job_is_lost_while_others_take_all_connections() -> None:
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
    """Take all connections; terminate sessions of dayjob if there are none left."""
    taken: list[AsyncConnection[tuple[object, ...]]] = []
    while len(taken) < most:
        try:
            connection = await AsyncConnection.connect(server.url, autocommit=True)
        except psycopg.OperationalError:
            if taken:
                await taken[0].execute(TERMINATE_ALL)
            await pause(0.01)
        else:
            taken.append(await others.enter_async_context(connection))


async def test_a_long_outage_raises_its_cause_and_calls_succeed_after_it(
    server: PrivateServer,
) -> None:
    async with impatient(server) as broker:
        await server.stop(Stop.IMMEDIATE)
        await fails_with(broker, "ConnectionRefused")
        await server.start()
        await again(lambda: broker.enqueue("q", b"after"))
        assert [job.payload for job in await broker.jobs("q")] == [b"before", b"after"]


async def test_a_server_without_free_connections_raises_that_cause() -> None:
    async with private_server(max_connections="10") as server, impatient(server) as broker:
        async with AsyncExitStack() as others:
            await take_all_connections(server, 10, others)
            await fails_with(broker, "max_connections")
        await again(lambda: broker.enqueue("q", b"after"))


async def test_a_read_only_server_raises_that_cause(server: PrivateServer) -> None:
    async with impatient(server) as broker:
        await server.set("default_transaction_read_only", "on")
        await fails_with(broker, "read-only")
        assert [job.payload for job in await broker.jobs("q")] == [b"before"], "reads still work"
        await server.set("default_transaction_read_only", "off")
        await again(lambda: broker.enqueue("q", b"after"))
        assert [job.payload for job in await broker.jobs("q")] == [b"before", b"after"]


async def fails_with(broker: Broker, cause: str) -> None:
    """Wait until an enqueue fails with this cause."""

    async def has_cause() -> bool:
        with pytest.raises(EngineUnavailable) as raised:
            await broker.enqueue("q", b"during")
        return cause in str(raised.value)

    await until(has_cause)


@asynccontextmanager
async def impatient(server: PrivateServer) -> AsyncIterator[Broker]:
    """A broker with one connection and a short timeout, on a queue with one job."""
    async with Broker(server.url, config=BrokerConfig(duties=False)) as broker:
        await broker.enqueue("q", b"before")
    url = with_options(server.url, timeout="3", connections="1")
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        yield broker
