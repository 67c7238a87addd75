"""A claim returns before its commit is on disk. Every other commit is on disk when its call returns."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from dayjob import Broker, BrokerConfig
from dayjob.engines.sqlite import threads
from dayjob.engines.sqlite.engine import SqliteEngine
from dayjob.engines.sqlite.store import SqliteStore
from tests.engines.sqlite.threads import query
from tests.support.bound import BOUND
from tests.support.waiting import turns, with_timeout

QUIET = BrokerConfig(duties=False)
NORMAL, FULL = 1, 2


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The logs that were synced after a commit."""
    logs: list[str] = []
    monkeypatch.setattr(threads, "sync", logs.append)
    return logs


async def settings_of(broker: Broker, *sync_later: bool) -> list[int]:
    """Return the setting that each of these calls runs with. They share a transaction."""
    writer = cast("SqliteEngine", broker._engine)._writer
    assert writer is not None
    busy, proceed = threading.Event(), threading.Event()

    async def occupy(store: SqliteStore) -> None:
        busy.set()
        proceed.wait(BOUND)

    first = asyncio.create_task(writer.run(occupy))
    assert await asyncio.to_thread(busy.wait, BOUND)
    calls = [asyncio.create_task(writer.run(query("PRAGMA synchronous"), later)) for later in sync_later]
    await turns(1)
    proceed.set()
    await first
    return [rows[0][0] for rows in await asyncio.gather(*calls)]


async def test_a_claim_does_not_wait_for_the_disk(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, proceed = threading.Event(), threading.Event()

    def sync(log: str) -> None:
        begun.set()
        proceed.wait(BOUND)

    monkeypatch.setattr(threads, "sync", sync)
    await broker.enqueue("q")
    try:
        [job] = await with_timeout(broker.claim("q"))
        assert await asyncio.to_thread(begun.wait, BOUND)
    finally:
        proceed.set()
    await broker.ack(job)


async def test_a_claim_is_synced_after_its_reply(broker: Broker, url: str, synced: list[str]) -> None:
    await broker.enqueue("q")
    assert synced == []
    await broker.claim("q")
    await broker.enqueue("q")
    assert synced == [f"{url.removeprefix('sqlite:///')}-wal"]


async def test_a_claim_without_a_job_is_not_synced(broker: Broker, synced: list[str]) -> None:
    await broker.claim("q")
    await broker.enqueue("q")
    assert synced == []


async def test_a_batch_with_another_call_is_durable(broker: Broker) -> None:
    assert await settings_of(broker, True, True) == [NORMAL, NORMAL]
    assert await settings_of(broker, True, False) == [FULL, FULL]
    assert await settings_of(broker, True) == [NORMAL]
    assert await settings_of(broker, False) == [FULL]


async def test_no_commit_is_synced_if_none_should_be(url: str, synced: list[str]) -> None:
    async with Broker(f"{url}?synchronous=normal", config=QUIET) as broker:
        await broker.enqueue("q")
        [job] = await broker.claim("q")
        await broker.ack(job)
        assert await settings_of(broker, False) == [NORMAL]
    assert synced == []
