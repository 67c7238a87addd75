"""A Redis server is killed repeatedly under load, and its connections are cut; every job runs once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from dayjob import Broker, BrokerConfig, LeaseLost, NewJob
from dayjob.engines.redis.keys import Keys
from tests.faults.roles import AFTER, WORK, succeed
from tests.support.bound import BOUND
from tests.support.processes import pause
from tests.support.servers.redis import Server, client, running_server
from tests.support.servers.redis_audit import check, stale_waiting_claims
from tests.support.workers import until

pytestmark = pytest.mark.slow

OUTAGES = 6
QUIET = BrokerConfig(duties=False)


class Load:
    """Producers and workers, each with its own broker, and the operations that succeeded for them."""

    def __init__(self) -> None:
        self.stopped = False
        self.complete = False
        """Whether the producers have ended."""
        self.accepted: list[str] = []
        self.acked: Counter[str] = Counter()
        self.lost: list[str] = []

    def grows(self) -> Callable[[], bool]:
        """Return a condition that holds when more jobs than now are accepted."""
        before = len(self.accepted)
        return lambda: len(self.accepted) > before

    async def produce(self, broker: Broker) -> None:
        while not self.stopped:
            one = broker.enqueue(WORK)
            many = broker.enqueue_many([NewJob(WORK) for _ in range(5)])
            single, batch = await asyncio.gather(one, many)
            assert all(each.created for each in (single, *batch))
            self.accepted += [each.id for each in (single, *batch)]
            await pause(0.005)

    async def work(self, broker: Broker) -> None:
        while not (self.complete and (await broker.stats(WORK)).pending == 0):
            for job in await broker.claim(WORK, limit=20, wait=0.1):
                assert job.attempts == 1, "a claim whose reply was lost was made again"
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
            await until(load.grows())
            await pause(0.013 * turn)
            await harm(server, turn)
        await until(load.grows())
        load.stopped = True
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*tasks[:2])
            load.complete = True
            await asyncio.gather(*tasks[2:])
        after = [job.payload.decode() for job in await brokers[0].jobs(AFTER, limit=100_000)]
        stats = await brokers[0].stats(WORK)
        with client(server.url) as connection:
            await until(
                lambda: not stale_waiting_claims(connection, Keys("dayjob"))
            )  # All are subscribed again.
            check(connection, "dayjob")
    assert load.lost == [], "an ack that was applied was reported lost"
    assert load.acked == Counter(load.accepted), "each accepted job was acked exactly once"
    assert sorted(after) == sorted(load.accepted), "each ack has exactly one follow-up job"
    assert (stats.done, stats.running, stats.pending) == (len(load.accepted), 0, 0)
