"""Helpers that bring jobs into the state that a test starts from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

from dayjob import Broker, BrokerConfig, Job, JobState, QueueConfig, Retention
from dayjob.runtime.clock import Clock

DAY = timedelta(days=1)

KEEP_ALL = Retention(done=DAY, dead=DAY, cancelled=DAY)


class OpenBroker(Protocol):
    async def __call__(self, config: BrokerConfig | None = None, *, clock: Clock | None = None) -> Broker: ...


def quiet(
    *,
    default: QueueConfig | None = None,
    queues: Mapping[str, QueueConfig] | None = None,
    retention: Retention | None = None,
    max_payload: int = 1024 * 1024,
) -> BrokerConfig:
    """Return a configuration without duties."""
    return BrokerConfig(
        default=default or QueueConfig(),
        queues=queues or {},
        retention=retention or Retention(),
        max_payload=max_payload,
        duties=False,
    )


async def record(broker: Broker, id: str) -> Job:
    """Return the full record of a job that must exist."""
    job = await broker.get(id)
    assert job is not None, f"job {id} does not exist"
    return job


async def state(broker: Broker, id: str) -> JobState | None:
    job = await broker.get(id)
    return None if job is None else job.state


async def claim_one(broker: Broker, queue: str = "q", **options: Any) -> Job:
    """Claim exactly one job from the queue."""
    jobs = await broker.claim(queue, **{"worker": "w", **options})
    assert len(jobs) == 1, f"the claim from queue {queue!r} returned {len(jobs)} jobs"
    return jobs[0]


async def running(broker: Broker, queue: str = "q", **options: Any) -> Job:
    """Enqueue a job and claim it. No pending job may precede it."""
    enqueued = await broker.enqueue(queue, **options)
    job = await claim_one(broker, queue)
    assert job.id == enqueued.id
    return job


async def done(broker: Broker, queue: str = "q", **options: Any) -> str:
    job = await running(broker, queue, **options)
    await broker.ack(job)
    return job.id


async def dead(broker: Broker, queue: str = "q", reason: str = "no good", **options: Any) -> str:
    job = await running(broker, queue, **options)
    await broker.dead_letter(job, reason)
    return job.id


async def cancelled(broker: Broker, queue: str = "q", **options: Any) -> str:
    enqueued = await broker.enqueue(queue, **options)
    assert (await broker.cancel(enqueued.id)).acted
    return enqueued.id
