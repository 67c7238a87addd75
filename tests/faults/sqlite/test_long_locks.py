"""Another process holds the write lock for longer than the leases: no lease can be renewed, and none ends."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from dayjob import App, BrokerConfig, Context, JobState
from tests.support.workers import pause, record, until, working

pytestmark = pytest.mark.slow

LEASE = 1.0
LOCK = 2.5


@pytest.mark.parametrize("reap_interval", [0.1, 1])
@pytest.mark.parametrize("timeout", [30, 0.5], ids=["waiting for the lock", "failing"])
async def test_the_jobs_of_a_live_worker_survive_a_lock_longer_than_their_leases(
    tmp_path: Path, reap_interval: float, timeout: float
) -> None:
    path = tmp_path / "jobs.db"
    app = App(f"sqlite:///{path}?timeout={timeout}", config=BrokerConfig(reap_interval=reap_interval))
    finish = asyncio.Event()
    lost: list[object] = []
    app.on("job.lost")(lost.append)

    @app.task(max_attempts=1)
    async def long(ctx: Context) -> None:
        await finish.wait()

    async with app, working(app, lease=LEASE):
        handles = await long.aenqueue_many([()] * 5)

        async def all_run() -> bool:
            return (await app.broker.stats("default")).running == 5

        await until(all_run)
        for _ in range(2):
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            await pause(LOCK)
            other.execute("ROLLBACK")
            other.close()
            await pause(LOCK)
        states = [(await record(app.broker, handle.id)).state for handle in handles]
        finish.set()
        ended = [await handle.await_end(20) for handle in handles]
    assert states == [JobState.RUNNING] * 5
    assert {waited.job and waited.job.state for waited in ended} == {JobState.DONE}
    assert lost == []
