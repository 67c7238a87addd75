"""Concurrent claims on one queue: none blocks the settlements of another, and none misses a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from dayjob import Broker, BrokerConfig, Job, NewJob
from dayjob.engines.postgres import claim as claim_module
from dayjob.engines.postgres.database import Connection, connect
from dayjob.engines.postgres.scan_hints import END, START
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.engines.postgres.statements import Statements
from dayjob.model.job import id_text
from dayjob.runtime import ids
from tests.support.bound import BOUND
from tests.support.servers.postgres import server_url, with_options
from tests.support.servers.private_postgres import private_server
from tests.support.workers import with_timeout

QUIET = BrokerConfig(duties=False)
HOUR = 3600.0

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND pid = $1"

Console = psycopg.Connection[tuple[Any, ...]]
Late = Callable[[Callable[[], Awaitable[None]], bool], Awaitable[list[str]]]


@pytest.fixture
async def connections() -> AsyncIterator[list[Any]]:
    async with AsyncExitStack() as stack:
        opened: list[Connection] = []
        for _ in range(2):
            opened.append(await connect(PostgresSettings("", server_url()), 10))
            stack.callback(opened[-1].terminate)
        yield opened


@pytest.fixture
async def late(connections: list[Any], schema: str) -> AsyncIterator[Late]:
    """Run ``meanwhile`` between the snapshot and the scan of a claim. Return its jobs. It stays open."""
    claimer, gate = connections
    claim = Statements(schema)["claim"]
    await claimer.execute("SET lock_timeout = 0")
    lock = "SELECT pg_advisory{}lock(hashtextextended($1::uuid::text, 0))"

    async def claim_late(meanwhile: Callable[[], Awaitable[None]], thorough: bool) -> list[str]:
        token = ids.new_key()
        await gate.fetch(lock.format("_"), token)
        claiming = asyncio.ensure_future(
            claimer.fetch(
                claim, None, ["q"], [30_000_000], [START[0]], [START[1]], 100, "late", token, thorough, 2**23,
                ["q"], [END[0]], [END[1]],
            )
        )  # fmt: skip
        async with asyncio.timeout(BOUND):
            while not await gate.fetchval(WAITING, claimer.get_server_pid()):
                pass
        await meanwhile()
        await gate.fetch(lock.format("_un"), token)
        return [id_text(row[0]) for row in await with_timeout(claiming) if row[0] is not None]

    async with claimer.transaction():
        yield claim_late


async def test_a_job_is_settled_while_a_concurrent_claim_is_open(broker: Broker, late: Late) -> None:
    first, second, third = [each.id for each in await broker.enqueue_many([NewJob("q")] * 3)]
    taken: list[Job] = []

    async def claim_two() -> None:
        taken.extend(await broker.claim("q", limit=2))

    assert await late(claim_two, False) == [third]
    assert [job.id for job in taken] == [first, second]
    for job in taken:
        await with_timeout(broker.ack(job))


@pytest.mark.parametrize("thorough", [False, True])
async def test_a_lock_released_during_a_claim_hides_the_job_unless_the_claim_is_thorough(
    broker: Broker, late: Late, schema: str, thorough: bool
) -> None:
    (job,) = await broker.enqueue_many([NewJob("q")])
    async with await psycopg.AsyncConnection.connect(server_url()) as holder:
        await holder.execute(f'SELECT FROM "{schema}".jobs FOR UPDATE')
        taken = await late(holder.rollback, thorough)
        left = [each.id for each in await broker.claim("q")]
    assert (taken, left) == (([job.id], []) if thorough else ([], [job.id]))


async def test_a_released_lock_does_not_hide_a_job_while_older_transactions_are_open(
    broker: Broker, console: Console, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_module, "THOROUGH", HOUR)
    assert await broker.claim("q") == []  # The thorough claim.
    (job,) = await broker.enqueue_many([NewJob("q")])
    async with await psycopg.AsyncConnection.connect(server_url()) as older:
        await older.execute("SELECT pg_current_xact_id()")
        with console.transaction(force_rollback=True):
            console.execute(f'SELECT FROM "{schema}".jobs FOR UPDATE')
        assert [each.id for each in await broker.claim("q")] == [job.id]


async def test_shared_locks_hide_a_job_until_the_next_thorough_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A set of lockers has a number of its own, which is unrelated to the age of its transactions.

    Many sets make these numbers larger than the transaction ids of a new server.
    """
    monkeypatch.setattr(claim_module, "THOROUGH", HOUR)
    bits = 12
    async with private_server(autovacuum="off") as server, AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(with_options(server.url, poll="1000"), config=QUIET))
        assert await broker.claim("q") == []  # The thorough claim.
        jobs = [each.id for each in await broker.enqueue_many([NewJob("q")] * 2**bits)]
        holders = [
            await stack.enter_async_context(await psycopg.AsyncConnection.connect(server.url))
            for _ in range(bits)
        ]
        for bit, holder in enumerate(holders):
            mine = [job for number, job in enumerate(jobs) if number >> bit & 1]
            await holder.execute("SELECT FROM dayjob.jobs WHERE id = ANY(%s) FOR KEY SHARE", [mine])
        for holder in holders:
            await holder.rollback()
        found = [job.id for job in await broker.claim("q", limit=len(jobs))]
        assert len(found) < len(jobs), "some jobs are skipped"
        monkeypatch.setattr(claim_module, "THOROUGH", 0.1)
        other = await stack.enter_async_context(Broker(with_options(server.url, poll="1000"), config=QUIET))
        assert await other.claim("another") == []  # Its first claim is thorough.
        async with asyncio.timeout(BOUND):
            while len(found) < len(jobs):
                found += [job.id for job in await other.claim("q", limit=len(jobs))]
        assert sorted(found) == jobs
