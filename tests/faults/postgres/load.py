"""Producers and workers under a fault, and a record of their calls.

The number of a job decides its outcome. Most succeed, with a follow-up job and a kv write in the same commit.
Some fail once and then succeed. Some are dead-lettered.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import TypeVar

from dayjob import (
    App,
    Broker,
    BrokerConfig,
    Context,
    DeadLetter,
    EngineUnavailable,
    JobState,
    QueueConfig,
    Retry,
    Worker,
)
from dayjob.model.durations import to_datetime
from dayjob.runtime.clock import SYSTEM
from dayjob.testing import ManualClock
from tests.support.bound import BOUND
from tests.support.observe import check_counters, every_job
from tests.support.servers.postgres import with_options
from tests.support.workers import KEEP_ALL, pause, until

WORK, AFTER = "work", "after"

CONFIG = BrokerConfig(
    default=QueueConfig(retry=Retry.fixed(attempts=20, delay=0)), retention=KEEP_ALL, promote_interval=0.1
)
"""Every job is kept, and none dies of the faults."""

WORKERS, PRODUCERS = 2, 3

BACKLOG = 100
"""Jobs above which producers wait for the workers, so that a slow machine has less to do."""

Reply = TypeVar("Reply")


async def again(call: Callable[[], Awaitable[Reply]]) -> Reply:
    """Call until the storage is available."""
    async with asyncio.timeout(BOUND):
        while True:
            try:
                return await call()
            except EngineUnavailable:
                await pause(0.05)


def fails_once(number: int) -> bool:
    return number % 7 == 3


def is_hopeless(number: int) -> bool:
    return number % 11 == 5


class Load:
    """``PRODUCERS`` producers and ``WORKERS`` workers, each with its own app."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.accepted: dict[str, int] = {}
        """The number of each job that was acknowledged, by its id."""
        self.runs: Counter[tuple[str, int]] = Counter()
        """How often each job was run, by its id and attempt."""
        self.lost: list[object] = []
        """The events of lost claims."""
        self._failed: set[str] = set()
        self._numbers = count()
        self._producing = True
        self._apps = [self._app() for _ in range(WORKERS + PRODUCERS)]
        self._workers = [
            Worker(app, queues=(WORK,), concurrency=10, shutdown_timeout=10) for app in self._apps[:WORKERS]
        ]

    def _app(self) -> App:
        app = App(with_options(self.url, timeout=f"{BOUND}"), config=CONFIG)
        app.on("job.lost")(self.lost.append)

        @app.task(queue=AFTER, name="after")
        async def after(id: str) -> None:
            raise AssertionError("no worker claims from this queue")

        @app.task(queue=WORK, name="work")
        async def work(ctx: Context, number: int) -> int:
            self.runs[ctx.job.id, ctx.attempt] += 1
            if is_hopeless(number):
                raise DeadLetter("hopeless")
            if fails_once(number) and ctx.job.id not in self._failed:
                self._failed.add(ctx.job.id)
                raise ValueError("once")
            ctx.then(after.bind(ctx.job.id), kv={ctx.job.id.encode(): b"done"})
            return number

        return app

    # Working.

    async def _produce(self, app: App) -> None:
        """Enqueue singly, in batches, and with dedup keys, without end."""
        work = app.tasks["work"]
        while self._producing:
            numbers = [next(self._numbers) for _ in range(8)]
            single, keyed, batch = numbers[:3], numbers[3:4], numbers[4:]
            handles = await asyncio.gather(
                *(work.aenqueue(number) for number in single),
                *(work.using(dedup_key=f"key {number}").aenqueue(number) for number in keyed),
            )
            handles += await work.aenqueue_many([(number,) for number in batch])
            assert all(handle.created for handle in handles), "a new job was reported as an old one"
            self.accepted |= {handle.id: number for handle, number in zip(handles, numbers, strict=True)}
            await until(lambda: len(self.accepted) - len(self.runs) < BACKLOG)
            await pause(0.02)

    async def progress(self, jobs: int = 30) -> None:
        """Wait until that many more jobs were accepted, and that many more run."""
        accepted, run = len(self.accepted) + jobs, self.runs.total() + jobs
        await until(lambda: len(self.accepted) >= accepted and self.runs.total() >= run)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Work during the block. After it, every accepted job has run to its end."""
        async with asyncio.TaskGroup() as group:
            for worker in self._workers:
                group.create_task(worker.run())
            producing = [group.create_task(self._produce(app)) for app in self._apps[WORKERS:]]
            try:
                yield
                self._producing = False
                await asyncio.wait(producing)
                await self._drained()
            except BaseException:
                for worker in self._workers:
                    worker.stop_now()
                raise
            for worker in self._workers:
                worker.stop()
        await self._collect_orphans()
        for app in self._apps:
            await app.close()

    async def _drained(self) -> None:
        async with Broker(self.url, config=BrokerConfig(duties=False)) as broker:

            async def nothing_waits() -> bool:
                stats = await broker.stats(WORK)
                return stats.pending + stats.scheduled == 0

            await until(nothing_waits)

    async def _collect_orphans(self) -> None:
        """Run the jobs of claims whose connection broke, as if their leases had expired."""
        later = ManualClock(to_datetime(SYSTEM.now()) + timedelta(minutes=10))
        async with Broker(self.url, config=BrokerConfig(duties=False), clock=later) as broker:
            await broker.reap()
        await Worker(self._apps[0], queues=(WORK,)).run_until_idle()

    # Checking.

    async def check(self) -> None:
        """Check that no accepted job is missing, none was settled twice, and the counters are right."""
        async with Broker(self.url, config=BrokerConfig(duties=False)) as broker:
            await check_counters(broker)
            jobs = {job.id: job for job in await every_job(broker)}
            work = {id: job for id, job in jobs.items() if job.queue == WORK}
            assert set(self.accepted) <= set(work), "an accepted job is gone"
            done = {id for id, job in work.items() if job.state is JobState.DONE}
            dead = {id for id, job in work.items() if job.state is JobState.DEAD}
            assert done | dead == set(work), "a job was not run to its end"
            followers = Counter(json.loads(job.payload)["id"] for job in jobs.values() if job.queue == AFTER)
            assert followers == Counter(done), "a success and its follow-up are all or nothing"
            assert (await broker.stats(WORK)).done == len(done), "a success was counted twice"
            values = await asyncio.gather(*(broker.kv_get(id.encode()) for id in work))
            assert {id for id, value in zip(work, values, strict=True) if value} == done
        assert set(self.runs.values()) == {1}, "an attempt was run twice"
        assert self.lost == [], "a settlement that was applied was reported lost"
        for id, number in self.accepted.items():
            assert (id in dead) == is_hopeless(number), f"job {number} ended {work[id].state}"
            failures = sum("once" in failure.message for failure in work[id].errors)
            assert failures == (fails_once(number) and not is_hopeless(number)), f"job {number}"
