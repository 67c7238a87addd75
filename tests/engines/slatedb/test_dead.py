"""The index of dead jobs: its content, its migration, and how little a listing reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from dayjob import Broker, Job, JobState, NewJob, QueueStats, Retention, Settlement
from dayjob.engines.slatedb import keys, opening
from dayjob.engines.slatedb.database import Source
from dayjob.engines.slatedb.ffi import Row
from dayjob.model.job import id_key
from tests.engines.slatedb.conftest import QUIET
from tests.engines.slatedb.damage import damage_job, open_thread, write_database
from tests.engines.slatedb.test_opening import rewrite
from tests.support.arrange import dead, quiet, running
from tests.support.observe import check_counters, ids

FOR_EVER = quiet(retention=Retention(dead=None))


async def stored(url: str, prefix: bytes) -> dict[bytes, bytes]:
    """Return the rows under the prefix."""
    thread = open_thread(url)
    assert thread._loop is not None

    async def read() -> dict[bytes, bytes]:
        return {key: value async for rows in thread._database.scan(prefix) for key, value in rows}

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(read(), thread._loop))


async def check_index(broker: Broker, url: str) -> int:
    """Check that both indexes have exactly the dead jobs. Return their number."""
    jobs = await broker.jobs(state=JobState.DEAD, limit=1000)
    wanted = {
        row: job.queue.encode()
        for job in jobs
        for row in keys.dead(job.queue, job.finished_us or 0, id_key(job.id))
    }
    assert await stored(url, keys.DEAD) == wanted
    assert len(wanted) == 2 * len(jobs)
    await check_counters(broker)
    return len(jobs)


async def paged(broker: Broker, queue: str | None = None, limit: int = 2) -> list[Job]:
    found: list[Job] = []
    while page := await broker.latest_dead(queue, before=found[-1] if found else None, limit=limit):
        found += page
    return found


# Its content.


async def test_the_index_has_exactly_the_dead_jobs(url: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        await dead(broker, "a")
        await broker.nack(await running(broker, "b", max_attempts=1), "boom")
        await broker.enqueue("c", max_attempts=1)
        await broker.claim("c", worker="gone")
        assert len(await broker._engine.reclaim(["gone"], 10)) == 1
        damaged = await broker.enqueue("d", b"data")
        damage_job(url, id_key(damaged.id), "no body")
        assert await broker.claim("d") == []
        assert await check_index(broker, url) == 4
        await broker.ack(await running(broker, "a"))
        await broker.cancel((await broker.enqueue("a")).id)
        assert await check_index(broker, url) == 4
    async with Broker(url, config=QUIET) as broker:
        assert await check_index(broker, url) == 4


async def test_a_job_that_is_no_longer_dead_leaves_the_index(url: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        again, *_ = [await dead(broker, queue) for queue in "aabbccde"]
        assert await broker.requeue(again)
        assert await check_index(broker, url) == 7
        assert await broker.requeue_dead("b") == 2
        assert await check_index(broker, url) == 5
        assert await broker.purge_dead("c") == 2
        assert await check_index(broker, url) == 3
        assert await broker._engine.sweep(2, over_by=2**60) == (2, 0)
        assert await check_index(broker, url) == 1
        assert await broker.sweep_dead(timedelta(0)) == 1
        assert await check_index(broker, url) == 0
        assert await stored(url, keys.REMOVAL) == {}


async def test_a_job_that_dies_again_is_in_the_index_once(url: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        id = await dead(broker)
        for _ in range(2):
            await broker.requeue(id)
            await broker.dead_letter((await broker.claim("q"))[0], "again")
        assert await check_index(broker, url) == 1
        assert ids(await broker.latest_dead()) == [id]


@pytest.mark.parametrize("what", ["no value", "no version", "cut short"])
async def test_an_unreadable_dead_job_keeps_its_position_and_its_queue(url: str, what: str) -> None:
    """Also a job that is kept for ever, without a removal row that has its queue."""
    async with Broker(url, config=FOR_EVER) as broker:
        made = [await dead(broker, "q") for _ in range(3)]
        damage_job(url, id_key(made[1]), what)
        latest = await paged(broker, "q", limit=1)
        assert ids(latest) == made[::-1]
        assert "corrupt record" in str(latest[1].last_error)
        assert ids(await broker.dead_jobs("q")) == made
        assert await check_index(broker, url) == 3
        assert await broker.purge_dead("q") == 3
        assert await broker.stats("q") == QueueStats()
        assert await check_index(broker, url) == 0


async def test_an_index_entry_without_its_job_is_skipped(url: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        made = [await dead(broker) for _ in range(4)]
        await rewrite(
            url, lambda thread: thread._write_batch.delete(keys.finished(JobState.DEAD, id_key(made[2])))
        )
        assert ids(await broker.latest_dead(limit=2)) == [made[3], made[1]]


# Older layouts.


def first_layout() -> dict[bytes, bytes]:
    """The bytes of layout 1: dead jobs, one kept for ever, one unreadable; one done."""
    pack = msgspec.msgpack.encode
    rows = {b"\x00dayjob": pack({"layout": 1})}
    for number, queue, state, ended, removed in [
        (1, "a", 4, 50, 1050),
        (2, "b", 4, 90, 1090),
        (3, "a", 4, 70, None),
        (4, "b", 4, 60, 1060),
        (5, "a", 3, 80, 1080),
    ]:
        key = UUID(int=number).bytes
        head = pack([queue, 1000, 3, 7, 7, False, None, None, "claimed"])
        change = pack([state, 1000, 1, 1, 7, 0, 8, None, ended, None, removed, "boom", [], None, False])
        body = pack([b"data", "t", {}, None])
        parts = [len(part).to_bytes(4, "big") + part for part in (head, change)]
        row = b"\x01f" + (b"x" if state == 4 else b"d") + key
        rows[row] = b"garbage" if number == 4 else b"\x01" + b"".join(parts) + body
        if removed is not None:
            rows[b"\x01r" + removed.to_bytes(8, "big") + key] = b"\x01" + pack([state, queue])
    rows[b"\x01qa"] = b"\x01" + pack([False, [0, 0, 0, 1, 2, 0]])
    rows[b"\x01qb"] = b"\x01" + pack([False, [0, 0, 0, 0, 2, 0]])
    return rows


LATEST: list[tuple[str | None, list[int]]] = [(None, [2, 3, 1, 4]), ("a", [3, 1]), ("b", [2, 4]), ("c", [])]
"""Layout 1 has no finish time of the unreadable job."""


async def check_latest(broker: Broker) -> None:
    for queue, numbers in LATEST:
        assert [UUID(job.id).int for job in await paged(broker, queue)] == numbers


@pytest.mark.parametrize("batch", [1, 2, 1000])
async def test_dead_jobs_of_the_first_layout_are_indexed(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(opening, "_MIGRATED", batch)
    write_database(path, first_layout())
    async with Broker(url, config=QUIET) as broker:
        await check_latest(broker)
        assert await check_index(broker, url) == 4
    async with Broker(url, config=QUIET) as broker:
        await check_latest(broker)
        assert await broker._engine.sweep(10, over_by=1060) == (2, 0)
        assert await check_index(broker, url) == 2
        assert await broker._engine.sweep(10, over_by=2000) == (2, 0)
        assert [UUID(job.id).int for job in await broker.latest_dead()] == [3]
        assert await broker.purge_dead() == 1
        assert await check_index(broker, url) == 0


async def test_a_reader_of_the_first_layout_needs_no_index(url: str, path: Path) -> None:
    write_database(path, first_layout())
    async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
        await check_latest(reader)
        async with Broker(url, config=QUIET):
            await check_latest(reader)


async def test_an_interrupted_migration_starts_again(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows of jobs that an older dayjob has removed since are gone."""
    gone = keys.dead("a", 75, UUID(int=9).bytes)
    write_database(path, first_layout() | dict.fromkeys(gone, b"a"))

    async def cut_off(*_: Any) -> None:
        raise RuntimeError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr("dayjob.engines.slatedb.store_thread.load", cut_off)
        with pytest.raises(Exception, match="cut off"):
            await Broker(url, config=QUIET).open()
    async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
        await check_latest(reader)
    async with Broker(url, config=QUIET) as broker:
        await check_latest(broker)
        assert await check_index(broker, url) == 4


# The number of rows that a listing reads.


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The rows that are read, by key and by scans."""
    found: list[bytes] = []
    get, scan = Source.get, Source.scan

    async def counted_get(self: Source, key: bytes) -> bytes | None:
        found.append(key)
        return await get(self, key)

    async def counted_scan(self: Source, prefix: bytes, **options: Any) -> AsyncIterator[list[Row]]:
        async for rows in scan(self, prefix, **options):
            found.extend(key for key, _ in rows)
            yield rows

    monkeypatch.setattr(Source, "get", counted_get)
    monkeypatch.setattr(Source, "scan", counted_scan)
    return found


async def test_a_listing_of_the_latest_reads_few_of_many(
    url: str, broker: Broker, rows_read: list[bytes]
) -> None:
    """Also for a queue with few of the dead jobs. A reader loads no active jobs for it."""
    await broker.enqueue_many([NewJob("rare" if number < 5 else "q") for number in range(1000)])
    jobs = await broker.claim(["rare", "q"], limit=900)
    await broker.settle_many([Settlement.dead_letter(job, "no good") for job in jobs])
    async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
        for looker in (broker, reader):
            for queue, expected in ((None, jobs[:-4:-1]), ("rare", jobs[4:1:-1])):
                rows_read.clear()
                page = await looker.latest_dead(queue, limit=3)
                assert ids(page) == ids(expected)
                assert len(rows_read) <= 2 * 3 + 3, "index, jobs, and a reader's checks of layout and queues"
                rows_read.clear()
                assert await looker.latest_dead(queue, before=page[0], limit=1) == page[1:2]
                assert len(rows_read) <= 2 + 3
        rows_read.clear()
        assert ids(await reader.jobs(state=JobState.DEAD, newest_first=True, limit=5)) == ids(jobs[:-6:-1])
        assert len(rows_read) <= 16 + 2


async def test_few_dead_jobs_among_many_are_listed_by_their_queue_s_index(
    url: str, broker: Broker, rows_read: list[bytes]
) -> None:
    await broker.enqueue_many([NewJob("q" if number % 100 else "rare") for number in range(1000)])
    jobs = await broker.claim(["rare", "q"], limit=1000)
    await broker.settle_many([Settlement.dead_letter(job, "no good") for job in jobs])
    rare = ids(jobs[:10])
    rows_read.clear()
    assert ids(await broker.dead_jobs("rare")) == rare
    assert ids(await broker.dead_jobs("rare", after=rare[3], limit=2)) == rare[4:6]
    backwards = await broker.jobs("rare", JobState.DEAD, after=rare[3], newest_first=True)
    assert ids(backwards) == rare[2::-1]
    assert await broker.dead_jobs("unknown") == await broker.jobs("unknown") == []
    assert len(rows_read) <= 60
    assert await broker.requeue_dead("rare") == 10
    assert await check_index(broker, url) == 990
