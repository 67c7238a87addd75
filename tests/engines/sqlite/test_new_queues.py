"""A queue becomes known with its first job, in the same batch as whatever else."""

from __future__ import annotations

from uuid import UUID

from dayjob import Broker, NewJob

FIRST, SECOND = str(UUID(int=1)), str(UUID(int=2))


async def test_a_job_whose_namesake_was_not_stored_is_on_its_own_new_queue(broker: Broker) -> None:
    jobs = [
        NewJob("q", id=FIRST, dedup_key="key"),
        NewJob("q", id=SECOND, dedup_key="key"),
        NewJob("new", id=SECOND),
    ]
    answers = await broker.enqueue_many(jobs)
    assert [(answer.id, answer.created) for answer in answers] == [
        (FIRST, True),
        (FIRST, False),
        (SECOND, True),
    ]
    assert [(job.id, job.queue) for job in await broker.jobs()] == [(FIRST, "q"), (SECOND, "new")]
    assert [job.id for job in await broker.claim("new")] == [SECOND]


async def test_a_job_that_exists_makes_no_queue_known(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q", id=FIRST), NewJob("new", id=FIRST)])
    await broker.enqueue("newer", id=FIRST)
    assert await broker.queues() == ["q"]
