"""In an outage a process makes one connection attempt a second, with all of its pools together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dayjob.engines import connect_limit
from dayjob.engines.base import Transient
from dayjob.engines.connect_limit import PAUSE, ConnectLimit, TooSoon
from dayjob.engines.postgres.database import Pool
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.engines.redis.client import Client
from dayjob.engines.redis.settings import read_settings
from dayjob.engines.registry import parse
from dayjob.runtime.clock import SYSTEM, yield_to_loop
from dayjob.testing import ManualClock
from tests.support.workers import until, with_timeout

FAILURE = ConnectionRefusedError("refused")


def failed() -> tuple[ConnectLimit, ManualClock]:
    """Return the limit after a failed attempt, and its clock."""
    clock = ManualClock()
    limit = ConnectLimit(clock)
    assert limit.begin() == 0
    limit.end(FAILURE)
    return limit, clock


def test_after_a_failure_the_next_attempt_is_made_a_second_later() -> None:
    limit, clock = failed()
    attempts = 0
    for _ in range(1000):  # Ten seconds of tries, from any number of pools.
        clock.advance(0.01)
        if limit.begin() == 0:
            attempts += 1
            limit.end(FAILURE)
    assert 10 / (1.5 * PAUSE) - 1 <= attempts <= 10 / PAUSE


def test_processes_spread_their_attempts() -> None:
    pauses = [failed()[0].begin() for _ in range(50)]
    assert PAUSE <= min(pauses) < 1.2 * PAUSE
    assert 1.3 * PAUSE < max(pauses) <= 1.5 * PAUSE


def test_one_attempt_is_under_way_at_a_time_until_one_succeeds() -> None:
    limit, clock = failed()
    clock.advance(2 * PAUSE)
    assert limit.begin() == 0
    assert limit.begin() > 0, "an attempt is under way"
    limit.end(None)
    assert [limit.begin() for _ in range(3)] == [0, 0, 0]


async def test_a_call_fails_without_an_attempt_after_a_while() -> None:
    limit, clock = failed()
    clock.advance(2 * PAUSE)
    assert limit.begin() == 0

    async def attempt() -> None:
        async with limit.attempt(OSError):
            raise AssertionError("an attempt is under way")

    trying = asyncio.create_task(attempt())

    async def over() -> bool:
        clock.advance(0.1)
        await yield_to_loop()
        return trying.done()

    await until(over)
    with pytest.raises(TooSoon, match="ConnectionRefusedError: refused"):
        await trying


async def test_an_error_of_the_configuration_is_not_an_outage() -> None:
    limit = ConnectLimit(ManualClock())
    for _ in range(3):
        with pytest.raises(ValueError, match="password"):
            async with limit.attempt(OSError):
                raise ValueError("password")


class Attempts:
    """A server that closes each connection at once."""

    def __init__(self) -> None:
        self.count = 0
        self.port = 0

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        writer.transport.abort()


@pytest.fixture
async def attempts(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Attempts]:
    monkeypatch.setattr(connect_limit, "PAUSE", 0.2)
    attempts = Attempts()
    server = await asyncio.start_server(attempts.accept, "127.0.0.1", 0)
    attempts.port = server.sockets[0].getsockname()[1]
    async with server:
        yield attempts


POOLS = 6


async def test_all_pools_of_a_process_share_the_attempts_to_postgres(attempts: Attempts) -> None:
    dsn = f"postgresql://u:p@127.0.0.1:{attempts.port}/db?sslmode=disable"
    pools = [Pool(PostgresSettings("postgresql://…", dsn, timeout=1.0)) for _ in range(POOLS)]
    begun = SYSTEM.elapsed()
    work = (pool.run_retrying(lambda connection: connection.fetch("SELECT 1")) for pool in pools)
    replies = await with_timeout(asyncio.gather(*work, return_exceptions=True))
    assert {type(reply) for reply in replies} == {Transient}
    assert POOLS <= attempts.count <= POOLS + (SYSTEM.elapsed() - begun) / 0.2 + 1


async def test_all_clients_of_a_process_share_the_attempts_to_redis(attempts: Attempts) -> None:
    settings = read_settings(parse(f"redis://127.0.0.1:{attempts.port}"))
    clients = [Client(settings) for _ in range(POOLS)]
    begun = SYSTEM.elapsed()
    work = (client.execute_retrying(("PING",), timeout=1.0) for client in clients)
    replies = await with_timeout(asyncio.gather(*work, return_exceptions=True))
    assert {type(reply) for reply in replies} == {Transient}
    assert POOLS <= attempts.count <= 2 * POOLS + (SYSTEM.elapsed() - begun) / 0.2 + 1
    for client in clients:
        await client.close()
