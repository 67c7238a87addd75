"""A process that was frozen for longer than its leases has lost its claims, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from signal import SIGCONT

import pytest

from dayjob import Broker, BrokerConfig, Job
from tests.faults.roles import AFTER, WORK, settle_late, succeed
from tests.support.engines import ENGINES, EngineUnderTest
from tests.support.processes import Spawn, until

pytestmark = pytest.mark.slow

JOBS = 10


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine.name != "memory"], ids=str)
@pytest.mark.parametrize("settled", [True, False], ids=["settled meanwhile", "running again"])
async def test_a_process_frozen_past_its_leases_does_not_settle_its_lost_claims(
    tmp_path: Path, spawn: Spawn, settled: bool, engine: EngineUnderTest
) -> None:
    url, log = engine.url(tmp_path), tmp_path / "late.log"
    async with Broker(url, config=BrokerConfig(reap_interval=0.2)) as broker:
        if not broker.capabilities.multi_process:
            pytest.skip("the engine allows one process only")
        ids = [(await broker.enqueue(WORK)).id for _ in range(JOBS)]
        child = await spawn(settle_late, url, 0.5, str(log))
        assert await child.receive() == "ready"
        await child.freeze()

        jobs: list[Job] = []

        async def all_reaped() -> bool:
            jobs.extend(await broker.claim(WORK, limit=JOBS, wait=1))
            return len(jobs) == JOBS

        await until(all_reaped, 10)
        assert {job.attempts for job in jobs} == {2}
        if settled:
            for job in jobs:
                await succeed(broker, job)
        child.signal(SIGCONT)
        child.proceed()
        assert await child.receive() == "done"
        assert lines(log) == [f"lost {id}" for id in ids]
        if not settled:
            for job in jobs:
                await succeed(broker, job)
        stats = await broker.stats(WORK)
        assert (stats.done, stats.running, stats.pending) == (JOBS, 0, 0)
        assert sorted(job.payload.decode() for job in await broker.jobs(AFTER)) == ids
    engine.after(tmp_path)


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines()
