"""Position: the number of pending jobs before a job."""

from __future__ import annotations

from dayjob import Broker
from dayjob.engines.base import Engine
from dayjob.model.job import id_key
from dayjob.runtime.ids import new_key
from tests.support.arrange import running


async def test_position_counts_the_pending_jobs_before_a_job(broker: Broker, raw_engine: Engine) -> None:
    first = await broker.enqueue("q")
    await running(broker, priority=1)
    await broker.enqueue("q", delay=60, priority=1)
    await broker.enqueue("other")
    second = await broker.enqueue("q")
    urgent = await broker.enqueue("q", priority=5)
    await broker.enqueue("q", priority=2000)

    async def position(id: str, limit: int = 10) -> int:
        return await raw_engine.position(id_key(id), limit)

    assert [await position(job.id) for job in (urgent, first, second)] == [0, 1, 2]
    assert await position(second.id, 1) == 1


async def test_the_position_of_a_job_that_is_not_pending_is_zero(broker: Broker, raw_engine: Engine) -> None:
    await broker.enqueue("q")
    later = await broker.enqueue("q", delay=60)
    assert await raw_engine.position(id_key(later.id), 10) == 0
    assert await raw_engine.position(new_key(), 10) == 0
