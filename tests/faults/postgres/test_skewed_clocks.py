"""The server's clock decides: a client whose clock is ten minutes off makes no difference."""

from __future__ import annotations

import pytest

from dayjob import Broker, BrokerConfig, Job, JobState
from dayjob.model.durations import SECOND
from dayjob.runtime.clock import SYSTEM
from tests.faults.postgres.skewed import LEASE, work_in_another_time
from tests.support.arrange import record, running, state
from tests.support.observe import check_counters
from tests.support.processes import Spawn
from tests.support.workers import until

pytestmark = pytest.mark.slow

MINUTE = 60 * SECOND


@pytest.mark.parametrize("minutes", [10, -10], ids=["fast", "slow"])
async def test_a_worker_whose_clock_is_wrong_runs_jobs_at_the_time_of_the_server(
    direct_url: str, spawn: Spawn, minutes: int
) -> None:
    async with Broker(direct_url, config=BrokerConfig(reap_interval=0.2, sweep_interval=0.2)) as broker:
        child = await spawn(work_in_another_time, direct_url, minutes * 60)
        quick, delayed, expiring, long = [await child.receive() for _ in range(4)]

        async def all_are_done() -> bool:
            return all([await state(broker, id) is JobState.DONE for id in (quick, delayed, expiring)])

        await until(all_are_done)
        for id in (quick, delayed, expiring):
            check_times(await record(broker, id))
        late = await record(broker, delayed)
        assert late.claimed_us is not None
        assert late.claimed_us - late.enqueued_us >= 0.3 * SECOND, "it ran too early"

        await broker.enqueue("held", delay=300)
        held = await running(broker, "held")
        child.proceed()
        assert await child.receive() == [0, 0, 0], "it promoted, reaped or swept before the time"
        assert (await record(broker, held.id)).state is JobState.RUNNING

        first = await record(broker, long)
        assert first.lease_us is not None
        assert abs(first.lease_us - SYSTEM.now()) <= (LEASE + 1) * SECOND

        async def is_renewed() -> bool:
            return ((await record(broker, long)).lease_us or 0) >= (first.lease_us or 0) + SECOND

        await until(is_renewed)
        child.proceed()
        assert await child.receive() == "done"
        last = await record(broker, long)
        assert (last.state, last.epoch) == (JobState.DONE, first.epoch), "its lease was lost"
        assert await child.wait() == 0
        await check_counters(broker)


def check_times(job: Job) -> None:
    """Check that all times are of the server's clock, which is this host's."""
    for time in (job.enqueued_us, job.claimed_us, job.finished_us):
        assert time is not None
        assert abs(time - SYSTEM.now()) < MINUTE
