"""Documents in a shared file: reads never wait for a lock, and each writer sees the last commit."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from dayjob import Broker, BrokerConfig, EngineUnavailable, JobState, NewJob
from dayjob.engines.base import ClaimRequest, DocumentWrite, Engine
from dayjob.engines.sqlite.engine import SqliteEngine
from dayjob.engines.sqlite.statements import WIDEST
from dayjob.engines.sqlite.store import SqliteStore
from dayjob.model.job import id_key
from dayjob.runtime.signals import documents_topic
from tests.engines.sqlite.roles import count_up
from tests.engines.sqlite.threads import on_writer
from tests.support.bound import BOUND
from tests.support.processes import Spawn, receive_from_all, start_together

SHORT_TIMEOUT = "?timeout=0.2"


@pytest.fixture
def engine(broker: Broker) -> Engine:
    return broker._engine


@pytest.fixture
def locked(path: Path, engine: Engine) -> Iterator[sqlite3.Connection]:
    """Another connection, which takes the write lock with ``BEGIN IMMEDIATE``."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


async def test_reads_do_not_wait_for_the_write_lock(
    broker: Broker, engine: Engine, locked: sqlite3.Connection
) -> None:
    await engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    await broker.enqueue("q")
    last = await broker.enqueue("q")
    locked.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(BOUND):
        assert [one.value for one in (await engine.documents("k"))[1]] == [b"1"]
        assert await engine.position(id_key(last.id), 10) == 1
        assert len(await engine.reclaim(["no worker"], 10)) == 0
    writing = asyncio.create_task(engine.compare_and_set([DocumentWrite("k", "a", b"1", b"2")]))
    assert [one.value for one in (await engine.documents("k"))[1]] == [b"1"]
    assert not writing.done()
    locked.execute("COMMIT")
    async with asyncio.timeout(BOUND):
        assert await writing


async def test_a_change_during_the_wait_for_the_lock_fails_the_comparison(
    engine: Engine, locked: sqlite3.Connection
) -> None:
    await engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    locked.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(engine.compare_and_set([DocumentWrite("k", "a", b"1", b"mine")]))
    await engine.documents("k")
    locked.execute("UPDATE dayjob_documents SET value = x'32'")
    locked.execute("COMMIT")
    async with asyncio.timeout(BOUND):
        assert not await writing
    assert [one.value for one in (await engine.documents("k"))[1]] == [b"2"]


async def test_after_the_timeout_nothing_is_written(url: str, locked: sqlite3.Connection) -> None:
    async with Broker(url + SHORT_TIMEOUT, config=BrokerConfig(duties=False)) as broker:
        locked.execute("BEGIN IMMEDIATE")
        with pytest.raises(EngineUnavailable, match="stayed locked"):
            await broker._engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
        locked.execute("ROLLBACK")
        assert (await broker._engine.documents("k"))[1] == []


async def test_a_document_is_not_written_if_its_job_does_not_fit(broker: Broker, engine: Engine) -> None:
    await engine.compare_and_set([DocumentWrite("k", "a", None, b"1"), DocumentWrite("k", "b", None, b"1")])
    [(pages,)] = await on_writer(broker, "PRAGMA page_count")
    await on_writer(broker, f"PRAGMA max_page_count = {pages + 10}")
    job = broker._validator.insertion(NewJob("q", b"x" * 500_000))
    writes = [
        DocumentWrite("k", "a", b"1", b"2"),
        DocumentWrite("k", "b", b"1", None),
        DocumentWrite("k", "c", None, b""),
    ]
    with engine.signals.listen([documents_topic("k")]) as listener:
        with pytest.raises(EngineUnavailable, match="full"):
            await engine.compare_and_set(writes, [job], announce=True)
        assert not listener.is_set()
    assert [(one.name, one.value) for one in (await engine.documents("k"))[1]] == [
        ("a", b"1"),
        ("b", b"1"),
    ]
    assert await broker.jobs() == []
    await on_writer(broker, "PRAGMA max_page_count = 1000000")
    assert await engine.compare_and_set(writes, [job])


async def test_only_announced_and_written_documents_are_published(engine: Engine) -> None:
    """This holds in one process. Others are woken by every commit."""
    await engine.compare_and_set([DocumentWrite("k", "first", None, b"1")])  # Looks for earlier changes.
    with (
        engine.signals.listen([documents_topic("k")]) as listener,
        engine.signals.listen([documents_topic("l")]) as other,
    ):
        await engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
        await engine.compare_and_set([DocumentWrite("k", "a", None, b"2")], announce=True)
        await engine.documents("k")
        assert not listener.is_set()
        await engine.compare_and_set([DocumentWrite("k", "a", b"1", b"2")], announce=True)
        await engine.documents("k")
        assert listener.is_set()
        assert not other.is_set()


async def test_a_failed_call_does_not_suppress_the_topics_of_its_commit(engine: Engine) -> None:
    sqlite = cast("SqliteEngine", engine)
    all_wait = Event()

    async def wait(_: SqliteStore) -> bool:
        return all_wait.wait(BOUND)

    async def fail(_: SqliteStore) -> None:
        raise ZeroDivisionError

    async def go_on() -> None:
        all_wait.set()

    with engine.signals.listen([documents_topic("k")]) as listener:
        answers = await asyncio.gather(
            sqlite._write(wait),
            engine.compare_and_set([DocumentWrite("k", "a", None, b"1")], announce=True),
            sqlite._write(fail),
            go_on(),
            return_exceptions=True,
        )
        assert answers[0] is answers[1] is True
        assert isinstance(answers[2], ZeroDivisionError)
        await engine.documents("k")
        assert listener.is_set()


async def test_reclaim_of_more_workers_than_fit_into_one_statement(broker: Broker, engine: Engine) -> None:
    jobs = WIDEST + 20
    await broker.enqueue_many([NewJob("q")] * jobs)
    workers = [f"worker {number}" for number in range(jobs)]
    claimed = await engine.claim([ClaimRequest((("q", 60_000_000),), 1, worker) for worker in workers])
    assert {len(jobs) for jobs in claimed} == {1}
    assert len(await engine.reclaim([*workers, *workers], WIDEST + 10)) == WIDEST + 10
    assert len(await engine.reclaim(workers, WIDEST + 10)) == 10
    assert (await broker.stats("q")).pending == jobs
    assert await broker.jobs(state=JobState.RUNNING) == []


@pytest.mark.slow
async def test_many_processes_increment_a_document_without_a_lost_update(
    broker: Broker, engine: Engine, url: str, spawn: Spawn
) -> None:
    children = await spawn.many(4, count_up, url, 50)
    await start_together(children)
    lost: list[int] = await receive_from_all(children)
    assert [await child.wait() for child in children] == [0] * 4
    assert [(one.name, one.value) for one in (await engine.documents("k"))[1]] == [("count", b"200")]
    payloads = [job.payload for job in await broker.jobs("q", limit=1000)]
    assert sorted(map(int, payloads)) == list(range(1, 201)), "each count came with its one job"
    assert sum(lost) > 0, "no race took place"
