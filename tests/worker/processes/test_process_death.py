"""The death of a child process fails the attempt that it ran, and no other."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dayjob import App, Broker, Context, JobState
from dayjob.model.lifecycle import Transition
from dayjob.runtime.stop_signal import StopSignal
from dayjob.worker.process_pool import ProcessPool
from tests.support.bound import BOUND
from tests.support.workers import record, run_until_idle, until, with_timeout, working
from tests.worker import process_tasks as tasks
from tests.worker.processes.observe import (
    after,
    done,
    has_ended,
    kill_and_wait,
    started,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("exit", "the process that ran the job ended with exit code 1"),
        ("close", "the process that ran the job ended with exit code 1"),
        ("null", "the process that ran the job was killed by signal 11 (SIGSEGV)"),
        ("SIGABRT", f"the process that ran the job was killed by signal {signal.SIGABRT:d} (SIGABRT)"),
        ("SIGKILL", "the process that ran the job was killed by signal 9 (SIGKILL) (out of memory?)"),
    ],
)
async def test_the_end_of_a_process_fails_that_attempt_only(app: App, way: str, reason: str) -> None:
    ids = [(await tasks.die.aenqueue(way)).id, *[(await tasks.pid.aenqueue()).id for _ in range(2)]]
    worker = await run_until_idle(app)
    broker = await app.opened()
    died, *others = [await record(broker, id) for id in ids]
    assert (died.state, died.attempts) == (JobState.SCHEDULED, 1)
    assert str(died.last_error) == f"dayjob.worker.child_process.ProcessDied: {reason}"
    assert [(job.state, job.attempts) for job in others] == [(JobState.DONE, 1)] * 2
    assert worker.done == 3


async def test_a_retry_policy_may_exclude_a_dead_process(app: App) -> None:
    job = await after(app, (await tasks.die_for_good.aenqueue()).id)
    assert (job.state, job.attempts) == (JobState.DEAD, 1)
    assert "exit code 7" in str(job.last_error)


async def test_the_kill_of_an_idle_child_fails_no_attempt(app: App) -> None:
    async with working(app, concurrency=1):
        child = await (await tasks.pid.aenqueue()).aresult(timeout=BOUND)
        os.kill(child, signal.SIGKILL)
        handle = await tasks.pid.aenqueue()
        assert await handle.aresult(timeout=BOUND) != child
    assert (await record(await app.opened(), handle.id)).attempts == 1


async def test_a_child_ignores_the_workers_signals(app: App) -> None:
    assert await done(app, (await tasks.shrug_off.aenqueue()).id) == ["still here"]


async def test_a_timeout_kills_the_process(app: App) -> None:
    async with working(app, concurrency=1):
        child = await (await tasks.pid.aenqueue()).aresult(timeout=BOUND)
        id = (await tasks.limited.aenqueue()).id
        broker = await app.opened()

        async def failed() -> bool:
            return (await record(broker, id)).last_error is not None

        await until(failed)
        await until(lambda: has_ended(child))
        job = await record(broker, id)
        assert (job.state, job.attempts) == (JobState.SCHEDULED, 1)
        assert str(job.last_error) == "TimeoutError: timed out after 0.5 s"
        assert await (await tasks.pid.aenqueue()).aresult(timeout=BOUND) != child


async def test_the_kill_of_a_process_kills_the_processes_that_it_started(app: App, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading = asyncio.create_task(asyncio.to_thread(fifo.read_bytes))
    await tasks.pid.aenqueue()  # So that the next one finds a warm child.
    id = (await tasks.leave_a_process.aenqueue(str(fifo))).id
    await run_until_idle(app, concurrency=1)
    assert "timed out" in str((await record(await app.opened(), id)).last_error)
    assert await with_timeout(reading) == b""


async def test_an_interrupting_cancel_from_another_broker_kills_the_process(app: App, url: str) -> None:
    async with Broker(url) as elsewhere, working(app):
        handle = await tasks.interruptible.aenqueue()
        job = await started(elsewhere, handle.id)
        child = int((job.progress or (0, "0"))[1])
        assert not has_ended(child)
        await elsewhere.cancel(handle.id)
        waited = await with_timeout(elsewhere.wait(handle.id, timeout=15))
        assert waited.job is not None
        assert waited.job.state is JobState.CANCELLED
        await until(lambda: has_ended(child))


async def test_progress_logs_and_a_cancel_pass_between_worker_and_child(
    app: App, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dayjob.job")
    async with Broker(url) as elsewhere, working(app):
        handle = await tasks.report.aenqueue()
        job = await started(elsewhere, handle.id)
        assert job.progress == (0.5, "half ?")
        await elsewhere.cancel(handle.id)
        waited = await with_timeout(elsewhere.wait(handle.id, timeout=15))
    assert waited.job is not None
    assert waited.job.state is JobState.CANCELLED
    [logged] = [entry for entry in caplog.records if entry.name == "dayjob.job"]
    assert logged.getMessage() == "halfway there"
    assert logged.__dict__["job_id"] == handle.id


@asynccontextmanager
async def pool_of_one(app: App) -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(app, 1)
    try:
        yield pool
    finally:
        await pool.close()


async def claimed(app: App, task: Any) -> Context:
    await task.aenqueue()
    [job] = await (await app.opened()).claim(["default"])
    return Context(job, shutting_down=StopSignal())


async def test_a_child_may_die_at_any_moment_between_two_jobs(app: App) -> None:
    loop = asyncio.get_running_loop()
    async with pool_of_one(app) as pool:
        context = await claimed(app, tasks.pid)
        for steps in range(6):
            settlement = await with_timeout(pool.run(tasks.pid, context))
            child = int(settlement.result or b"0")
            kill_and_wait(child)
            for _ in range(steps):
                step = loop.create_future()
                loop.call_soon(step.set_result, None)
                await step
        assert (await with_timeout(pool.run(tasks.pid, context))).transition is Transition.ACK


async def test_a_cancel_during_the_wait_for_a_child_reaches_the_handler(app: App) -> None:
    async with pool_of_one(app) as pool:
        first, second = await claimed(app, tasks.report), await claimed(app, tasks.report)
        running = [asyncio.create_task(pool.run(tasks.report, context)) for context in (first, second)]
        await until(lambda: not running[0].done())
        second.cancelled.set("lost")
        first.cancelled.set("lost")
        for run in running:
            assert (await with_timeout(run)).result == b'"lost"'


async def test_the_wait_for_a_free_child_is_not_part_of_the_run(app: App) -> None:
    started_tasks: list[str] = []
    async with pool_of_one(app) as pool:
        running = []
        for task in (tasks.pid, tasks.whose):
            run = pool.run(task, await claimed(app, task), partial(started_tasks.append, task.name))
            running.append(asyncio.create_task(run))
        assert started_tasks == []
        await with_timeout(running[0])
        assert started_tasks == [tasks.pid.name]
        await with_timeout(running[1])
        assert started_tasks == [tasks.pid.name, tasks.whose.name]
