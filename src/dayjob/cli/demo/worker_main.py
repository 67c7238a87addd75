"""A worker process of the demo: ``python -m dayjob.cli.demo.worker_main URL NAME``.

It ends at the end of its standard input, so it never outlives the demo, even one that was killed.
"""

from __future__ import annotations

import asyncio
import sys

from dayjob.cli.demo.tasks import EXPORT, QUEUES, make_app
from dayjob.worker import Worker

SLOTS = 20


async def work(url: str, name: str) -> None:
    """Run two workers in one process: one for the quick jobs, one for a single long export."""
    async with make_app(url) as app:
        # Without orphan detection, only an expired lease returns the jobs of a killed worker.
        lease = 30.0 if app.broker.capabilities.knows_orphans else 3.0
        quick = [queue for queue in QUEUES if queue != EXPORT]
        workers = [
            Worker(app, quick, SLOTS, shutdown_timeout=0, lease=lease, name=name),
            Worker(app, [EXPORT], 1, shutdown_timeout=0, lease=lease, name=name),
        ]
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run())
            await _end_of_input()
            for worker in workers:
                worker.stop()


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
