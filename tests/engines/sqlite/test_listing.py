"""Listings are the same by each of the ways to find the jobs."""

from __future__ import annotations

import itertools

import pytest

from dayjob import Broker, JobState, NewJob
from dayjob.engines.sqlite import queries

PENDING = JobState.PENDING


@pytest.fixture(params=["few jobs", "few runs", "many runs"])
def broker(request: pytest.FixtureRequest, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    if request.param != "few jobs":
        monkeypatch.setattr(queries, "_SPARSE", 0)
    if request.param == "many runs":
        monkeypatch.setattr(queries, "_MERGED", 0)
    return broker


@pytest.mark.parametrize("newest_first", [False, True])
async def test_pending_jobs_of_many_priorities_are_listed_in_id_order(
    broker: Broker, newest_first: bool
) -> None:
    pairs = itertools.cycle(itertools.product("abc", [0, 7, 2**32 - 1, 1000, 100]))
    jobs = [NewJob(queue, priority=priority, task="t") for queue, priority in itertools.islice(pairs, 40)]
    made = [one.id for one in await broker.enqueue_many(jobs)]
    await broker.enqueue_many([NewJob("d", delay=60), NewJob("a", delay=60)])
    taken = {job.id for job in await broker.claim(["a", "b", "c"], limit=5)}
    for queue in (None, "a", "c", "d", "unknown"):
        wanted = [
            id for id, job in zip(made, jobs, strict=True) if id not in taken and queue in (None, job.queue)
        ]
        if newest_first:
            wanted.reverse()
        for task, size in itertools.product((None, "t"), (4, 1000)):
            found: list[str] = []
            while page := await broker.jobs(
                queue, PENDING, task, found[-1] if found else None, size, newest_first
            ):
                assert len(page) <= size
                found += [job.id for job in page]
            assert found == wanted
