"""The clock is set while a worker runs a job: the worker keeps its id, its claim and its schedules."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, BrokerConfig, JobState, QueueConfig
from dayjob.model.durations import SECOND
from dayjob.runtime.clock import SystemClock
from tests.support.workers import KEEP_ALL, MakeApp, pause, record, until, with_timeout, working

pytestmark = pytest.mark.slow

YEAR = 365 * 86_400


class SteppedClock(SystemClock):
    """The clock of a host that a test sets."""

    offset = 0

    def now(self) -> int:
        return super().now() + self.offset * SECOND


@pytest.mark.parametrize("step", [60, YEAR, -60, -YEAR])
async def test_a_step_of_the_clock_costs_a_worker_no_job_and_no_schedule(
    make_app: MakeApp, outside: Broker, step: int
) -> None:
    config = BrokerConfig(
        default=QueueConfig(lease=10), reap_interval=0.5, dead_after=1.5, retention=KEEP_ALL
    )
    app = make_app(config=config)
    app.clock = clock = SteppedClock()
    finish = asyncio.Event()
    ticks = 0

    @app.task(max_attempts=1)
    async def work() -> None:
        await finish.wait()

    @app.task(every=0.5)
    async def tick() -> None:
        nonlocal ticks
        ticks += 1

    async with working(app) as worker:
        handle = await work.aenqueue()
        await until(lambda: ticks >= 2)
        await until(lambda: _is_running(outside, handle.id))
        before = worker.id
        await pause(2)  # The leader has watched the worker for longer than it may be silent.
        clock.offset = step
        seen = ticks
        await pause(4)  # More than the time after which a worker is dead.
        await until(lambda: ticks >= seen + 2)
        assert worker.id == before
        assert worker.problem() is None
        finish.set()
        await with_timeout(handle.await_end())
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.DONE, 1)


async def _is_running(broker: Broker, id: str) -> bool:
    return (await record(broker, id)).state is JobState.RUNNING
