"""A Redis server is killed again and again under load, its connections cut; every job is accounted for."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from dayjob import Broker, BrokerConfig, LeaseLost, NewJob
from dayjob.engines.redis.keys import Keys
from tests.faults.roles import AFTER, WORK, succeed
from tests.support.processes import pause
from tests.support.servers.redis import Server, client, running_server
from tests.support.servers.redis_audit import check, nobodys_seats
from tests.support.workers import until

pytestmark = pytest.mark.slow

OUTAGES = 6
QUIET = BrokerConfig(duties=False)


class Load:
    """Producers and workers, each with a broker of its own, and what they were told was done."""

    def __init__(self) -> None:
        self.stopped = False
        self.complete = False
        """Whether all that will be accepted has been."""
        self.accepted: list[str] = []
        self.acked: Counter[str] = Counter()
        self.lost: list[str] = []

    async def produce(self, broker: Broker) -> None:
        while not self.stopped:
            one = broker.enqueue(WORK)
            many = broker.enqueue_many([NewJob(WORK) for _ in range(5)])
            single, batch = await asyncio.gather(one, many)
            assert all(answer.created for answer in (single, *batch))
            self.accepted += [answer.id for answer in (single, *batch)]
            await pause(0.005)

    async def work(self, broker: Broker) -> None:
        while not (self.complete and (await broker.stats(WORK)).pending == 0):
            for job in await broker.claim(WORK, limit=20, wait=0.1):
                assert job.attempts == 1, "a claim whose answer was lost is the same claim"
                try:
                    await succeed(broker, job)
                    self.acked[job.id] += 1
                except LeaseLost:
                    self.lost.append(job.id)


async def harm(server: Server, turn: int) -> None:
    if turn % 2:
        with client(server.url) as connection:
            connection.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            connection.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    else:
        await asyncio.to_thread(server.restart)


async def test_every_accepted_job_runs_once_through_restarts_and_cut_connections() -> None:
    load = Load()
    async with running_server(appendonly="yes", appendfsync="always") as server, AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(Broker(server.url, config=QUIET)) for _ in range(4)]
        tasks = [asyncio.create_task(load.produce(broker)) for broker in brokers[:2]]
        tasks += [asyncio.create_task(load.work(broker)) for broker in brokers[2:]]
        for turn in range(OUTAGES):
            await pause(0.1 + 0.013 * turn)
            await harm(server, turn)
        await pause(0.1)
        load.stopped = True
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks[:2])
            load.complete = True
            await asyncio.gather(*tasks[2:])
        after = [job.payload.decode() for job in await brokers[0].jobs(AFTER, limit=100_000)]
        stats = await brokers[0].stats(WORK)
        with client(server.url) as connection:
            await until(lambda: not nobodys_seats(connection, Keys("dayjob")))  # all listen again
            check(connection, "dayjob")
    assert load.lost == [], "an ack that was applied was reported lost"
    assert len(load.accepted) > 50
    assert load.acked == Counter(load.accepted), "each accepted job was acked, and once"
    assert sorted(after) == sorted(load.accepted), "each ack has its follow-up, and one"
    assert (stats.done, stats.running, stats.pending) == (len(load.accepted), 0, 0)
