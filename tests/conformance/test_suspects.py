"""A crash marks the jobs in hand as suspect, and ends none of them that a neighbour may have ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from dayjob import Broker, EndedJob, Job, JobState, NewJob
from dayjob.engines.base import Engine
from tests.support.arrange import claim_one, record
from tests.support.waiting import WatchedClock

Crash = Callable[[], Awaitable[list[EndedJob]]]


@pytest.fixture(params=["reap", "reclaim"])
def crash(request: pytest.FixtureRequest, broker: Broker, raw_engine: Engine, clock: WatchedClock) -> Crash:
    """End all claims of the worker "w" without an outcome: by the end of their leases, or with the worker."""

    async def reap() -> list[EndedJob]:
        clock.advance(31)
        return await raw_engine.reap(100)

    async def reclaim() -> list[EndedJob]:
        return await raw_engine.reclaim(["w"], 100)

    return reap if request.param == "reap" else reclaim


async def again(broker: Broker, job: Job) -> Job:
    """Claim the job again."""
    claimed = await claim_one(broker)
    assert claimed.id == job.id
    return claimed


async def test_the_jobs_of_a_crash_are_suspect_until_their_next_run_ends(
    broker: Broker, crash: Crash
) -> None:
    await broker.enqueue_many([NewJob("q"), NewJob("q")])
    jobs = await broker.claim("q", limit=2, worker="w")
    assert not any(job.suspect for job in jobs)
    assert len(await crash()) == 2
    assert all([(await record(broker, job.id)).suspect for job in jobs])
    released, failed = await broker.claim("q", limit=2, worker="w")
    assert (released.suspect, failed.suspect) == (True, True)
    await broker.release(released)
    assert await broker.nack(failed, "boom", delay=0) is JobState.PENDING
    assert (await record(broker, released.id)).suspect, "it has not run"
    assert not (await record(broker, failed.id)).suspect
    released, failed = await broker.claim("q", limit=2, worker="w")
    assert (released.suspect, failed.suspect) == (True, False)
    await broker.dead_letter(released, "hopeless")
    assert not (await record(broker, released.id)).suspect


async def test_a_finished_job_is_not_suspect(broker: Broker, crash: Crash) -> None:
    enqueued = await broker.enqueue("q", max_attempts=1)
    await claim_one(broker)
    [ended] = await crash()
    assert (ended.id, ended.state, ended.attempts) == (enqueued.id, JobState.DEAD, 1)
    assert not (await record(broker, enqueued.id)).suspect
    assert await broker.requeue(enqueued.id)
    assert not (await claim_one(broker)).suspect


async def test_the_last_attempt_of_a_job_that_was_not_suspect_does_not_count(
    broker: Broker, crash: Crash
) -> None:
    """A neighbour may have crashed the worker. The next crash is the job's own: suspects run alone."""
    await broker.enqueue("q", max_attempts=3)
    job = await claim_one(broker)
    for _ in range(2):
        assert await broker.nack(job, "boom", delay=0) is JobState.PENDING
        job = await again(broker, job)
    assert job.attempts == 3
    [ended] = await crash()
    assert (ended.state, ended.attempts) == (JobState.PENDING, 2)
    stored = await record(broker, job.id)
    assert (stored.state, stored.attempts, stored.suspect) == (JobState.PENDING, 2, True)
    assert [failure.attempt for failure in stored.errors] == [1, 2, 3]
    assert (await again(broker, job)).attempts == 3
    [ended] = await crash()
    assert (ended.state, ended.attempts) == (JobState.DEAD, 3)
    assert (await record(broker, job.id)).state is JobState.DEAD


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
async def test_a_job_that_kills_all_its_workers_is_dead_after_its_attempts(
    broker: Broker, crash: Crash, attempts: int
) -> None:
    await broker.enqueue("q", max_attempts=attempts)
    states = []
    for attempt in range(1, attempts + 1):
        assert (await claim_one(broker)).attempts == attempt
        states += [(ended.state, ended.attempts) for ended in await crash()]
    retried = [(JobState.PENDING, attempt) for attempt in range(1, attempts)]
    assert states == [*retried, (JobState.DEAD, attempts)]
    assert await broker.claim("q") == []


async def test_a_suspect_is_explained(broker: Broker, crash: Crash) -> None:
    enqueued = await broker.enqueue("q")
    await claim_one(broker)
    [ended] = await crash()
    meaning = f"{ended.error}: the worker process died or was cut off while it ran the job"
    text = f"It is suspect, so no other job starts beside it. Its last run: {meaning}."
    for state in (JobState.PENDING, JobState.RUNNING):
        reason = (await broker.explain(enqueued.id)).reasons[-1]
        assert (reason.code, reason.text, reason.data) == ("suspect", text, {"error": ended.error}), state
        await broker.claim("q", worker="w")
    await crash()
    await claim_one(broker)
    await crash()
    [reason] = (await broker.explain(enqueued.id)).reasons
    assert reason.text.endswith(f"after 3 of 3 attempts: {meaning}")
