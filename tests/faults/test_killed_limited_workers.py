"""Workers of limited jobs are killed repeatedly: no limit is exceeded, no room leaks, and every job ends."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, LeaseLost, Limit, NewJob, QueueConfig, Retry
from dayjob.runtime.clock import SYSTEM
from tests.faults.process_group import ProcessGroup
from tests.faults.roles import Log
from tests.support.bound import BOUND
from tests.support.engines import EngineUnderTest
from tests.support.processes import Spawn, pause, send_to_test, until
from tests.support.storages.postgres import POSTGRES
from tests.support.storages.redis import REDIS
from tests.support.storages.sqlite import SQLITE

pytestmark = pytest.mark.slow

JOBS = int(os.environ.get("DAYJOB_LIMITED_JOBS", "200"))
"""The number of jobs. Raise it for a longer run than a test run allows."""

KILLS = min(JOBS // 100, 20)
KEYS = JOBS // 10
PROCESSES = 4
CONFIG = BrokerConfig(
    default=QueueConfig(lease=2, retry=Retry.fixed(attempts=50, delay=0)),
    reap_interval=0.2,
    promote_interval=0.2,
)


@pytest.fixture(params=[SQLITE, POSTGRES, REDIS], ids=str)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    engine: EngineUnderTest = request.param
    url = engine.url(tmp_path)
    yield url
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        for _ in range(1 + 2 * KILLS):
            await broker.sweep()  # Killed processes have left waiting claims: each sweep looks at ten.
    engine.after(tmp_path)


async def work(url: str, log_path: str) -> None:
    """Claim and ack without end. Log each acked run: its job, its key, the time of its claim, and its end."""
    log = Log(log_path)
    async with Broker(url, config=CONFIG) as broker:
        send_to_test("ready")
        while True:
            for job in await broker.claim("q", limit=4, wait=1):
                end = SYSTEM.now()
                with suppress(LeaseLost):  # The lease expired on a slow machine, and the run does not count.
                    await broker.ack(job)
                    log.write(f"{job.id} {job.payload.decode()} {job.claimed_us} {end}")


async def run(url: str, tmp_path: Path, spawn: Spawn, jobs: list[NewJob], **limits: Limit) -> list[list[str]]:
    """Enqueue the jobs, run them while workers are killed, and return the logged runs."""
    processes = ProcessGroup(spawn, url, tmp_path, [work] * PROCESSES)
    async with Broker(url, config=CONFIG) as broker:
        for name, limit in limits.items():
            await broker.set_limit(name, limit)
        for start in range(0, len(jobs), 1000):
            await broker.enqueue_many(jobs[start : start + 1000])
        await processes.start()
        for turn in range(KILLS):
            await pause(0.1)
            await processes.replace(turn)

        async def finished() -> bool:
            stats = await broker.stats("q")
            assert stats.dead == 0
            return stats.done == len(jobs)

        await until(finished, BOUND + JOBS / 20)
        uses = [(use.running, use.limited) for use in await broker.limits()]
        assert uses == [(0, 0)] * len(limits), "room leaked"
    return [line.split() for line in processes.lines(work)]


def most_at_once(runs: list[tuple[int, int]]) -> int:
    events = sorted([(start, 1) for start, _ in runs] + [(end, -1) for _, end in runs])
    now = most = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most


async def test_no_more_jobs_run_than_the_limit_allows(url: str, tmp_path: Path, spawn: Spawn) -> None:
    jobs = [NewJob("q", b"-", limits=["limit"])] * JOBS
    runs = await run(url, tmp_path, spawn, jobs, limit=Limit(running=3))
    assert runs
    assert most_at_once([(int(start), int(end)) for _, _, start, end in runs]) <= 3


async def test_jobs_of_a_key_run_one_at_a_time_in_order(url: str, tmp_path: Path, spawn: Spawn) -> None:
    keys = [f"key-{number % KEYS}" for number in range(JOBS)]
    jobs = [NewJob("q", key.encode(), limits=[f"limit:{key}"]) for key in keys]
    runs = await run(url, tmp_path, spawn, jobs, limit=Limit(running=1))
    by_key = defaultdict[str, list[tuple[int, int, str]]](list)
    for id, key, start, end in runs:
        by_key[key].append((int(start), int(end), id))
    for of_key in by_key.values():
        assert most_at_once([(start, end) for start, end, _ in of_key]) <= 1
        assert [id for *_, id in sorted(of_key)] == sorted(id for *_, id in of_key)


async def test_two_limits_in_both_orders_hold_without_deadlock(
    url: str, tmp_path: Path, spawn: Spawn
) -> None:
    jobs = [NewJob("q", b"-", limits=["one", "two"]), NewJob("q", b"-", limits=["two", "one"])] * (JOBS // 2)
    runs = await run(url, tmp_path, spawn, jobs, one=Limit(running=3), two=Limit(running=2))
    assert most_at_once([(int(start), int(end)) for _, _, start, end in runs]) <= 2
