"""A commit that fails: no reply counts that depends on it, and the database is loaded again."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from dayjob import Broker, EngineFenced, EngineUnavailable, Job
from dayjob.engines.base import JobQuery
from dayjob.engines.slatedb.store import SlateStore
from tests.engines.slatedb.damage import open_thread
from tests.engines.slatedb.s3 import Proxy
from tests.faults.slatedb.conftest import QUIET
from tests.faults.slatedb.faults import LOG_WRITE, limit, refuse_once
from tests.faults.slatedb.roles import end_all
from tests.support.bound import BOUND
from tests.support.processes import Spawn, pause

pytestmark = pytest.mark.slow


async def stored(url: str) -> list[bytes]:
    """Return the payloads in the database, by a new broker."""
    async with Broker(url, config=QUIET) as broker:
        return [job.payload for job in await broker.jobs()]


async def test_a_write_in_the_batch_of_a_listing_is_not_acknowledged_if_its_commit_fails(
    url: str, broker: Broker, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing writes the changes of its batch before it scans. That write fails during the scan."""
    thread, occupied = open_thread(url), asyncio.Event()

    async def occupy(_: SlateStore) -> None:
        assert thread._loop is not None
        broker_loop.call_soon_threadsafe(occupied.set)
        while len(thread._waiting) < 2:
            await pause(0.001)

    async def find(query: JobQuery) -> list[Job]:
        await thread._write_batch.scannable()
        await asyncio.wait({thread._durable})
        return []

    broker_loop = asyncio.get_running_loop()
    monkeypatch.setattr(thread._store, "find", find)
    refuse_once(proxy, b"404 Not Found")
    first = asyncio.ensure_future(thread.run(occupy))
    await occupied.wait()
    async with asyncio.timeout(BOUND):
        enqueued, listed = await asyncio.gather(
            broker.enqueue("q", b"important"), broker.jobs(), return_exceptions=True
        )
        await first
    assert isinstance(enqueued, EngineUnavailable)
    assert listed == [], "it was repeated on the database that was opened again"
    assert await broker.stats("q") is not None
    assert await stored(url) == []


async def test_a_write_that_can_not_be_confirmed_ends_the_thread(
    url: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes in its memory may not be stored. The flush after the write has succeeded."""
    thread = open_thread(url)

    async def refuse(_: object) -> None:
        raise EngineUnavailable("no confirmation")

    monkeypatch.setattr(thread._database, "wait_durable", refuse)
    enqueued = asyncio.ensure_future(broker.enqueue("q", b"unconfirmed"))
    await asyncio.wait({enqueued}, timeout=BOUND / 4)
    failed = thread.failure is not None
    if not failed and thread._loop is not None:  # Otherwise the broker could not be closed.
        thread._loop.call_soon_threadsafe(thread._fail, EngineUnavailable("the end of the test"))
    assert failed
    with pytest.raises(EngineUnavailable):
        await enqueued
    await broker.enqueue("q", b"important")
    assert b"important" in await stored(url)


async def test_the_repetition_of_a_write_whose_commit_failed_is_applied(
    url: str, broker: Broker, proxy: Proxy
) -> None:
    limit(broker, url, 1)
    proxy.delays, proxy.latency = LOG_WRITE, 2
    refuse_once(proxy, b"404 Not Found")
    id = str(UUID(int=7))
    with pytest.raises(EngineUnavailable):
        await broker.enqueue("q", b"important", id=id)
    proxy.failing, proxy.latency = None, 0
    for _ in range(2):  # The first may come before the commit has failed.
        try:
            assert (await broker.enqueue("q", b"important", id=id)).id == id
            break
        except EngineUnavailable:
            continue
    assert await stored(url) == [b"important"]


async def test_memory_is_not_read_after_a_failed_commit(url: str, broker: Broker, proxy: Proxy) -> None:
    await broker.enqueue("q", b"before")
    refuse_once(proxy, b"404 Not Found")
    with pytest.raises(EngineUnavailable):
        await broker.enqueue("q", b"never stored")
    assert [job.payload for job in await broker.jobs()] == [b"before"]
    assert (await broker.stats("q")).pending == 1


@pytest.mark.parametrize("again", [{"dedup_key": "k"}, {"id": UUID(int=9)}], ids=["dedup key", "id"])
async def test_a_fenced_process_does_not_acknowledge_an_enqueue_from_memory(
    url: str, broker: Broker, spawn: Spawn, again: dict[str, object]
) -> None:
    """Another process has run the job that memory still has."""
    await broker.enqueue("q", b"first", **again)  # type: ignore[arg-type]
    other = await spawn(end_all, f"{url}&takeover=1")
    assert await other.receive() == ["first"]
    with pytest.raises(EngineFenced):
        await broker.enqueue("q", b"second", **again)  # type: ignore[arg-type]


async def test_a_conflict_of_a_write_is_not_taken_for_a_take_over(
    url: str, broker: Broker, proxy: Proxy
) -> None:
    """A store may reply 409 to a conditional write. Claims and the broker survive."""
    await broker.enqueue("q", b"before")
    (job,) = await broker.claim("q")
    refuse_once(proxy, b"409 Conflict")
    assert (await broker.enqueue("q", b"during")).created
    assert proxy.refused == 1
    await broker.ack(job)
    assert [job.payload for job in await broker.jobs()] == [b"during"]
