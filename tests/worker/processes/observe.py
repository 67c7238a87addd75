"""Observation of a worker's child processes, and of the outcomes of their jobs."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from dayjob import App, Broker, Job, JobState
from tests.support.workers import record, run_until_idle, until


def own_children() -> list[str]:
    asked = subprocess.run(
        ["ps", "-ww", "-o", "pid=,stat=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
    )
    servers = "/tests/support/servers/"  # The session's Redis or PostgreSQL may have been started from here.
    return [line for line in asked.stdout.splitlines() if " ps -ww" not in line and servers not in line]


async def done(app: App, *ids: str) -> list[Any]:
    """Run all jobs. Return the results of these."""
    await run_until_idle(app)
    broker = await app.opened()
    jobs = [await record(broker, id) for id in ids]
    assert [(job.state, job.last_error) for job in jobs] == [(JobState.DONE, None)] * len(jobs)
    return [msgspec.json.decode(job.result or b"") for job in jobs]


async def after(app: App, id: str) -> Job:
    """Return the job's record after a worker ran it."""
    await run_until_idle(app)
    return await record(await app.opened(), id)


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def kill_and_wait(pid: int) -> None:
    """Wait until the process has ended. Its parent reaps it."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def started(broker: Broker, id: str) -> Job:
    """Wait until the handler has reported progress. Return the job."""

    async def reported() -> bool:
        return (await record(broker, id)).progress is not None

    await until(reported)
    return await record(broker, id)
