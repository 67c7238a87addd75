"""Producers and workers on a SQLite file are killed repeatedly, and every job is accounted for."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, CancelOutcome, Job, JobState
from tests.faults.process_group import ProcessGroup
from tests.faults.roles import AFTER, BATCH, CONFIG, WORK, produce, produce_batches, succeed, work
from tests.support.processes import Spawn, pause, until

pytestmark = pytest.mark.slow

KILLS = 10
QUIET = BrokerConfig(duties=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


async def every_job(broker: Broker) -> dict[str, Job]:
    found: list[Job] = []
    while page := await broker.jobs(after=found[-1].id if found else None, limit=5000):
        found += page
    return {job.id: job for job in found}


async def check_counters(broker: Broker) -> None:
    listed = Counter((job.queue, job.state) for job in (await every_job(broker)).values())
    for queue, stats in (await broker.all_stats()).items():
        for state in JobState:
            if state is not JobState.DONE:
                assert getattr(stats, state.value) == listed[queue, state], f"{queue} {state}"


async def finish(broker: Broker) -> list[str]:
    """Run the remaining jobs in this process. Return the acked ids."""
    acked: list[str] = []

    async def drained() -> bool:
        jobs = await broker.claim(WORK, limit=1000)
        await asyncio.gather(*(succeed(broker, job) for job in jobs))
        acked.extend(job.id for job in jobs)
        stats = await broker.stats(WORK)
        return stats.pending + stats.running == 0

    await until(drained)
    return acked


def keys(path: Path) -> set[str]:
    """Return all keys of the kv space."""
    with closing(sqlite3.connect(path)) as connection:
        return {key.decode() for (key,) in connection.execute("SELECT key FROM dayjob_kv")}


def is_intact(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        reply: tuple[str] = connection.execute("PRAGMA integrity_check").fetchone()
        return reply == ("ok",)


def has_wal(path: Path) -> bool:
    return path.with_name(f"{path.name}-wal").exists()


async def test_every_acknowledged_job_is_accounted_for_and_none_is_acked_twice(
    path: Path, url: str, tmp_path: Path, spawn: Spawn
) -> None:
    processes = ProcessGroup(spawn, url, tmp_path, [produce, work, produce, work])
    await processes.start()
    async with Broker(url, config=CONFIG) as broker:
        for turn in range(KILLS):
            await pause(0.05 + 0.013 * turn)
            for id in list(processes.lines(produce))[-3:]:
                await broker.cancel(id)
            waiting = await broker.enqueue(WORK, delay=3600)
            await processes.replace(turn)
            if turn % 2:
                assert await broker.cancel(waiting.id) is CancelOutcome.REMOVED

    async def enough() -> bool:
        done = [line for line in processes.lines(work) if line.startswith("done ")]
        return len(list(processes.lines(produce))) > 500 and len(done) > 100

    await until(enough)
    await processes.kill_all()
    assert has_wal(path), "the last process was killed, so the next has to recover"

    async with Broker(url, config=QUIET) as broker:
        await check_counters(broker)
    async with Broker(url, config=CONFIG) as broker:
        acked_here = await finish(broker)
        await check_counters(broker)
        left = await every_job(broker)
        stats = await broker.stats(WORK)
        after = [job.payload.decode() for job in left.values() if job.queue == AFTER]

    acknowledged = list(processes.lines(produce))
    assert len(set(acknowledged)) == len(acknowledged)

    events = Counter(processes.lines(work))
    assert not [event for event in events if event.startswith("lost")], "a live worker lost a claim"
    assert set(events.values()) == {1}, "settled twice"
    acked = [event.removeprefix("done ") for event in events if event.startswith("done ")] + acked_here
    assert len(set(acked)) == len(acked), "acked twice"

    done = keys(path)
    assert set(acked) <= done
    assert sorted(after) == sorted(done), "an ack, its follow-up and its kv write are all or nothing"
    assert stats.done == len(done)

    ended = {id: job.state for id, job in left.items() if job.queue == WORK}
    assert set(ended.values()) == {JobState.DEAD, JobState.CANCELLED, JobState.SCHEDULED}
    assert not done & set(ended), "one state each"
    assert set(acknowledged) <= done | set(ended), "an acknowledged job was lost"
    dead = {event.removeprefix("dead ") for event in events if event.startswith("dead ")}
    assert all(ended[id] is JobState.DEAD for id in dead)
    assert is_intact(path)


async def test_a_batch_of_a_killed_producer_is_stored_whole_or_not_at_all(
    path: Path, url: str, tmp_path: Path, spawn: Spawn
) -> None:
    processes = ProcessGroup(spawn, url, tmp_path, [produce_batches, produce_batches])
    await processes.start()
    for turn in range(4):
        await pause(0.05 + 0.037 * turn)
        await processes.replace(turn)
    await pause(0.1)
    await processes.kill_all()
    async with Broker(url, config=QUIET) as broker:
        stored = {queue: stats.pending for queue, stats in (await broker.all_stats()).items()}
        assert set(stored.values()) == {BATCH}
        assert len(await every_job(broker)) == BATCH * len(stored)
    assert keys(path) == set(stored)
    acknowledged = set(processes.lines(produce_batches))
    assert len(acknowledged) >= 5
    assert acknowledged <= set(stored)
    assert is_intact(path)
