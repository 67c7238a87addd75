"""Debounce: the notifications of a replaced call, and windows under concurrent transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg
import pytest

from dayjob import Broker, NewJob
from dayjob.broker import batcher
from dayjob.engines.postgres.engine import PostgresEngine
from dayjob.runtime.signals import Topic, queue_topic
from tests.support.arrange import claim_one, running
from tests.support.servers.postgres import server_url
from tests.support.waiting import until, with_timeout


@pytest.fixture(autouse=True)
def no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call waits for a lock without a time limit."""
    monkeypatch.setattr(batcher, "CONTENDED_FOR", 3600.0)


LATEST: dict[str, Any] = {"dedup_key": "k", "dedup": "latest", "dedup_scope": "global"}


@pytest.mark.parametrize("verb", ["enqueue", "ack", "trigger"])
async def test_a_replaced_call_notifies_the_queue_of_its_holder(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Its own queue has the topic of the new job, which the commit sends."""
    engine = broker._engine
    assert isinstance(engine, PostgresEngine)
    published: list[Topic] = []

    def record(topics: Sequence[Topic]) -> None:
        published.extend(topics)

    await broker.enqueue("holder", delay=60, **LATEST)
    claim = await running(broker, "other")
    monkeypatch.setattr(engine._notifier, "publish", record)
    if verb == "enqueue":
        await broker.enqueue("other", **LATEST)
    elif verb == "ack":
        await broker.ack(claim, enqueue=[NewJob("other", **LATEST)])
    else:
        insertion = broker._validator.insertion(NewJob("other", **LATEST))
        assert await engine.compare_and_set([], [insertion])
    assert queue_topic("holder") in published
    assert (await claim_one(broker, "holder")).attempts == 1


async def test_a_call_waits_for_the_transaction_that_opens_the_window_of_its_key(broker: Broker) -> None:
    async with await psycopg.AsyncConnection.connect(server_url()) as connection:
        first = await broker.enqueue("q", dedup_key="k", dedup_for=60, connection=connection)
        call = asyncio.create_task(broker.enqueue("q", dedup_key="k", dedup_for=60))
        await until(partial(is_locked, "-- Open the windows"))
        await connection.commit()
    second = await with_timeout(call)
    assert (second.id, second.created) == (first.id, False)


async def test_a_call_is_stored_if_its_holder_is_claimed_while_it_waits_for_it(
    broker: Broker, schema: str
) -> None:
    first = await broker.enqueue("q", b"1", **LATEST)
    async with await psycopg.AsyncConnection.connect(server_url()) as connection:
        await connection.execute(f"SELECT FROM {schema}.jobs FOR UPDATE")
        call = asyncio.create_task(broker.enqueue("q", b"2", **LATEST))
        await until(partial(is_locked, "-- Lock the holders"))
        await connection.execute(f"UPDATE {schema}.jobs SET state = 'running', held_key = NULL")
        await connection.commit()
    second = await with_timeout(call)
    assert second.created
    assert second.id != first.id


async def is_locked(statement: str) -> bool:
    """Return whether a session waits for a lock in this statement."""
    async with await psycopg.AsyncConnection.connect(server_url(), autocommit=True) as console:
        waiting = "SELECT true FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s LIMIT 1"
        return await (await console.execute(waiting, [statement + "%"])).fetchone() is not None
