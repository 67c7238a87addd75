"""A full disk: calls fail with ``EngineUnavailable``, acknowledged jobs stay, and free space repairs it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, setrlimit
from typing import Any

import pytest

from dayjob import Broker, BrokerConfig, EngineUnavailable, NewJob
from tests.engines.sqlite.threads import on_writer
from tests.support.processes import Spawn, send_to_test

QUIET = BrokerConfig(duties=False)
BULK = b"x" * 10_000


async def fill(broker: Broker, most: int = 10_000) -> tuple[list[str], str]:
    """Enqueue until it fails. Return the acknowledged ids, and the error."""
    ids = []
    for _ in range(most):
        try:
            ids.append((await broker.enqueue("q", BULK)).id)
        except EngineUnavailable as error:
            return ids, str(error)
    raise AssertionError("the disk did not become full")


async def test_a_full_database_refuses_new_jobs_and_keeps_the_stored_ones(
    path: Path, url: str, broker: Broker
) -> None:
    [(pages,)] = await on_writer(broker, "PRAGMA page_count")
    await on_writer(broker, f"PRAGMA max_page_count = {pages + 100}")
    ids, error = await fill(broker)
    assert len(ids) > 10
    assert url in error
    assert "full" in error
    assert "make room" in error
    for _ in range(3):
        with pytest.raises(EngineUnavailable):
            await broker.enqueue_many([NewJob("q", BULK)] * 10)
    assert [job.id for job in await broker.jobs("q", limit=10_000)] == ids
    assert (await broker.stats("q")).pending == len(ids)

    await on_writer(broker, "PRAGMA max_page_count = 1000000")
    ids.append((await broker.enqueue("q", BULK)).id)
    assert [job.id for job in await broker.claim("q", limit=10_000)] == ids
    assert sound(path)


async def test_smaller_writes_succeed_after_a_batch_that_did_not_fit(broker: Broker) -> None:
    for _ in range(50):
        await broker.enqueue("q", BULK)
    [(pages,)] = await on_writer(broker, "PRAGMA page_count")
    await on_writer(broker, f"PRAGMA max_page_count = {pages + 10}")
    with pytest.raises(EngineUnavailable):
        await broker.enqueue_many([NewJob("q", BULK)] * 20)
    for job in await broker.claim("q", limit=50):
        await broker.ack(job)
    stats = await broker.stats("q")
    assert (stats.pending, stats.running, stats.done) == (0, 0, 50)
    await broker.enqueue_many([NewJob("q", BULK)] * 20)


async def write_within_limits(url: str, limit: int) -> None:
    """Fill a file whose size the operating system limits; then remove the limit."""
    async with Broker(url, config=QUIET) as broker:
        before = [(await broker.enqueue("q", BULK)).id for _ in range(5)]
        setrlimit(RLIMIT_FSIZE, (limit, RLIM_INFINITY))
        ids, error = await fill(broker)
        stored: Any = [job.id for job in await broker.jobs("q", limit=10_000)]
        assert stored == before + ids, "the acknowledged jobs are stored, and no others"
        setrlimit(RLIMIT_FSIZE, (RLIM_INFINITY, RLIM_INFINITY))
        after = [(await broker.enqueue("q", BULK)).id for _ in range(5)]
        send_to_test([before + ids + after, error])


@pytest.mark.slow
async def test_a_process_survives_a_full_disk(path: Path, url: str, spawn: Spawn) -> None:
    child = await spawn(write_within_limits, url, 1_000_000)
    acknowledged, error = await child.receive()
    assert await child.wait() == 0
    assert len(acknowledged) > 20
    assert url in error
    assert "check the file and its disk" in error
    async with Broker(url, config=QUIET) as broker:
        assert [job.id for job in await broker.claim("q", limit=10_000)] == acknowledged
    assert sound(path)


def sound(path: Path) -> bool:
    connection = sqlite3.connect(path)
    try:
        answer: tuple[str] = connection.execute("PRAGMA integrity_check").fetchone()
        return answer == ("ok",)
    finally:
        connection.close()
