"""A server is away for longer than ``dead_after``: no worker is declared dead when it is back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dayjob import JobState
from dayjob.runtime.clock import SYSTEM
from tests.faults.fleet.worker_fleet import WorkerFleet
from tests.support.processes import Spawn, pause
from tests.support.servers.private_postgres import Stop, private_server
from tests.support.servers.redis import running_server

pytestmark = pytest.mark.slow

DEAD_AFTER = 1.5
JOBS = 10

Outage = Callable[[float], Awaitable[None]]


@asynccontextmanager
async def _postgres() -> AsyncIterator[tuple[str, Outage]]:
    async with private_server() as server:

        async def outage(seconds: float) -> None:
            await server.stop(Stop.IMMEDIATE)
            await pause(seconds)
            await server.start()

        yield server.url, outage


@asynccontextmanager
async def _redis() -> AsyncIterator[tuple[str, Outage]]:
    async with running_server(appendonly="yes", appendfsync="always") as server:

        async def outage(seconds: float) -> None:
            server.stop()
            await pause(seconds)
            server.start()

        yield server.url, outage


@pytest.mark.parametrize("server", [_postgres, _redis], ids=["postgres", "redis"])
async def test_workers_keep_their_jobs_through_an_outage_longer_than_dead_after(
    server, tmp_path: Path, spawn: Spawn
) -> None:
    async with server() as (url, outage):
        fleet = WorkerFleet(spawn, url, tmp_path)
        async with fleet.broker:
            workers = await fleet.start_many(3, foreign=True, dead_after=DEAD_AFTER, concurrency=JOBS)
            ids = await fleet.enqueue("hold", 2 * JOBS)
            await fleet.until_logged("started", ids)
            before = {id: (job.state, job.epoch, job.worker) for id, job in (await fleet.jobs()).items()}
            assert {state for state, _, _ in before.values()} == {JobState.RUNNING}

            await outage(2 * DEAD_AFTER)
            deadline = SYSTEM.elapsed() + 3 * DEAD_AFTER
            while SYSTEM.elapsed() < deadline:
                jobs = await fleet.jobs()
                assert {id: (job.state, job.epoch, job.worker) for id, job in jobs.items()} == before
                await pause(0.1)
            alive = {worker.id for worker in await fleet.broker.workers()}
            assert alive == {worker.id for worker in workers}
            fleet.end("hold")
            await fleet.until_idle()
            assert fleet.logged("job.lost") == []
            assert (await fleet.broker.stats("default")).done == len(ids)
