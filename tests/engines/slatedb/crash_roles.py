"""A process that enqueues, claims and settles at once, until it is killed."""

from __future__ import annotations

import asyncio
from collections import Counter

from dayjob import Broker, BrokerConfig, Job, JobState, NewJob
from tests.faults.roles import CONFIG, WORK, Log, settle
from tests.support.processes import send_to_test, wait_for_test

QUIET = BrokerConfig(duties=False)


async def every_job(broker: Broker) -> dict[str, Job]:
    found: list[Job] = []
    while page := await broker.jobs(after=found[-1].id if found else None, limit=2000):
        found += page
    return {job.id: job for job in found}


async def miscounted(broker: Broker) -> list[str]:
    """Return the queues whose counters differ from the listing."""
    listed = Counter((job.queue, job.state) for job in (await every_job(broker)).values())
    return [
        f"{queue} {state}: {getattr(stats, state.value)} counted, {listed[queue, state]} listed"
        for queue, stats in (await broker.all_stats()).items()
        for state in JobState
        if state is not JobState.DONE and getattr(stats, state.value) != listed[queue, state]
    ]


async def churn(url: str, enqueued_path: str, settled_path: str) -> None:
    """On a message of the test: open, report wrong counters, and work for ever. Log the acknowledged ids."""
    enqueued, settled = Log(enqueued_path), Log(settled_path)
    send_to_test("ready")
    await wait_for_test()
    async with Broker(url, config=QUIET) as quiet:
        send_to_test(await miscounted(quiet))  # Before the duties begin to move things.
        broker = await Broker(url, config=CONFIG).open()

        async def produce() -> None:
            while True:
                one = await broker.enqueue(WORK, b"3")
                many = await broker.enqueue_many([NewJob(WORK, b"%d" % number) for number in range(8)])
                for answer in (one, *many):
                    enqueued.write(answer.id)

        async def work() -> None:
            while True:
                jobs = await broker.claim(WORK, limit=7, wait=1)
                await asyncio.gather(*(settle(broker, job, settled) for job in jobs))

        await asyncio.gather(produce(), produce(), work(), work(), work())
