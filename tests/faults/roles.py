"""Producers and workers that are killed at any moment.

Each writes every acknowledged operation to a log file of its own, after the acknowledgement. The log outlives
the process.
"""

from __future__ import annotations

import asyncio
import os
from itertools import count

from msgspec.structs import replace

from dayjob import Broker, BrokerConfig, Job, LeaseLost, NewJob, QueueConfig, Retention, Retry
from tests.support.processes import pause, send_to_test, wait_for_test

CONFIG = BrokerConfig(
    default=QueueConfig(retry=Retry.fixed(attempts=20, delay=0)), retention=Retention(cancelled=3600)
)
"""Enough attempts that kills alone make no job dead. Only successes are not kept."""

WORK, AFTER = "work", "after"
BATCH = 2000


class Log:
    """An append-only log file without a buffer."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


async def produce(url: str, log_path: str) -> None:
    """Enqueue without end, single jobs and batches, and log each acknowledged id."""
    log = Log(log_path)
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        send_to_test("ready")

        async def one(number: int) -> None:
            log.write((await broker.enqueue(WORK, b"%d" % number)).id)

        async def several() -> None:
            for answer in await broker.enqueue_many([NewJob(WORK, b"%d" % number) for number in range(5)]):
                log.write(answer.id)

        while True:
            await asyncio.gather(*map(one, range(10)), several())
            await pause(0.02)


async def produce_batches(url: str, log_path: str) -> None:
    """Enqueue batches without end, each with its own queue and kv write, and log each acknowledged batch."""
    log = Log(log_path)
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        send_to_test("ready")
        for number in count():
            queue = f"{os.getpid()} {number}"
            first, *rest = [NewJob(queue) for _ in range(BATCH)]
            await broker.enqueue_many([*rest, replace(first, kv={queue.encode(): b"stored"})])
            log.write(queue)


async def work(url: str, log_path: str) -> None:
    """Claim and settle without end, and log each acknowledged settlement."""
    log = Log(log_path)
    async with Broker(url, config=CONFIG) as broker:
        send_to_test("ready")
        while True:
            jobs = await broker.claim(WORK, limit=20, wait=1)
            await asyncio.gather(*(settle(broker, job, log) for job in jobs))


async def settle(broker: Broker, job: Job, log: Log) -> None:
    """Settle by the payload: most jobs succeed with a follow-up and a kv write, some fail once, some die."""
    try:
        if job.payload == b"3":
            await broker.dead_letter(job, "three")
            log.write(f"dead {job.id}")
        elif job.payload == b"5" and job.attempts == 1:
            await broker.nack(job, "five")
            log.write(f"failed {job.id}")
        else:
            await succeed(broker, job)
            log.write(f"done {job.id}")
    except LeaseLost:
        log.write(f"lost {job.id}")


async def succeed(broker: Broker, job: Job) -> None:
    """Ack with a follow-up and a kv write that name the job."""
    name = job.id.encode()
    await broker.ack(job, enqueue=[NewJob(AFTER, name)], kv={name: b"done"})


async def settle_late(url: str, lease: float, log_path: str) -> None:
    """Claim jobs, and ack them at the test's signal, long after their leases expired."""
    log = Log(log_path)
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        jobs = await broker.claim(WORK, limit=10, lease=lease)
        send_to_test("ready")
        await wait_for_test()
        for job in jobs:
            await settle(broker, job, log)
        send_to_test("done")
