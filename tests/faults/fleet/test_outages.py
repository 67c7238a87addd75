"""A server is away for longer than ``dead_after``: when it is back, nobody is taken for dead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dayjob import JobState
from dayjob.runtime.clock import SYSTEM
from tests.faults.fleet.scene import Scene
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
async def test_workers_that_were_cut_off_keep_their_jobs(server, tmp_path: Path, spawn: Spawn) -> None:
    async with server() as (url, outage):
        scene = Scene(spawn, url, tmp_path)
        async with scene.broker:
            workers = await scene.start_many(3, foreign=True, dead_after=DEAD_AFTER, concurrency=JOBS)
            ids = await scene.enqueue("hold", 2 * JOBS)
            await scene.until_told("started", ids)
            before = {id: job.worker for id, job in (await scene.jobs()).items()}

            await outage(2 * DEAD_AFTER)
            deadline = SYSTEM.elapsed() + 3 * DEAD_AFTER
            while SYSTEM.elapsed() < deadline:
                jobs = await scene.jobs()
                assert {(job.state, job.epoch) for job in jobs.values()} == {(JobState.RUNNING, 1)}
                await pause(0.1)
            assert {id: job.worker for id, job in (await scene.jobs()).items()} == before
            alive = {worker.id for worker in await scene.broker.workers()}
            assert alive == {worker.id for worker in workers}
            scene.end("hold")
            await scene.until_idle()
            assert scene.told("job.lost") == []
            assert (await scene.broker.stats("default")).done == len(ids)
