"""Transactional enqueue: the job exists if the caller's transaction commits, for engines that support it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from dayjob import Broker, DayjobError
from tests.support.arrange import claim_one
from tests.support.engines import EngineUnderTest
from tests.support.observe import every_job, everything
from tests.support.waiting import LONG, with_timeout


@pytest.fixture
def transaction(broker: Broker, engine: EngineUnderTest, tmp_path: Path) -> AbstractContextManager[Any]:
    if not broker.capabilities.transactional_enqueue:
        pytest.skip("the engine has no transactional enqueue")
    assert engine.connect is not None, "an engine with transactional enqueue needs `connect`"
    return engine.connect(tmp_path)


async def test_without_the_capability_enqueue_with_a_connection_is_refused(broker: Broker) -> None:
    if broker.capabilities.transactional_enqueue:
        pytest.skip("the engine has transactional enqueue")
    with pytest.raises(DayjobError, match="connection"):
        await broker.enqueue("q", connection=object())
    assert await every_job(broker) == []


async def test_a_job_exists_once_its_transaction_commits(
    broker: Broker, transaction: AbstractContextManager[Any]
) -> None:
    with transaction as connection:
        enqueued = await broker.enqueue("q", b"data", kv={b"k": b"v"}, dedup_key="d", connection=connection)
        assert enqueued.created
        assert await broker.get(enqueued.id) is None
        assert await broker.kv_get(b"k") is None
        assert not (await broker.enqueue("q", dedup_key="d", connection=connection)).created
        connection.execute("COMMIT")
    claim = await with_timeout(broker.claim("q", wait=LONG))
    assert [(job.id, job.payload) for job in claim] == [(enqueued.id, b"data")]
    assert await broker.kv_get(b"k") == b"v"


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_the_latest_call_and_windows_of_a_transaction_end_with_it(
    broker: Broker, engine: EngineUnderTest, tmp_path: Path, end: str
) -> None:
    if engine.connect is None:
        pytest.skip("the engine has no transactional enqueue")
    held = await broker.enqueue("q", b"1", dedup_key="d", dedup_scope="global", delay=60)
    with engine.connect(tmp_path) as connection:
        again = await broker.enqueue(
            "other", b"2", dedup_key="d", dedup_scope="global", dedup="latest", connection=connection
        )
        assert (again.id, again.created) == (held.id, False)
        window = await broker.enqueue("q", dedup_key="w", dedup_for=60, delay=5, connection=connection)
        assert window.created
        assert not (await broker.enqueue("q", dedup_key="w", dedup_for=60, connection=connection)).created
        connection.execute(end)
    if end == "ROLLBACK":
        assert [job.payload for job in await every_job(broker)] == [b"1"]
        assert (await broker.enqueue("q", dedup_key="w")).created
    else:
        [claim] = await with_timeout(broker.claim("q", wait=LONG))
        assert (claim.id, claim.payload) == (held.id, b"2")
        assert (await broker.cancel(window.id)).acted
        assert (await broker.enqueue("q", dedup_key="w")).id == window.id


async def test_a_job_never_existed_if_its_transaction_rolls_back(
    broker: Broker, transaction: AbstractContextManager[Any]
) -> None:
    before = await everything(broker)
    with transaction as connection:
        await broker.enqueue("new queue", kv={b"k": b"v"}, dedup_key="d", connection=connection)
        connection.execute("ROLLBACK")
    assert await everything(broker) == before
    assert await broker.kv_get(b"k") is None
    enqueued = await broker.enqueue("new queue", dedup_key="d")
    assert enqueued.created
    assert (await claim_one(broker, "new queue")).id == enqueued.id


async def test_bad_input_leaves_the_transaction_usable(
    broker: Broker, transaction: AbstractContextManager[Any]
) -> None:
    with transaction as connection:
        await broker.enqueue("q", connection=connection)
        with pytest.raises(ValueError, match="tenant"):
            await broker.enqueue("q", tenant="", connection=connection)
        await broker.enqueue("q", connection=connection)
        connection.execute("COMMIT")
    assert (await broker.stats("q")).pending == 2


async def test_an_object_that_is_no_connection_is_refused(
    broker: Broker, transaction: AbstractContextManager[Any]
) -> None:
    with transaction, pytest.raises((TypeError, ValueError), match="connection"):
        await broker.enqueue("q", connection=object())
    assert await every_job(broker) == []
