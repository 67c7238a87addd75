"""Producers and workers that are killed at any moment.

Each writes to a log of its own what it was told was done, after it was told: a line in a file outlives
the process that wrote it.
"""

from __future__ import annotations

import asyncio
import os
from itertools import count

from msgspec.structs import replace

from dayjob import Broker, BrokerConfig, Job, LeaseLost, NewJob, QueueConfig, Retention, Retry
from tests.support.processes import pause, say, told

CONFIG = BrokerConfig(
    default=QueueConfig(retry=Retry.fixed(attempts=20, delay=0)), retention=Retention(cancelled=3600)
)
"""Enough attempts that no job is dead for having been killed; only successes are not kept."""

WORK, AFTER = "work", "after"
BATCH = 2000


class Log:
    """Lines that are in the file as soon as they are written."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


async def produce(url: str, log_path: str) -> None:
    """Enqueue without end, singly and in batches; log each id that was acknowledged."""
    log = Log(log_path)
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        say("ready")

        async def one(number: int) -> None:
            log.write((await broker.enqueue(WORK, b"%d" % number)).id)

        async def several() -> None:
            for answer in await broker.enqueue_many([NewJob(WORK, b"%d" % number) for number in range(5)]):
                log.write(answer.id)

        while True:
            await asyncio.gather(*map(one, range(10)), several())
            await pause(0.02)


async def produce_batches(url: str, log_path: str) -> None:
    """Enqueue whole batches without end, each with its own queue and kv write; log what is acknowledged."""
    log = Log(log_path)
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        say("ready")
        for number in count():
            queue = f"{os.getpid()} {number}"
            first, *rest = [NewJob(queue) for _ in range(BATCH)]
            await broker.enqueue_many([*rest, replace(first, kv={queue.encode(): b"stored"})])
            log.write(queue)


async def work(url: str, log_path: str) -> None:
    """Claim and settle without end; log each settlement that was acknowledged."""
    log = Log(log_path)
    async with Broker(url, config=CONFIG) as broker:
        say("ready")
        while True:
            jobs = await broker.claim(WORK, limit=20, wait=1)
            await asyncio.gather(*(settle(broker, job, log) for job in jobs))


async def settle(broker: Broker, job: Job, log: Log) -> None:
    """By its payload: most jobs succeed with a follow-up and a kv write, some fail once, some for good."""
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
    """An ack with effects, each of which names the job."""
    name = job.id.encode()
    await broker.ack(job, enqueue=[NewJob(AFTER, name)], kv={name: b"done"})


async def settle_late(url: str, lease: float, log_path: str) -> None:
    """Claim jobs; at the test's word, which comes when their leases are long over, ack them."""
    log = Log(log_path)
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        jobs = await broker.claim(WORK, limit=10, lease=lease)
        say("ready")
        await told()
        for job in jobs:
            await settle(broker, job, log)
        say("done")
