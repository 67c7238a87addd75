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
from dayjob.runtime.clock import SYSTEM
from dayjob.testing import ManualClock
from tests.support.workers import with_timeout


def fail(limit: ConnectLimit) -> None:
    with pytest.raises(ConnectionError), limit.attempt(OSError):
        raise ConnectionRefusedError("refused")


def succeed(limit: ConnectLimit) -> None:
    with limit.attempt(OSError):
        pass


def test_after_a_failure_the_next_attempt_is_made_a_second_later() -> None:
    clock = ManualClock()
    limit = ConnectLimit(clock)
    attempts = 0
    for _ in range(1000):  # Ten seconds of tries, from any number of pools.
        try:
            with limit.attempt(OSError):
                attempts += 1
                raise ConnectionRefusedError("refused")
        except OSError:
            clock.advance(0.01)
    assert 10 / (1.5 * PAUSE) <= attempts <= 10 / PAUSE + 1
    clock.advance(2 * PAUSE)
    fail(limit)
    with pytest.raises(TooSoon, match="ConnectionRefusedError: refused"):
        succeed(limit)


def test_processes_spread_their_attempts() -> None:
    clock = ManualClock()
    limits = [ConnectLimit(clock) for _ in range(50)]
    for limit in limits:
        fail(limit)
    clock.advance(PAUSE * 1.25)
    early = 0
    for limit in limits:
        try:
            succeed(limit)
        except TooSoon:
            continue
        early += 1
    assert 5 <= early <= 45


def test_after_a_success_attempts_are_not_limited() -> None:
    clock = ManualClock()
    limit = ConnectLimit(clock)
    fail(limit)
    clock.advance(2 * PAUSE)
    with limit.attempt(OSError), pytest.raises(TooSoon), limit.attempt(OSError):
        raise AssertionError("an attempt is under way")
    for _ in range(3):
        with limit.attempt(OSError):
            succeed(limit)
    fail(limit)


def test_an_error_of_the_configuration_is_not_an_outage() -> None:
    limit = ConnectLimit(ManualClock())
    for _ in range(3):
        with pytest.raises(ValueError, match="password"), limit.attempt(OSError):
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
