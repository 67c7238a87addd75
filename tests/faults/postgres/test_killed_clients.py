"""Producers and workers are killed repeatedly, and no job is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from dayjob import Broker, BrokerConfig, JobState, NewJob
from dayjob.model.durations import to_datetime
from dayjob.runtime.clock import SYSTEM
from dayjob.testing import ManualClock
from tests.faults.process_group import ProcessGroup
from tests.faults.roles import AFTER, BATCH, CONFIG, WORK, Log, produce_batches, succeed, work
from tests.support.observe import check_counters, every_job
from tests.support.processes import Spawn, pause, send_to_test, until
from tests.support.servers.private_postgres import PrivateServer

pytestmark = pytest.mark.slow

QUIET = BrokerConfig(duties=False)


async def produce_slowly(url: str, log_path: str) -> None:
    """Enqueue single jobs and batches without end. Log the id of each accepted job."""
    log = Log(log_path)
    async with Broker(url, config=QUIET) as broker:
        send_to_test("ready")
        while True:
            singles = await asyncio.gather(*(broker.enqueue(WORK, b"%d" % number) for number in range(8)))
            batch = await broker.enqueue_many([NewJob(WORK, b"%d" % number) for number in range(4)])
            for enqueued in (*singles, *batch):
                log.write(enqueued.id)
            await pause(0.05)


async def keys(server: PrivateServer) -> set[str]:
    """Return all keys of the kv space."""
    return {key.decode() for (key,) in await server.fetch("SELECT key FROM dayjob.kv")}


async def all_are_gone(server: PrivateServer) -> None:
    """Wait until the server has ended the sessions of the killed processes."""

    async def gone() -> bool:
        return not await server.fetch(
            "SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, 'dayjob')"
        )

    await until(gone)


async def finish(url: str) -> list[str]:
    """Run the remaining jobs in this process, as if all leases had expired. Return the acked ids."""
    later = ManualClock(to_datetime(SYSTEM.now()) + timedelta(minutes=10))
    async with Broker(url, config=QUIET, clock=later) as broker:
        await broker.reap()
    acked: list[str] = []
    async with Broker(url, config=CONFIG) as broker:

        async def drained() -> bool:
            jobs = await broker.claim(WORK, limit=1000)
            await asyncio.gather(*(succeed(broker, job) for job in jobs))
            acked.extend(job.id for job in jobs)
            stats = await broker.stats(WORK)
            return stats.pending + stats.running + stats.scheduled == 0

        await until(drained)
    return acked


async def test_no_accepted_job_is_lost_and_none_is_acked_twice(
    server: PrivateServer, tmp_path: Path, spawn: Spawn
) -> None:
    group = ProcessGroup(spawn, server.url, tmp_path, [work, produce_slowly, work])
    await group.start()
    for turn in range(3):
        await pause(0.05 + 0.013 * turn)
        await group.replace(turn)

    async def enough() -> bool:
        return len(list(group.lines(produce_slowly))) > 100

    await until(enough)
    await group.kill_all()
    await all_are_gone(server)

    async with Broker(server.url, config=QUIET) as broker:
        await check_counters(broker)
    acked_here = await finish(server.url)
    async with Broker(server.url, config=QUIET) as broker:
        await check_counters(broker)
        left = await every_job(broker)
        stats = await broker.stats(WORK)

    acknowledged = list(group.lines(produce_slowly))
    assert len(set(acknowledged)) == len(acknowledged)

    events = Counter(group.lines(work))
    assert not [event for event in events if event.startswith("lost")], "a living worker lost a claim"
    assert set(events.values()) == {1}, "settled twice"
    acked = [event.removeprefix("done ") for event in events if event.startswith("done ")] + acked_here
    assert len(set(acked)) == len(acked), "acked twice"
    assert len(acked) > len(acked_here)

    done = await keys(server)
    after = [job.payload.decode() for job in left if job.queue == AFTER]
    assert set(acked) <= done
    assert sorted(after) == sorted(done), "an ack, its follow-up and its kv write are all or nothing"
    assert stats.done == len(done)

    ended = {job.id: job.state for job in left if job.queue == WORK}
    assert set(ended.values()) == {JobState.DEAD}
    assert not done & set(ended), "one state each"
    assert set(acknowledged) <= done | set(ended), "an acknowledged job is gone"
    dead = {event.removeprefix("dead ") for event in events if event.startswith("dead ")}
    assert dead <= set(ended)


async def test_a_batch_is_stored_whole_or_not_at_all(
    server: PrivateServer, tmp_path: Path, spawn: Spawn
) -> None:
    group = ProcessGroup(spawn, server.url, tmp_path, [produce_batches, produce_batches])
    await group.start()
    for turn in range(3):
        await pause(0.05 + 0.037 * turn)
        await group.replace(turn)

    async def enough() -> bool:
        return len(list(group.lines(produce_batches))) >= 5

    await until(enough)
    await group.kill_all()
    await all_are_gone(server)
    async with Broker(server.url, config=QUIET) as broker:
        stored = {queue: stats.pending for queue, stats in (await broker.all_stats()).items()}
        assert set(stored.values()) == {BATCH}
        assert len(await every_job(broker)) == BATCH * len(stored)
    assert await keys(server) == set(stored)
    assert set(group.lines(produce_batches)) <= set(stored)
