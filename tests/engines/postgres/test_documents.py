"""Documents under contention: writers wait for each other without deadlocks, and one of them succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest

from dayjob import Broker, BrokerConfig, NewJob
from dayjob.broker.retrying_storage import RetryingStorage
from dayjob.engines.base import Contended, DocumentWrite
from dayjob.engines.postgres import database, errors
from dayjob.runtime.signals import documents_topic
from tests.engines.postgres.roles import count_up
from tests.support.processes import Spawn, receive_from_all, start_together
from tests.support.servers.postgres import server_url
from tests.support.workers import until, with_timeout

Console = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
async def storage(broker: Broker) -> RetryingStorage:
    return broker._session.storage


async def values(storage: RetryingStorage) -> dict[str, bytes]:
    return {document.name: document.value for document in (await storage.documents("k"))[1]}


async def waits_for_a_lock(console: Console, schema: str) -> None:
    """Return when a session waits for a lock with a statement on that schema."""

    async def it_waits() -> bool:
        found = console.execute(
            "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s", [f"%{schema}%"]
        )
        return bool(found.fetchall())

    await until(it_waits)


# All or nothing.


@pytest.mark.parametrize("expected", [None, b"?"], ids=["absent", "another"])
@pytest.mark.parametrize("others", [["a"], ["a", "c"]], ids=["one", "several"])
async def test_inserted_documents_are_rolled_back_when_another_is_not_as_expected(
    storage: RetryingStorage, others: list[str], expected: bytes | None
) -> None:
    await storage.compare_and_set([DocumentWrite("k", "b", None, b"1")])
    writes = [DocumentWrite("k", name, None, b"2") for name in others]
    assert not await storage.compare_and_set([*writes, DocumentWrite("k", "b", expected, b"2")])
    assert await values(storage) == {"b": b"1"}


# Waiting.


@pytest.mark.parametrize(("by_then", "written"), [(b"1", True), (b"2", False)], ids=["the same", "another"])
async def test_a_locked_document_is_compared_after_its_writer_ends(
    storage: RetryingStorage, console: Console, schema: str, by_then: bytes, written: bool
) -> None:
    await storage.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    with psycopg.connect(server_url()) as other:
        other.execute(f"UPDATE {schema}.documents SET value = %s", [by_then])
        writing = asyncio.create_task(storage.compare_and_set([DocumentWrite("k", "a", b"1", b"3")]))
        await waits_for_a_lock(console, schema)
        with suppress(TimeoutError):
            await with_timeout(asyncio.shield(writing), 0.6)  # Longer than the lock timeout of one try.
        assert not writing.done()
        other.commit()
    assert await with_timeout(writing) is written
    assert await values(storage) == {"a": b"3" if written else by_then}


@pytest.mark.parametrize("committed", [True, False])
async def test_a_document_that_another_writer_inserts_is_waited_for(
    storage: RetryingStorage, console: Console, schema: str, committed: bool
) -> None:
    with psycopg.connect(server_url()) as other:
        other.execute(f"INSERT INTO {schema}.documents VALUES ('k', 'a', 1, '1')")
        writing = asyncio.create_task(storage.compare_and_set([DocumentWrite("k", "a", None, b"2")]))
        await waits_for_a_lock(console, schema)
        if committed:
            other.commit()
        else:
            other.rollback()
    assert await with_timeout(writing) is not committed
    assert await values(storage) == {"a": b"1" if committed else b"2"}


async def test_a_document_expected_to_be_absent_stays_absent_until_the_commit(
    storage: RetryingStorage,
) -> None:
    """Each of two writers expects the other's document to be absent and inserts its own: one succeeds."""
    for number in range(20):
        one, other = f"{number} one", f"{number} other"
        written = await asyncio.gather(
            storage.compare_and_set(
                [DocumentWrite("k", one, None, None), DocumentWrite("k", other, None, b"1")]
            ),
            storage.compare_and_set(
                [DocumentWrite("k", other, None, None), DocumentWrite("k", one, None, b"1")]
            ),
        )
        found = [name for name in await values(storage) if name in (one, other)]
        assert (written.count(True), len(found)) == (1, 1)


async def test_documents_with_a_job_whose_dedup_key_is_held_are_not_written(
    broker: Broker, storage: RetryingStorage, console: Console
) -> None:
    job = broker._validator.insertion(NewJob("q", dedup_key="d"))
    with psycopg.connect(server_url()) as other:
        await broker.enqueue("q", dedup_key="d", connection=other)
        with pytest.raises(Contended):
            await with_timeout(storage.compare_and_set([DocumentWrite("k", "a", None, b"1")], [job]))
        assert await values(storage) == {}
        other.rollback()
    assert await storage.compare_and_set([DocumentWrite("k", "a", None, b"1")], [job])
    assert len(await broker.jobs()) == 1


# Deadlocks.


@pytest.fixture
async def storages(
    url: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[RetryingStorage]]:
    """Storages with a long lock timeout, so that a deadlock is detected as one."""
    monkeypatch.setitem(database.SESSION_SETTINGS, "lock_timeout", "30s")
    brokers = [Broker(url, config=BrokerConfig(duties=False)) for _ in range(3)]
    await asyncio.gather(*(broker.open() for broker in brokers))
    yield [broker._session.storage for broker in brokers]
    await asyncio.gather(*(broker.close() for broker in brokers))


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """The deadlocks that were met. The retries would hide them."""
    met: list[BaseException] = []

    is_transient = errors.is_transient

    def record(error: BaseException) -> bool:
        if isinstance(error, asyncpg.DeadlockDetectedError):
            met.append(error)
        return is_transient(error)

    monkeypatch.setattr(errors, "is_transient", record)
    return met


async def test_writers_of_the_same_documents_in_different_orders_never_deadlock(
    storages: list[RetryingStorage], deadlocks: list[BaseException]
) -> None:
    names = [f"{number:02}" for number in range(40)]
    expected: bytes | None = None
    for round in range(12):
        value = None if round % 4 == 3 else b"%d" % round
        orders = [names, names[::-1], names[20:] + names[:20], names[::3] + names[1::3] + names[2::3]] * 2
        written = await asyncio.gather(
            *(
                storage.compare_and_set([DocumentWrite("k", name, expected, value) for name in order])
                for storage, order in zip(storages * 3, orders, strict=False)
            )
        )
        if expected is None and value is None:
            continue
        assert written.count(True) == 1
        assert set((await values(storages[0])).values()) == ({value} if value is not None else set())
        expected = value
    assert deadlocks == []


async def test_writers_that_insert_documents_that_others_remove_never_deadlock(
    storages: list[RetryingStorage], deadlocks: list[BaseException]
) -> None:
    """Each removes the documents that another inserts."""
    written = 0

    async def swap(storage: RetryingStorage, number: int) -> None:
        nonlocal written
        for turn in range(25):
            found = await values(storage)
            names = [f"{(number * 7 + turn * 3 + step) % 12:02}" for step in range(8)]
            writes = [
                DocumentWrite("k", name, found.get(name), None if name in found else b"%d" % turn)
                for name in names
            ]
            written += await storage.compare_and_set(writes)

    await with_timeout(
        asyncio.gather(*(swap(storage, number) for number, storage in enumerate(storages * 2))), 60
    )
    assert written > 0
    assert deadlocks == []


async def test_processes_that_count_together_lose_no_count(spawn: Spawn, broker: Broker, url: str) -> None:
    children = await spawn.many(4, count_up, url, 25)
    await start_together(children)
    await receive_from_all(children)
    assert await values(broker._session.storage) == {"counter": b"100"}
    assert sorted(int(job.payload) for job in await broker.jobs(limit=1000)) == list(range(1, 101))
    assert [await child.wait() for child in children] == [0] * 4


# Notifications.


async def test_only_an_announced_write_sends_a_notification(
    storage: RetryingStorage, url: str, schema: str
) -> None:
    messages: asyncio.Queue[str] = asyncio.Queue()
    connection = await asyncpg.connect(server_url())
    try:
        await connection.add_listener(f"dayjob {schema}", lambda *message: messages.put_nowait(message[3]))
        await storage.compare_and_set([DocumentWrite("k", "a", None, b"1")])
        await storage.compare_and_set([DocumentWrite("k", name, None, b"1") for name in "bcd"])
        assert not await storage.compare_and_set([DocumentWrite("k", "a", None, b"1")], announce=True)
        assert await storage.compare_and_set([DocumentWrite("l", "a", None, b"1")], announce=True)
        kind, name = documents_topic("l")
        assert await with_timeout(messages.get()) == f'["",[["{kind}","{name!s}",-1]]]'
        assert messages.empty()
    finally:
        await connection.close()
