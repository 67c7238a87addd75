"""Requeue and purge of selected dead jobs leave all other jobs unchanged."""

from __future__ import annotations

from dayjob import Broker, Job, JobState
from tests.support.arrange import KEEP_ALL, OpenBroker, quiet

UNKNOWN = "0197f0f0-0000-7000-8000-000000000000"


async def make_dead(broker: Broker, queue: str, count: int) -> list[str]:
    ids = [(await broker.enqueue(queue, b"%d" % number)).id for number in range(count)]
    for job in await broker.claim(queue, limit=count):
        await broker.dead_letter(job, "no use")
    return ids


async def the(broker: Broker, id: str) -> Job:
    job = await broker.get(id)
    assert job is not None
    return job


async def test_purge_removes_the_selected_dead_jobs_only(broker: Broker) -> None:
    ids = await make_dead(broker, "q", 4)
    progress: list[int] = []
    assert await broker.purge_many(ids[1:3], on_progress=progress.append) == 2
    assert progress == [2]
    assert [job.id for job in await broker.dead_jobs("q")] == [ids[0], ids[3]]
    assert [job.id for job in await broker.latest_dead()] == [ids[3], ids[0]]
    assert (await broker.stats("q")).dead == 2


async def test_purge_leaves_jobs_that_are_not_dead(broker: Broker) -> None:
    dead = (await make_dead(broker, "q", 1))[0]
    waiting = (await broker.enqueue("q")).id
    running = (await broker.enqueue("other")).id
    await broker.claim("other")
    chosen = [waiting, running, dead, dead, UNKNOWN, "no id"]
    assert await broker.purge_many(chosen) == 1
    assert await broker.purge_many(chosen) == 0
    assert await broker.purge_many([]) == 0
    assert (await the(broker, waiting)).state is JobState.PENDING
    assert (await the(broker, running)).state is JobState.RUNNING
    assert await broker.get(dead) is None


async def test_purge_and_requeue_leave_jobs_that_are_done_or_cancelled(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    done, cancelled = [(await broker.enqueue("q")).id for _ in range(2)]
    await broker.ack((await broker.claim("q"))[0])
    await broker.cancel(cancelled)
    assert await broker.purge_many([done, cancelled]) == await broker.requeue_many([done, cancelled]) == 0
    assert [(await the(broker, id)).state for id in (done, cancelled)] == [JobState.DONE, JobState.CANCELLED]


async def test_requeue_takes_the_selected_dead_jobs_only(broker: Broker) -> None:
    ids = await make_dead(broker, "q", 4)
    waiting = (await broker.enqueue("other")).id
    progress: list[int] = []
    assert await broker.requeue_many([*ids[1:3], waiting, UNKNOWN, "no id"], on_progress=progress.append) == 2
    assert progress == [2]
    assert [job.id for job in await broker.dead_jobs("q")] == [ids[0], ids[3]]
    assert [(await the(broker, id)).state for id in ids[1:3]] == [JobState.PENDING] * 2
