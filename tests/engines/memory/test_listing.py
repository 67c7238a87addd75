"""Listings: a scan of the ids and a selection from the heaps find the same jobs."""

from __future__ import annotations

from itertools import product

import pytest

from dayjob import Broker, BrokerConfig, JobState, Limit, NewJob, Retention
from dayjob.engines import ordered_collections


@pytest.fixture
async def broker() -> Broker:
    """Jobs of two queues in every state, in mixed order."""
    keep = Retention(done=3600, dead=3600, cancelled=3600)
    broker = await Broker("memory://", config=BrokerConfig(duties=False, retention=keep)).open()
    await broker.set_limit("one", Limit(running=1))
    for queue in "ab":
        await broker.enqueue_many([NewJob(queue, limits=[f"one:{queue}"]) for _ in range(3)])
        assert len(await broker.claim(queue, limit=3)) == 1
    for turn in range(3):
        for queue in "ab":
            await broker.enqueue_many([NewJob(queue, delay=60 * (number % 2)) for number in range(4)])
            acked, died, _, failed = await broker.claim([queue, queue], limit=4) if turn else [None] * 4
            if acked and died and failed:
                await broker.ack(acked)
                await broker.dead_letter(died, "no good")
                await broker.nack(failed, "again", delay=0)
            await broker.cancel((await broker.enqueue(queue)).id)
            await broker.enqueue(queue, priority=5)
    return broker


@pytest.mark.parametrize("few", [2, 1000])
async def test_a_short_scan_finds_the_same_as_a_long_one(
    broker: Broker, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = await broker.jobs(limit=1000)
    assert {job.state for job in everything} == set(JobState)
    monkeypatch.setattr(ordered_collections, "_WALK", 2)
    monkeypatch.setattr(ordered_collections, "_FEW", few)
    cursors = [None, everything[0].id, everything[len(everything) // 2].id]
    for queue, state, after, newest_first in product(
        (None, "a", "b"), (None, *JobState), cursors, (False, True)
    ):
        wanted = [
            job.id
            for job in (reversed(everything) if newest_first else everything)
            if queue in (None, job.queue) and state in (None, job.state)
            if after is None or (job.id < after if newest_first else job.id > after)
        ]
        found = await broker.jobs(queue, state, after=after, limit=1000, newest_first=newest_first)
        assert [job.id for job in found] == wanted, (queue, state, after, newest_first)
        one = await broker.jobs(queue, state, after=after, limit=1, newest_first=newest_first)
        assert [job.id for job in one] == wanted[:1]
    await broker.close()
