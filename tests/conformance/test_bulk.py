"""Changes of the jobs that a filter selects, and statistics of tasks from finished jobs, on every engine."""

from __future__ import annotations

from dayjob import NewJob, Recurring
from dayjob.inspect import Filter, Inspector, task_statistics
from tests.support.arrange import KEEP_ALL, OpenBroker, claim_one, quiet
from tests.support.observe import every_job
from tests.support.waiting import WatchedClock


async def test_the_dead_jobs_of_a_filter_are_requeued_or_purged_and_no_others(
    open_broker: OpenBroker,
) -> None:
    broker = await open_broker(quiet())
    inspector = Inspector(broker)
    jobs = [NewJob("q", b'{"user": %d}' % (number % 3), task="t") for number in range(9)]
    ids = [each.id for each in await broker.enqueue_many(jobs)]
    for job in await broker.claim("q", limit=9):
        await broker.dead_letter(job, "OSError: bad")
    await broker.enqueue("q", b'{"user": 1}', task="t")
    assert await inspector.requeue(Filter(arguments=(("user", "1"),), task="t")) == 3
    assert await inspector.purge(Filter(arguments=(("user", "2"),))) == 3
    assert [job.id for job in await broker.dead_jobs()] == ids[0::3]
    stats = await broker.stats("q")
    assert (stats.pending, stats.dead) == (4, 3)
    assert len(await every_job(broker)) == 7


async def test_a_finished_job_is_found_by_its_worker_and_a_job_of_a_schedule_is_left_out(
    open_broker: OpenBroker,
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    inspector = Inspector(broker)
    await broker.schedule(Recurring("nightly", cron="0 3 * * *", task="report", queue="q"))
    await broker.trigger("nightly")
    await broker.enqueue("q", task="t")
    for job in await broker.claim("q", limit=2, worker="w-1"):
        await broker.ack(job)
    found = await inspector.page(Filter(worker="w-1", recurring=False))
    assert [job.task for job in found.jobs] == ["t"]
    assert (await inspector.page(Filter(worker="w-2"))).jobs == []


async def test_statistics_of_tasks_have_the_waits_and_durations_of_finished_jobs(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    for fails in (False, True):
        await broker.enqueue("q", task="t", max_attempts=2)
        clock.advance(3)
        job = await claim_one(broker)
        clock.advance(2)
        await broker.nack(job, "OSError: bad", delay=10)
        clock.advance(10)
        await broker.promote()
        clock.advance(1)
        job = await claim_one(broker)
        clock.advance(4)
        await (broker.dead_letter(job, "OSError: bad") if fails else broker.ack(job))
    sample = await task_statistics(broker)
    [task] = sample.tasks
    assert (sample.jobs, sample.is_complete) == (2, True)
    assert (task.jobs, task.runs, task.failures, task.dead) == (2, 4, 3, 1)
    assert task.wait is not None
    assert task.run is not None
    assert (task.wait.p50, task.wait.p95) == (1.0, 1.0)
    assert (task.run.p50, task.run.p95) == (4.0, 4.0)
