"""Opening: claims, returning ids, damage, counters, a large backlog."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import NoReturn
from uuid import UUID

import pytest

from dayjob import Broker, EngineUnavailable, JobState, NewJob, QueueStats
from dayjob.engines.slatedb import keys, payload_cache, values
from dayjob.engines.slatedb.open_claims import OpenClaim
from dayjob.engines.slatedb.store_thread import StoreThread
from dayjob.model.job import id_key
from tests.engines.slatedb.conftest import QUIET
from tests.engines.slatedb.damage import damage_job, open_thread
from tests.support.arrange import KEEP_ALL, quiet
from tests.support.bound import BOUND
from tests.support.observe import check_counters, ids

Rewrite = Callable[[StoreThread], None]


async def rewrite(url: str, change: Rewrite) -> None:
    """Stage rows in the open database and write them."""
    thread = open_thread(url)
    assert thread._loop is not None

    async def write() -> None:
        change(thread)
        await thread._publish()

    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(write(), thread._loop))


async def test_a_returning_id_is_not_under_the_claim_of_its_earlier_job(url: str) -> None:
    """The claim's row stays for its other job. It has the id with an epoch above that of the new job."""
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue_many([NewJob("q"), NewJob("q")])
        first, second = await broker.claim("q", limit=2)
        await broker.ack(first)
        assert (await broker.enqueue("q", b"again", id=first.id)).created
    async with Broker(url, config=QUIET) as broker:
        assert await broker.stats("q") == QueueStats(pending=1, running=1, done=1)
        (again,) = await broker.claim("q")
        assert (again.id, again.payload, again.attempts) == (first.id, b"again", 1)
        assert again.epoch > first.epoch
        await broker.ack(second)


async def test_an_id_that_returns_after_opening_is_not_under_the_earlier_claim(url: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue_many([NewJob("q"), NewJob("q")])
        other, first = await broker.claim("q", limit=2)
        await broker.ack(first)
    async with Broker(url, config=QUIET) as broker:
        assert (await broker.enqueue("q", b"again", id=first.id)).created
    async with Broker(url, config=QUIET) as broker:
        assert await broker.stats("q") == QueueStats(pending=1, running=1, done=1)
        await broker.ack(other)


async def test_ids_of_the_caller_are_not_searched_among_the_running_jobs(url: str) -> None:
    """Such an id is often below the newest one, so that it may be the id of an earlier job."""

    class Unsearchable(dict[int, OpenClaim]):
        def _refuse(self) -> NoReturn:
            raise AssertionError("all claims are searched")

        items = values = __iter__ = _refuse

    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue_many([NewJob("q", id=UUID(int=number)) for number in range(3, 9)])
        first, *_ = await broker.claim("q", limit=5)
        await broker.ack(first)
        claims = open_thread(url)._store.claims
        claims.by_number = Unsearchable(claims.by_number)
        replies = await broker.enqueue_many([NewJob("q", id=UUID(int=1)), NewJob("q", id=UUID(int=2))])
        assert [reply.created for reply in replies] == [True, True]
        claims.by_number = dict.copy(claims.by_number)
    async with Broker(url, config=QUIET) as broker:
        assert await broker.stats("q") == QueueStats(pending=3, running=4, done=1)


async def test_an_id_of_a_finished_job_is_taken(url: str) -> None:
    async with Broker(url, config=quiet(retention=KEEP_ALL)) as broker:
        await broker.enqueue("q", id=UUID(int=5))
        await broker.ack((await broker.claim("q"))[0])
        assert not (await broker.enqueue("q", id=UUID(int=5))).created
    async with Broker(url, config=quiet(retention=KEEP_ALL)) as broker:
        assert not (await broker.enqueue("q", id=UUID(int=5))).created
        assert (await broker.enqueue("q", id=UUID(int=4))).created


@pytest.mark.parametrize("what", ["no value", "no version", "cut short"])
async def test_a_job_that_is_unreadable_at_opening_is_quarantined(url: str, what: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        first, second, third = await broker.enqueue_many([NewJob("q", b"data") for _ in range(3)])
        damage_job(url, id_key(second.id), what)
    for _ in range(2):
        async with Broker(url, config=QUIET) as broker:
            assert await broker.stats("q") == QueueStats(pending=2)
            (dead,) = await broker.dead_jobs()
            assert (dead.id, dead.queue) == (second.id, values.UNREADABLE)
            assert "corrupt record" in str(dead.last_error)
            await check_counters(broker)
    async with Broker(url, config=QUIET) as broker:
        assert ids(await broker.claim("q", limit=5)) == [first.id, third.id]
        assert await broker.purge_dead() == 1


async def test_a_job_with_an_unreadable_state_is_quarantined_on_its_queue(url: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        retried, other = await broker.enqueue_many([NewJob("q", b"data", dedup_key="k"), NewJob("q")])
        (job,) = await broker.claim("q")
        await broker.nack(job, "boom", delay=60)
        await rewrite(url, lambda thread: thread._write_batch.put(keys.state(job.key), b"\x01\xc1"))
    async with Broker(url, config=QUIET) as broker:
        (dead,) = await broker.dead_jobs("q")
        assert (dead.id, dead.payload) == (retried.id, b"data")
        assert await broker.stats("q") == QueueStats(pending=1, dead=1)
        assert (await broker.enqueue("q", dedup_key="k")).created, "it holds its key no longer"
        assert ids(await broker.claim("q"))[0] == other.id


async def test_the_jobs_of_an_unreadable_claim_are_pending_again(url: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue("q")
        await broker.claim("q")
        await rewrite(url, lambda thread: thread._write_batch.put(keys.claim(1), b"garbage"))
    async with Broker(url, config=QUIET) as broker:
        assert await broker.stats("q") == QueueStats(pending=1)
        assert len(await broker.claim("q")) == 1


async def test_wrong_counters_are_repaired(url: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue_many([NewJob("q"), NewJob("q"), NewJob("q", delay=60)])
        await broker.ack((await broker.claim("q"))[0])
        wrong = values.queue_value(QueueStats(9, 9, 9, 1, 0, 0), False)
        await rewrite(url, lambda thread: thread._write_batch.put(keys.queue("q"), wrong))
    async with Broker(url, config=QUIET) as broker:
        assert await broker.stats("q") == QueueStats(pending=1, scheduled=1, done=1)


async def test_a_backlog_larger_than_the_cache_is_claimed_in_order(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two queues: some jobs are cached, most are read ahead, some are read one by one."""
    monkeypatch.setattr(payload_cache, "ROOM", 20_000)
    monkeypatch.setattr(payload_cache, "_READ_AHEAD", 50)
    jobs = [NewJob("ab"[number % 2], b"%d" % number) for number in range(600)]
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue_many(jobs)
        for limit in (1, 30, 5, 100, 164):
            claimed = await broker.claim("a", limit=limit)
            assert len(claimed) == limit
            await asyncio.gather(*map(broker.ack, claimed))
        assert await broker.claim("a") == []
    async with Broker(url, config=QUIET) as broker:
        found = [job.payload for _ in range(10) for job in await broker.claim("b", limit=30)]
        assert found == [b"%d" % number for number in range(1, 600, 2)]
        assert open_thread(url)._store.payloads._size < 3 * payload_cache.ROOM
        assert {job.state for job in await broker.jobs(limit=1000)} == {JobState.RUNNING}


async def test_a_failed_thread_is_replaced(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its write may have been stored, so that is not repeated. A read is, on the next thread."""
    broker = await Broker(url, config=QUIET).open()
    thread = open_thread(url)
    stopping, asked = threading.Event(), threading.Event()
    shut = thread._shut

    async def shut_slowly() -> None:
        stopping.set()
        await asyncio.to_thread(asked.wait, 20)
        await shut()

    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(thread._store, "take_topics", fail)
    monkeypatch.setattr(thread, "_shut", shut_slowly)
    async with asyncio.timeout(BOUND):
        first = asyncio.ensure_future(broker.enqueue("q"))
        await asyncio.to_thread(stopping.wait, 20)
        second = asyncio.ensure_future(broker.kv_get(b"k"))
        asked.set()
        with pytest.raises(EngineUnavailable, match="a bug"):
            await first
        assert await second is None
        assert open_thread(url) is not thread
        assert (await broker.enqueue("q")).created
        await broker.close()
