"""A transaction with an enqueue stays the caller's: its lock timeout, its aborted state, its preparation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.pq import TransactionStatus

from dayjob import Broker, BrokerConfig, ConfigError, Enqueued
from tests.support.arrange import claim_one
from tests.support.observe import check_counters
from tests.support.servers.postgres import server_url
from tests.support.servers.private_postgres import private_server
from tests.support.workers import until, with_timeout

QUIET = BrokerConfig(duties=False)

Session = psycopg.AsyncConnection[Any]


# A dedup key that another open transaction holds.


@pytest.fixture
async def holder() -> AsyncIterator[Session]:
    """The connection of the transaction that holds the key."""
    async with await psycopg.AsyncConnection.connect(server_url()) as connection:
        yield connection
        await connection.rollback()


@pytest.fixture
async def waiter() -> AsyncIterator[Session]:
    """The connection of the transaction that waits for the key."""
    async with await psycopg.AsyncConnection.connect(server_url()) as connection:
        yield connection
        await connection.rollback()


async def test_the_lock_timeout_of_the_caller_ends_the_wait_for_a_held_key(
    broker: Broker, holder: Session, waiter: Session
) -> None:
    held = await broker.enqueue("q", dedup_key="held", connection=holder)
    await waiter.execute("SET LOCAL lock_timeout = '50ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        await with_timeout(broker.enqueue("q", dedup_key="held", connection=waiter))
    await waiter.rollback()
    await holder.commit()
    assert await broker.enqueue("q", dedup_key="held", connection=waiter) == Enqueued(held.id, False)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_transaction_without_a_lock_timeout_waits_until_the_holder_of_the_key_ends(
    broker: Broker,
    holder: Session,
    waiter: Session,
    console: psycopg.Connection[tuple[Any, ...]],
    ending: str,
) -> None:
    def waits() -> bool:
        query = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        return console.execute(query, [waiter.info.backend_pid]).fetchone() is not None

    held = await broker.enqueue("q", dedup_key="held", connection=holder)
    waiting = asyncio.create_task(broker.enqueue("q", dedup_key="held", connection=waiter))
    await until(waits)
    await (holder.commit() if ending == "commit" else holder.rollback())
    enqueued = await with_timeout(waiting)
    await waiter.commit()
    assert enqueued.created is (ending == "rollback")
    assert (enqueued.id == held.id) is (ending == "commit")
    assert (await claim_one(broker)).id == enqueued.id
    await check_counters(broker)


# Another database.


async def test_a_database_without_the_schema_is_refused_and_its_server_aborts_the_transaction(
    broker: Broker,
) -> None:
    async with private_server() as server:
        with psycopg.connect(server.url) as caller:
            with pytest.raises(ConfigError, match="leads to another database than"):
                await broker.enqueue("q", connection=caller)
            assert caller.info.transaction_status == TransactionStatus.INERROR
            with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                caller.execute("SELECT 1")
            caller.rollback()
        other = await asyncpg.connect(server.url)
        async with other.transaction():
            with pytest.raises(ConfigError, match="leads to another database than"):
                async with other.transaction():  # A savepoint.
                    await broker.enqueue("q", connection=other)
            assert await other.fetchval("SELECT 1") == 1, "the rest of the transaction continues"
        await other.close()
    assert await broker.queues() == []


# Two-phase commit.


async def test_a_transaction_that_sends_a_notification_can_not_be_prepared() -> None:
    async with (
        private_server(max_prepared_transactions="2") as server,
        Broker(server.url, config=QUIET) as broker,
        await psycopg.AsyncConnection.connect(server.url, autocommit=True) as caller,
    ):
        await caller.execute("BEGIN")
        await caller.execute("PREPARE TRANSACTION 'without a job'")
        await caller.execute("COMMIT PREPARED 'without a job'")
        await caller.execute("BEGIN")
        await broker.enqueue("q", connection=caller)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
            await caller.execute("PREPARE TRANSACTION 'with a job'")
        assert caller.info.transaction_status == TransactionStatus.IDLE
        assert await broker.queues() == [], "the server rolled it back"
