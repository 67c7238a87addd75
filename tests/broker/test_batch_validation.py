"""A job is validated in the same way alone and after others in a batch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import astuple, replace

from dayjob import Broker, BrokerConfig, Limit, NewJob, QueueConfig
from dayjob.engines.base import Insertion

PLAIN = NewJob("q", b"1", "task")

CONFIG = BrokerConfig(
    duties=False,
    max_payload=100,
    queues={
        "limited": QueueConfig(limit=Limit(running=1)),
        "fair": QueueConfig(fair="tenant"),
        "bounded": QueueConfig(max_pending=10),
        "urgent": QueueConfig(priority=1, max_attempts=7),
    },
)

VALID: list[dict[str, Any]] = [
    {}, {"payload": bytearray(b"2")}, {"task": ""}, {"task": "other"}, {"queue": "urgent"},
    {"queue": "limited"}, {"queue": "fair"}, {"queue": "bounded"}, {"priority": 5}, {"max_attempts": 9},
    {"headers": {"a": "b"}}, {"tenant": "t"}, {"dedup_key": "k"}, {"kv": {b"a": b"b"}}, {"delay": 5},
    {"run_at": datetime(2030, 1, 1, tzinfo=UTC)}, {"expires": 60}, {"limits": ["api"]},
    {"id": "0190a1b2-c3d4-7e5f-8a6b-7c8d9eafb0c1"},
]  # fmt: skip

INVALID: list[dict[str, Any]] = [
    {"payload": "text"}, {"payload": bytes(101)}, {"queue": ""}, {"queue": 5}, {"queue": None},
    {"task": "\0"}, {"task": 5}, {"priority": -1}, {"max_attempts": 0}, {"headers": {"a": 1}}, {"tenant": ""},
    {"dedup_until": "never"}, {"dedup_key": ""}, {"dedup": "latest"}, {"dedup_for": 5}, {"kv": {"a": b"b"}},
    {"delay": -1}, {"expires": "soon"}, {"limits": "api"}, {"units": {"api": 2}}, {"id": "5"},
]  # fmt: skip


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker("memory://", config=CONFIG) as broker:
        yield broker


def without_key(insertion: Insertion) -> tuple[Any, ...]:
    return astuple(insertion)[1:]


@pytest.mark.parametrize("queue", ["q", "limited", "fair", "bounded", "urgent"])
@pytest.mark.parametrize("options", VALID, ids=str)
async def test_a_job_of_a_batch_is_stored_as_alone(
    broker: Broker, queue: str, options: dict[str, Any]
) -> None:
    first = replace(PLAIN, queue=queue)
    job = replace(first, **options)
    validator = broker._validator
    batch = validator.insertions([first, job, first])
    assert [without_key(each) for each in batch] == [
        without_key(validator.insertion(each)) for each in (first, job, first)
    ]
    assert len({each.key for each in batch}) == 3


@pytest.mark.parametrize("options", INVALID, ids=str)
async def test_a_job_of_a_batch_is_refused_as_alone(broker: Broker, options: dict[str, Any]) -> None:
    job = replace(PLAIN, **options)
    with pytest.raises(Exception) as alone:  # noqa: PT011 - the next line compares it
        await broker.enqueue_job(job)
    with pytest.raises(type(alone.value)) as in_batch:
        await broker.enqueue_many([PLAIN, job])
    assert str(in_batch.value) == str(alone.value)


async def test_a_value_that_is_no_job_is_refused_in_a_batch(broker: Broker) -> None:
    with pytest.raises(TypeError, match="pass a NewJob"):
        await broker.enqueue_many([PLAIN, "job"])  # type: ignore[list-item]
    assert (await broker.stats("q")).pending == 0
