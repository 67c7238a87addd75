"""Claims of a dead process return long before their lease ends; those of a living one stay."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from signal import SIGCONT

import pytest

from dayjob import Broker, BrokerConfig, Job, JobState
from tests.engines.sqlite.roles import claim_and_die, close_with_a_claim, hold
from tests.support.bound import BOUND
from tests.support.processes import ROOT, Spawn, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/stat").exists(), reason="states of processes are read from /proc"
    ),
]

LEASE = 30.0
QUIET = BrokerConfig(duties=False)


async def record(broker: Broker, id: str) -> Job:
    job = await broker.get(id)
    assert job is not None
    return job


def query(path: Path, sql: str, *parameters: object) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path, timeout=5)
    try:
        with connection:
            return connection.execute(sql, parameters).fetchall()
    finally:
        connection.close()


def owners(path: Path) -> list[int]:
    return [int(str(pid)) for (pid,) in query(path, "SELECT pid FROM dayjob_owners")]


async def test_jobs_of_a_killed_process_return_before_their_lease_ends(
    url: str, path: Path, dutiful: Broker, spawn: Spawn
) -> None:
    ids = [(await dutiful.enqueue("q")).id for _ in range(3)]
    child = await spawn(hold, url, 3, LEASE)
    assert await child.receive() == ids
    assert (await dutiful.stats("q")).running == 3
    assert child.pid in owners(path)
    await child.kill()

    jobs: list[Job] = []
    async with asyncio.timeout(BOUND):
        while len(jobs) < 3:
            jobs += await dutiful.claim("q", limit=3, wait=5)
    assert sorted(job.id for job in jobs) == ids
    assert {(job.attempts, job.last_error) for job in jobs} == {(2, "lease expired")}

    async def forgotten() -> bool:
        return child.pid not in owners(path)

    await until(forgotten, 5)


async def test_a_job_that_kills_its_worker_each_time_dies(
    url: str, path: Path, dutiful: Broker, spawn: Spawn
) -> None:
    enqueued = await dutiful.enqueue("q", max_attempts=3)
    for attempt in (1, 2, 3):
        child = await spawn(claim_and_die, url)
        assert await child.receive() == [enqueued.id, attempt]
        await child.wait()

    async def dead() -> bool:
        return (await record(dutiful, enqueued.id)).state is JobState.DEAD

    await until(dead, 5)
    job = await record(dutiful, enqueued.id)
    assert (job.attempts, job.last_error) == (3, "lease expired")
    assert [failure.attempt for failure in job.errors] == [1, 2, 3]

    async def forgotten() -> bool:
        return owners(path) == []

    await until(forgotten, 5)


async def test_a_process_without_claims_has_no_owner(
    url: str, path: Path, dutiful: Broker, spawn: Spawn
) -> None:
    child = await spawn(hold, url, 1, LEASE)
    assert await child.receive() == []
    assert owners(path) == []
    await child.kill()


async def test_a_zombie_process_counts_as_gone(url: str, broker: Broker) -> None:
    """A zombie still has its pid."""
    enqueued = await broker.enqueue("q")
    script = f"""
import asyncio
from tests.engines.sqlite.roles import hold
asyncio.run(hold({url!r}, 1, {LEASE}))
"""
    process = subprocess.Popen(  # noqa: ASYNC220  (an asyncio child is waited for behind our back)
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        assert enqueued.id in (await asyncio.to_thread(process.stdout.readline)).decode()
    finally:
        process.kill()

    async def zombie() -> bool:
        return state_of(process.pid) == "Z"

    await until(zombie, 5)
    assert await broker.reap() == 1
    assert (await record(broker, enqueued.id)).state is JobState.PENDING
    process.communicate()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_stopped_process_does_not_count_as_gone(
    url: str, path: Path, broker: Broker, spawn: Spawn
) -> None:
    enqueued = await broker.enqueue("q")
    child = await spawn(hold, url, 1, LEASE)
    assert await child.receive() == [enqueued.id]
    await child.freeze()
    for _ in range(3):
        assert await broker.reap() == 0
    assert (await record(broker, enqueued.id)).state is JobState.RUNNING
    assert child.pid in owners(path)
    child.signal(SIGCONT)
    child.proceed()
    assert await child.receive() == "acked"
    assert await child.wait() == 0
    assert (await broker.stats("q")).done == 1


async def test_a_reused_pid_is_not_the_owner(url: str, path: Path, broker: Broker, spawn: Spawn) -> None:
    await broker.enqueue("q")
    child = await spawn(hold, url, 1, LEASE)
    assert len(await child.receive()) == 1
    query(path, "UPDATE dayjob_owners SET started = '1' WHERE pid = ?", child.pid)
    assert await broker.reap() == 1


async def test_a_process_of_another_host_loses_claims_by_lease_only(
    url: str, path: Path, broker: Broker, spawn: Spawn
) -> None:
    enqueued = await broker.enqueue("q")
    child = await spawn(hold, url, 1, 2.0)
    assert await child.receive() == [enqueued.id]
    query(path, "UPDATE dayjob_owners SET host = 'elsewhere' WHERE pid = ?", child.pid)
    await child.kill()
    assert await broker.reap() == 0
    assert (await record(broker, enqueued.id)).state is JobState.RUNNING

    async def reaped() -> bool:
        return await broker.reap() == 1

    await until(reaped, 5)


async def test_claims_survive_a_clean_close_until_their_lease_ends(
    url: str, path: Path, broker: Broker, spawn: Spawn
) -> None:
    """The process still runs, and may settle them through another broker."""
    enqueued = await broker.enqueue("q")
    child = await spawn(close_with_a_claim, url, 2.0)
    assert await child.receive() == enqueued.id
    assert await broker.reap() == 0
    assert (await record(broker, enqueued.id)).state is JobState.RUNNING

    async def reaped() -> bool:
        return await broker.reap() == 1

    await until(reaped, 5)
    assert (await record(broker, enqueued.id)).state is JobState.PENDING


async def test_claims_of_a_process_that_closed_and_ended_return_at_once(
    url: str, path: Path, broker: Broker, spawn: Spawn
) -> None:
    enqueued = await broker.enqueue("q")
    child = await spawn(close_with_a_claim, url, LEASE)
    assert await child.receive() == enqueued.id
    child.proceed()
    assert await child.wait() == 0
    assert await broker.reap() == 1
    assert owners(path) == []


async def test_a_clean_close_leaves_no_owner(url: str, path: Path) -> None:
    for _ in range(3):
        async with Broker(url) as broker:
            await broker.enqueue("q")
            [job] = await broker.claim("q")
            await broker.ack(job)
    assert owners(path) == []


def test_event_loops_of_one_process_share_one_owner(url: str, path: Path) -> None:
    """A loop that ends without a close leaves its engine to the process."""

    async def claim_and_leave() -> None:
        broker = await Broker(url, config=QUIET).open()
        await broker.enqueue("q")
        [job] = await broker.claim("q")
        await broker.ack(job)

    async def enqueue_and_leave() -> None:
        await (await Broker(url, config=QUIET).open()).enqueue("other")

    for _ in range(5):
        asyncio.run(enqueue_and_leave())
    assert owners(path) == []
    for _ in range(5):
        asyncio.run(claim_and_leave())
    assert owners(path) == [os.getpid()]


async def test_another_engine_of_the_process_may_close_while_claims_are_open(
    url: str, path: Path, broker: Broker
) -> None:
    await broker.enqueue("q")
    async with Broker(url, config=QUIET) as other:
        await broker.claim("q")
        await other.enqueue("other")
        [job] = await other.claim("other")
        await other.ack(job)
    assert owners(path) == [os.getpid()]


async def test_owners_of_another_host_are_removed_once_they_have_no_claims(
    url: str, path: Path, broker: Broker
) -> None:
    await broker.enqueue("q")
    [job] = await broker.claim("q")
    query(path, "UPDATE dayjob_owners SET host = 'an earlier boot', pid = 1")
    query(path, "INSERT INTO dayjob_owners (host, pid, started) VALUES ('another container', 2, '1')")
    assert await broker.reap() == 0
    assert owners(path) == [1]
    await broker.ack(job)
    assert await broker.reap() == 0
    assert owners(path) == []


async def test_a_removed_owner_returns_with_its_next_claim(url: str, path: Path, broker: Broker) -> None:
    for _ in range(2):
        await broker.enqueue("q")
        [job] = await broker.claim("q")
        await broker.ack(job)
        assert owners(path) == [os.getpid()]
        query(path, "DELETE FROM dayjob_owners")
