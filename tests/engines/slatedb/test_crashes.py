"""The owner is killed again and again, and every job is accounted for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dayjob import Broker, JobState
from dayjob.engines.slatedb import keys
from tests.engines.slatedb.crash_roles import churn, every_job, miscounted
from tests.engines.slatedb.damage import open_thread
from tests.faults.roles import AFTER, CONFIG, WORK, succeed
from tests.support.processes import Child, Spawn, pause, until

KILLS = 50

pytestmark = pytest.mark.slow


async def stored_keys(url: str) -> set[str]:
    """Return all keys of the kv space."""
    thread = open_thread(url)
    assert thread._loop is not None

    async def scan() -> set[str]:
        found: set[str] = set()
        async for rows in thread._database.scan(keys.KV):
            found |= {stored[len(keys.KV) :].decode() for stored, _ in rows}
        return found

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(scan(), thread._loop))


def growth(log: Path) -> Callable[[], Awaitable[bool]]:
    """Return a condition that holds when the log is longer than now."""

    def size() -> int:
        return log.stat().st_size if log.exists() else 0

    before = size()

    async def grows() -> bool:
        return size() > before

    return grows


async def finish(broker: Broker) -> list[str]:
    """Run the remaining jobs in this process. Return the acked ids."""
    acked: list[str] = []
    await broker.reap()
    while jobs := await broker.claim(WORK, limit=1000):
        await asyncio.gather(*(succeed(broker, job) for job in jobs))
        acked += [job.id for job in jobs]
    return acked


@pytest.mark.timeout(400)  # fifty processes, one after the other, on a busy machine
async def test_every_acknowledged_job_is_accounted_for(url: str, tmp_path: Path, spawn: Spawn) -> None:
    enqueued, settled = tmp_path / "enqueued.log", tmp_path / "settled.log"

    async def prepare() -> Child:
        return await spawn(churn, url, str(enqueued), str(settled))

    following = await prepare()
    for turn in range(KILLS):
        owner, following = following, await prepare()
        assert await owner.receive() == "ready"
        owner.proceed()
        assert await owner.receive() == [], "the counters do not agree with the listing"
        grows = growth(enqueued)
        await pause(0.011 * (turn % 17))
        if turn % 2:  # The others may be killed before their first job.
            await until(grows)
        await owner.kill()
    await following.kill()

    async with Broker(url, config=replace(CONFIG, duties=False)) as broker:
        assert await miscounted(broker) == []
        acked_here = await finish(broker)
        assert await miscounted(broker) == []
        left = await every_job(broker)
        done = await stored_keys(url)
        stats = await broker.stats(WORK)
        after = [job.payload.decode() for job in left.values() if job.queue == AFTER]

    acknowledged = enqueued.read_text().split()
    assert len(set(acknowledged)) == len(acknowledged)
    events = Counter(settled.read_text().splitlines())
    assert not [event for event in events if event.startswith("lost")], "a living claim was lost"
    assert set(events.values()) == {1}, "settled twice"
    acked = [event.removeprefix("done ") for event in events if event.startswith("done ")] + acked_here
    assert len(set(acked)) == len(acked), "acked twice"
    assert set(acked) <= done, "a settlement that was acknowledged is gone"
    assert sorted(after) == sorted(done), "an ack, its follow-up and its kv write are all or nothing"
    assert stats.done == len(done)
    ended = {id: job.state for id, job in left.items() if job.queue == WORK}
    assert set(ended.values()) == {JobState.DEAD}
    assert not done & set(ended), "one state each"
    assert set(acknowledged) <= done | set(ended), "an acknowledged job is gone"
    dead = {event.removeprefix("dead ") for event in events if event.startswith("dead ")}
    assert dead <= set(ended)
