"""With many listeners, transactional enqueues and waits share notifications, and no wake-up is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from dayjob import Broker, BrokerConfig
from dayjob.engines.postgres import notifier
from dayjob.engines.postgres.notifier import Notifier
from dayjob.runtime.clock import SYSTEM
from tests.support.arrange import KEEP_ALL
from tests.support.servers.postgres import server_url
from tests.support.workers import until, with_timeout

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)
HOUR = 3600.0
TRANSACTIONS = 40


@pytest.fixture(autouse=True)
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "CHECK", HOUR)


@pytest.fixture
def crowded(broker: Broker) -> Notifier:
    """The notifier of a broker that has counted 1,000 listeners: its window is 0.2 s."""
    engine: Any = broker._engine
    sender: Notifier = engine._notifier
    sender._throttle.listeners = 1000
    return sender


@pytest.fixture
def caller() -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """The caller's own connection."""
    with psycopg.connect(server_url()) as connection:
        yield connection


class Received:
    """The notifications that a process receives."""

    def __init__(self, broker: Broker) -> None:
        engine: Any = broker._engine
        self.messages: list[str] = []
        receive = engine._notifier._listener._on_message

        def counted(connection: Any, pid: int, channel: str, message: str) -> None:
            self.messages.append(message)
            receive(connection, pid, channel, message)

        engine._notifier._listener._on_message = counted


async def test_transactional_enqueues_share_notifications_and_wake_a_claim(
    broker: Broker, crowded: Notifier, caller: psycopg.Connection[tuple[Any, ...]], url: str
) -> None:
    async with Broker(url, config=QUIET) as other:
        received = Received(other)
        claimed: list[str] = []

        async def claim_all() -> None:
            while len(claimed) < TRANSACTIONS:
                claimed.extend(job.id for job in await other.claim("q", limit=10, wait=HOUR))

        claiming = asyncio.create_task(claim_all())
        await until(lambda: other._session.waiting_claims.by_queue)
        begun = SYSTEM.elapsed()
        enqueued = []
        for _ in range(TRANSACTIONS):
            enqueued.append((await broker.enqueue("q", connection=caller)).id)
            caller.commit()
        await with_timeout(claiming)
        assert sorted(claimed) == enqueued
        windows = (SYSTEM.elapsed() - begun) / crowded._throttle.window
        assert len(received.messages) <= 2 * windows + 2 < TRANSACTIONS


async def test_a_transaction_that_commits_after_its_window_wakes_a_claim(
    broker: Broker, crowded: Notifier, caller: psycopg.Connection[tuple[Any, ...]], url: str
) -> None:
    async with Broker(url, config=QUIET) as other:
        received = Received(other)
        claiming = asyncio.create_task(other.claim("q", wait=HOUR))
        await until(lambda: other._session.waiting_claims.by_queue)
        await broker.enqueue("q", connection=caller)  # Its notification starts the window.
        caller.rollback()
        enqueued = await broker.enqueue("q", connection=caller)
        await until(lambda: crowded._commit_pause > 2 * crowded._throttle.window)  # It was checked twice.
        assert crowded._uncommitted
        caller.commit()
        [job] = await with_timeout(claiming)
        assert job.id == enqueued.id
        before = len(received.messages)
        await broker.enqueue("r")
        await broker.enqueue("q", connection=caller)
        caller.rollback()
        await until(lambda: not crowded._uncommitted)
        assert sum('"q"' in message for message in received.messages[before:]) == 0


async def test_a_wait_for_a_short_job_sends_no_notification(
    broker: Broker, crowded: Notifier, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(crowded._throttle, "announce", lambda items: sent.extend(map(str, items)))
    async with Broker(url, config=QUIET) as other:
        job = await other.enqueue("q")
        waiting = asyncio.create_task(broker.wait(job.id, HOUR))
        await until(lambda: broker._engine.signals.has_listeners("job"))
        [claim] = await other.claim("q")
        await other.ack(claim)
        assert (await with_timeout(waiting)).status == "completed"
        assert sent == []


async def test_a_wait_for_a_long_job_is_announced(
    broker: Broker, crowded: Notifier, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "CROWDED_WAIT_CHECKS", (0.01,))
    async with Broker(url, config=QUIET) as other:
        idle = asyncio.create_task(other.claim("none", wait=HOUR))
        job = await other.enqueue("q")
        [claim] = await other.claim("q")
        waiting = asyncio.create_task(broker.wait(job.id, HOUR))
        engine: Any = other._engine
        await until(lambda: engine._notifier._awaited)
        await other.ack(claim)
        assert (await with_timeout(waiting)).status == "completed"
        idle.cancel()
        await asyncio.wait({idle})


async def test_the_listening_sessions_are_counted(broker: Broker, url: str) -> None:
    engine: Any = broker._engine
    async with Broker(url, config=QUIET) as one, Broker(url, config=QUIET) as two:
        claims = [asyncio.create_task(each.claim("q", wait=HOUR)) for each in (one, two)]
        await until(lambda: one._session.waiting_claims.by_queue and two._session.waiting_claims.by_queue)
        await engine._notifier._count_listeners()
        assert engine._notifier._throttle.listeners >= 2
        await broker.enqueue("q")
        await broker.enqueue("q")
        await with_timeout(asyncio.gather(*claims))
