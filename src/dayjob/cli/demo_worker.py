"""A worker process of the demo: ``python -m dayjob.cli.demo_worker URL NAME``.

It ends when its standard input does, so it never outlives the process that started it, however that
one ended.
"""

from __future__ import annotations

import asyncio
import sys

from dayjob.cli.demo_tasks import EXPORT, QUEUES, make_app
from dayjob.worker import Worker

SLOTS = 20


async def work(url: str, name: str) -> None:
    """Two workers in one process: one for the many quick jobs, one for a single long export."""
    async with make_app(url) as app:
        # Where a dead process is known at once its leases may be long; elsewhere they bring its jobs back.
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
