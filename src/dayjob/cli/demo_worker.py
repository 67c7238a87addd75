"""A worker process of the demo: ``python -m dayjob.cli.demo_worker URL NAME``.

It ends when its standard input does, so it never outlives the process that started it, however that
one ended. A claim that is cut short then is left to the reaper, like a killed worker's.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence

from dayjob.broker import Broker
from dayjob.cli.demo_jobs import EXPORT, QUEUES, configuration
from dayjob.cli.demo_tasks import perform
from dayjob.job import Job
from dayjob.settlement import Settlement

SLOTS = 20


async def work(url: str, name: str) -> None:
    async with Broker(url, config=configuration(duties=True)) as broker:
        # Where a dead process is known at once its leases may be long; elsewhere they bring its jobs back.
        lease = 30.0 if broker.capabilities.knows_orphans else 3.0
        quick = [queue for queue in QUEUES if queue != EXPORT]
        async with asyncio.TaskGroup() as lanes:
            running = [
                lanes.create_task(_lane(broker, quick, SLOTS, lease, name)),
                lanes.create_task(_lane(broker, [EXPORT], 1, lease, name)),
            ]
            await _end_of_input()
            for lane in running:
                lane.cancel()


async def _lane(broker: Broker, queues: Sequence[str], slots: int, lease: float, name: str) -> None:
    """Claim, run and settle, batch by batch; each queue has its turn to be first."""
    turn = deque(queues)
    while True:
        jobs = await broker.claim(list(turn), limit=slots, lease=lease, wait=5, worker=name)
        turn.rotate(-1)
        if jobs:
            await broker.settle_many(await _run(broker, jobs, lease))


async def _run(broker: Broker, jobs: Sequence[Job], lease: float) -> list[Settlement]:
    """Run the jobs side by side, and keep their leases for as long as that takes."""
    runs = asyncio.gather(*map(perform, jobs))
    while not runs.done():
        await asyncio.wait({runs}, timeout=lease / 3)
        if not runs.done():
            await asyncio.gather(*(broker.renew(job, lease) for job in jobs))
    return runs.result()


async def _end_of_input() -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(sys.stdin)


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
