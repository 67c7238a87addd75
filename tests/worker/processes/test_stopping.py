"""Stopping a worker with tasks in child processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dayjob import App, JobState
from tests.support.workers import record, run_until_idle, working
from tests.worker import process_tasks as tasks
from tests.worker.processes.observe import (
    descriptors,
    started,
)

pytestmark = pytest.mark.slow


async def test_a_stopping_worker_signals_the_handler(app: App) -> None:
    async with working(app):
        handle = await tasks.wait_for_shutdown.aenqueue()
        await started(await app.opened(), handle.id)
    job = await record(await app.opened(), handle.id)
    assert (job.state, job.result) == (JobState.DONE, b'"shutdown"')


async def test_a_job_that_does_not_end_is_killed_and_released_uncounted(app: App) -> None:
    async with working(app, shutdown_timeout=0.1):
        handle = await tasks.stalling.aenqueue()
        job = await started(await app.opened(), handle.id)
    job = await record(await app.opened(), handle.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 0, None)


async def test_a_worker_without_process_tasks_starts_none(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dayjob.worker.child_process._spawn", None)
    await run_until_idle(app)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
async def test_no_file_descriptors_leak(app: App) -> None:
    counts = []
    for _ in range(3):
        for task in (tasks.die_for_good, tasks.die_for_good, tasks.pid):
            await task.aenqueue()
        await run_until_idle(app)
        await app.close()
        counts.append(descriptors())
    assert counts[1] == counts[2]
