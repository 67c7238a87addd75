"""Counters and stored replies grow with each commit, and are kept small."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from dayjob import Broker, BrokerConfig, NewJob, QueueStats, Retention, Settlement
from dayjob.engines.postgres import database
from tests.support.arrange import claim_one
from tests.support.observe import check_counters
from tests.support.servers.postgres import server_url
from tests.support.workers import until, with_timeout

QUIET = BrokerConfig(duties=False)

FEW = 50

Console = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "FEW", FEW)


@pytest.fixture
async def brokers(url: str) -> AsyncIterator[list[Broker]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Broker(url, config=QUIET)) for _ in range(4)]


def rows(console: Console, schema: str, table: str = "counters") -> int:
    found = console.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone()
    assert found is not None
    return int(found[0])


async def use(broker: Broker, queue: str, rounds: int) -> None:
    """Enqueue a job in each round, claim and ack nine of ten: each commit adds a row of counters."""
    for number in range(rounds):
        await broker.enqueue(queue)
        if number % 10:
            await broker.ack(await claim_one(broker, queue))


async def test_rows_stay_few_and_sums_are_right_with_many_writers(
    brokers: list[Broker], console: Console, schema: str
) -> None:
    rounds = 100
    async with asyncio.TaskGroup() as group:
        for number, broker in enumerate(brokers):
            group.create_task(use(broker, f"q{number}", rounds))
    stats = await brokers[0].all_stats()
    expected = QueueStats(pending=rounds // 10, done=rounds - rounds // 10)
    assert stats == {f"q{number}": expected for number in range(4)}
    await brokers[0].sweep()
    assert rows(console, schema) == 4, "one for each queue"
    assert await brokers[1].all_stats() == stats
    await check_counters(brokers[2])


async def test_a_busy_process_folds_its_counters_without_a_sweep(
    brokers: list[Broker], console: Console, schema: str
) -> None:
    """Nearly five hundred commits without a sweep would otherwise leave as many rows."""
    most = 0
    for _ in range(15):
        await use(brokers[0], "q", 11)
        most = max(most, rows(console, schema))
    assert most < 4 * FEW
    assert await brokers[0].stats("q") == QueueStats(pending=30, done=135)


async def test_a_process_that_reads_many_rows_folds_them(
    brokers: list[Broker], console: Console, schema: str
) -> None:
    console.execute(
        f"INSERT INTO {schema}.counters (queue, pending, dead)"
        " SELECT 'q', n, -n FROM generate_series(-1000, 1000) AS n"
    )
    await brokers[0].enqueue("q")
    assert await brokers[1].stats("q") == QueueStats(pending=1)
    await until(lambda: rows(console, schema) <= 2)
    assert await brokers[1].stats("q") == QueueStats(pending=1)


async def test_uncommitted_rows_are_not_folded(brokers: list[Broker], console: Console, schema: str) -> None:
    with psycopg.connect(server_url()) as connection:
        await brokers[0].enqueue("q", connection=connection)
        await brokers[1].enqueue("q")
        await brokers[1].sweep()
        assert await brokers[1].stats("q") == QueueStats(pending=1)
        connection.commit()
    assert await brokers[1].stats("q") == QueueStats(pending=2)
    await brokers[1].sweep()
    assert rows(console, schema) == 1
    assert await brokers[1].stats("q") == QueueStats(pending=2)


async def test_a_fold_skips_locked_rows(brokers: list[Broker], console: Console, schema: str) -> None:
    """The next fold covers them."""
    for number in range(3):
        await brokers[number].enqueue("q")
    with console.transaction():
        locked = console.execute(f"SELECT FROM {schema}.counters LIMIT 1 FOR UPDATE").rowcount
        assert locked == 1
        await brokers[0].sweep()
        assert await brokers[0].stats("q") == QueueStats(pending=3)
        assert rows(console, schema) == 2
    await brokers[0].sweep()
    assert rows(console, schema) == 1
    assert await brokers[0].stats("q") == QueueStats(pending=3)


async def test_a_used_queue_stays_listed_after_a_fold(
    brokers: list[Broker], console: Console, schema: str
) -> None:
    await use(brokers[0], "used", 2)
    await brokers[0].pause("paused")
    await brokers[0].resume("paused")
    await brokers[0].sweep()
    assert await brokers[0].queues() == ["paused", "used"]
    assert rows(console, schema) == 2


async def test_replies_are_kept_for_ten_minutes_and_then_pruned(
    brokers: list[Broker], console: Console, schema: str
) -> None:
    await use(brokers[0], "q", 5)
    kept = rows(console, schema, "replies")
    assert kept >= 5
    console.execute(f"UPDATE {schema}.replies SET stored_at = stored_at - 590 * 1000000")
    await brokers[0].sweep()
    assert rows(console, schema, "replies") == kept, "a repetition may still need them"
    console.execute(f"UPDATE {schema}.replies SET stored_at = stored_at - 10 * 1000000")
    await brokers[0].enqueue("q")
    await brokers[0].sweep()
    assert rows(console, schema, "replies") == 1


def add_replies(console: Console, schema: str, age: int, count: int) -> None:
    """Store replies of that many seconds ago."""
    console.execute(
        f"INSERT INTO {schema}.replies (token, stored_at) SELECT gen_random_uuid(),"
        f" {schema}.now_us(NULL) - %s * 1000000 - n FROM generate_series(1, %s) AS n",
        (age, count),
    )


def batch_sizes(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of rows of each maintenance commit."""
    engine: Any = broker._engine
    maintain, sizes = engine._database._maintain, []

    async def counted(*arguments: Any) -> Any:
        found = await maintain(*arguments)
        sizes.append(found[0][0])
        return found

    monkeypatch.setattr(engine._database, "_maintain", counted)
    return sizes


async def test_one_sweep_prunes_all_old_replies_and_folds_all_counters_in_bounded_commits(
    brokers: list[Broker], console: Console, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet may store any number of replies between two sweeps."""
    monkeypatch.setattr(database, "BATCH", 100)
    add_replies(console, schema, 601, 2050)
    add_replies(console, schema, 590, 70)
    console.execute(f"INSERT INTO {schema}.counters (queue) SELECT 'q' FROM generate_series(1, 2050)")
    sizes = batch_sizes(brokers[0], monkeypatch)
    await brokers[0].sweep()
    assert rows(console, schema, "replies") == 70
    assert rows(console, schema) == 1
    assert max(sizes) == 100


async def test_replies_that_are_stored_in_the_same_moment_are_all_pruned(
    brokers: list[Broker], console: Console, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BATCH", 100)
    add_replies(console, schema, 700, 350)
    console.execute(f"UPDATE {schema}.replies SET stored_at = 5")
    await brokers[0].sweep()
    assert rows(console, schema, "replies") == 0


async def test_a_fold_of_more_queues_than_a_batch_ends(
    brokers: list[Broker], console: Console, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BATCH", 100)
    console.execute(
        f"INSERT INTO {schema}.counters (queue, pending) SELECT n, 0 FROM generate_series(1, 500) AS n"
    )
    await with_timeout(brokers[0].sweep())
    assert rows(console, schema) == 500


async def test_a_vacuum_does_not_lock_out_the_verbs_to_cut_off_the_end_of_a_table(
    url: str, console: Console, schema: str
) -> None:
    config = BrokerConfig(duties=False, retention=Retention(done=0))
    async with Broker(url, config=config) as broker:
        await broker.enqueue_many([NewJob("q")] * 200)
        await broker.settle_many([Settlement.ack(job) for job in await broker.claim("q", limit=200)])
    console.execute(f"DELETE FROM {schema}.counters")
    console.execute(f"DELETE FROM {schema}.replies")
    for table in ("jobs", "counters", "replies"):
        console.execute(f"VACUUM {schema}.{table}")
        size = console.execute("SELECT pg_relation_size(%s)", [f"{schema}.{table}"]).fetchone()
        assert size != (0,), f"{table} was truncated"
