"""A session that is terminated in the middle of a statement or a transaction costs a retry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from psycopg import AsyncConnection

from dayjob import Broker, BrokerConfig, CancelOutcome, NewJob
from tests.support.arrange import KEEP_ALL, claim_one, running
from tests.support.observe import check_counters, every_job
from tests.support.servers.postgres import schema_of, server_url
from tests.support.workers import until, with_timeout

CONFIG = BrokerConfig(retention=KEEP_ALL, duties=False)

Console = AsyncConnection[tuple[object, ...]]

MIDDLE = ["jobs", "counters", "replies"]
"""Tables whose lock stops an operation, each at a different point."""


class Interruption:
    """Stops operations at a table, and terminates their sessions."""

    def __init__(self, lock: Console, console: Console, schema: str) -> None:
        self._lock = lock
        self._console = console
        self._schema = schema

    async def of(self, operation: Callable[[], Awaitable[object]], table: str) -> None:
        """Run the operation. Terminate its session twice while it waits for the table, then let it finish."""
        await self._lock.execute(f"LOCK TABLE {self._schema}.{table} IN ACCESS EXCLUSIVE MODE")
        running = asyncio.ensure_future(operation())
        ended: set[object] = set()
        for _ in range(2):
            ended |= await self._end_waiting(ended)
        await self._lock.rollback()
        await with_timeout(running)

    async def _end_waiting(self, ended: set[object]) -> set[object]:
        found: set[object] = set()

        async def waits() -> bool:
            cursor = await self._console.execute(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s",
                [f"%{self._schema}%"],
            )
            found.update(pid for (pid,) in await cursor.fetchall() if pid not in ended)
            return bool(found)

        await until(waits)
        await self._console.execute(
            "SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [[*found]]
        )
        return found


@pytest.fixture
async def interruption(tmp_path: Path) -> AsyncIterator[Interruption]:
    async with (
        await AsyncConnection.connect(server_url()) as lock,
        await AsyncConnection.connect(server_url(), autocommit=True) as console,
    ):
        yield Interruption(lock, console, schema_of(tmp_path))


@pytest.fixture
async def broker(direct_url: str) -> AsyncIterator[Broker]:
    async with Broker(direct_url, config=CONFIG) as broker:
        yield broker
        await check_counters(broker)


@pytest.mark.parametrize("table", MIDDLE)
async def test_an_enqueue_is_stored_once(broker: Broker, interruption: Interruption, table: str) -> None:
    await interruption.of(lambda: broker.enqueue("q", b"once"), table)
    assert [job.payload for job in await every_job(broker)] == [b"once"]


@pytest.mark.parametrize("table", [*MIDDLE, "kv"])
async def test_a_keyed_enqueue_and_its_values_are_stored_once(
    broker: Broker, interruption: Interruption, table: str
) -> None:
    async def enqueue() -> None:
        assert (await broker.enqueue("q", b"once", dedup_key="key", kv={b"k": b"v"})).created

    await interruption.of(enqueue, table)
    assert [job.payload for job in await every_job(broker)] == [b"once"]
    assert await broker.kv_get(b"k") == b"v"


@pytest.mark.parametrize("table", ["jobs", "counters"])
async def test_a_claim_counts_one_attempt(broker: Broker, interruption: Interruption, table: str) -> None:
    await broker.enqueue("q", b"once", max_attempts=1)

    async def claim() -> None:
        job = await claim_one(broker)
        assert job.attempts == 1

    await interruption.of(claim, table)
    assert (await broker.stats("q")).running == 1


@pytest.mark.parametrize("table", [*MIDDLE, "kv"])
async def test_an_ack_writes_its_effects_once(broker: Broker, interruption: Interruption, table: str) -> None:
    job = await running(broker)

    async def ack() -> None:
        await broker.ack(job, result=b"r", enqueue=[NewJob("after")], kv={b"k": b"v"})

    await interruption.of(ack, table)
    assert len(await broker.jobs("after")) == 1
    assert await broker.kv_get(b"k") == b"v"
    assert (await broker.stats("q")).done == 1


@pytest.mark.parametrize("table", MIDDLE)
async def test_a_cancel_is_applied_once(broker: Broker, interruption: Interruption, table: str) -> None:
    enqueued = await broker.enqueue("q")

    async def cancel() -> None:
        assert await broker.cancel(enqueued.id) is CancelOutcome.REMOVED

    await interruption.of(cancel, table)
    assert (await broker.stats("q")).cancelled == 1
