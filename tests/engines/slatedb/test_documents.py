"""Documents and their layout: older databases, damage, readers; reclaimed claims."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from dayjob import Broker, ConfigError, InvalidState, NewJob, QueueStats
from dayjob.engines.base import DocumentWrite, Engine
from dayjob.engines.slatedb import keys, store_thread, values
from dayjob.model.job import id_key
from dayjob.runtime.clock import SYSTEM
from tests.engines.slatedb.conftest import QUIET
from tests.engines.slatedb.damage import make_database, open_thread, write_database
from tests.engines.slatedb.test_opening import rewrite

WRITE = DocumentWrite("k", "a", None, b"1")
KEY = UUID(int=5).bytes


def first_layout() -> dict[bytes, bytes]:
    """The bytes of layout 1: a pending job, its queue, and a kv pair."""
    pack = msgspec.msgpack.encode
    head = pack(["q", 1000, 3, 7, 7, False, None, None, "claimed"])
    body = pack([b"data", "t", {}, None])
    return {
        b"\x00dayjob": pack({"layout": 1}),
        b"\x01j" + KEY: b"\x01" + len(head).to_bytes(4, "big") + head + body,
        b"\x01qq": b"\x01" + pack([False, [1, 0, 0, 0, 0, 0]]),
        b"\x01kkey": b"value",
    }


async def values_of(engine: Engine) -> dict[str, bytes]:
    return {one.name: one.value for one in (await engine.documents("k"))[1]}


async def stored_layout(url: str) -> object:
    opened = open_thread(url)
    assert opened._loop is not None
    reading = asyncio.run_coroutine_threadsafe(opened._database.get(keys.LAYOUT_KEY), opened._loop)
    value = await asyncio.wrap_future(reading)
    return None if value is None else values.layout(value)


# The layout.


async def test_a_database_of_the_first_layout_is_migrated(url: str, path: Path) -> None:
    write_database(path, first_layout())
    async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
        assert (await reader.stats("q")).pending == 1, "a reader needs no migration"
        assert await values_of(reader._engine) == {}
    async with Broker(url, config=QUIET) as broker:
        assert await stored_layout(url) == keys.VERSION
        assert await broker._engine.compare_and_set([WRITE])
    async with Broker(url, config=QUIET) as broker:
        assert await values_of(broker._engine) == {"a": b"1"}
        assert await broker.kv_get(b"key") == b"value"
        (job,) = await broker.claim("q")
        assert (job.key, job.task, job.payload) == (KEY, "t", b"data")
        await broker.ack(job)
        assert await broker.stats("q") == QueueStats(done=1)


async def test_a_claim_of_the_second_layout_ends_at_the_first_reap(url: str, path: Path) -> None:
    """Its row has no key, and it counts for the job whose stored epoch is smaller."""
    pack = msgspec.msgpack.encode
    claim = b"\x01" + pack([7, 9, "w", [[KEY, 1, 1_000_000_000]]])
    version = {b"\x00dayjob": pack({"layout": 2})}
    write_database(path, first_layout() | version | {b"\x01c" + bytes(7) + b"\x01": claim})
    async with Broker(url, config=QUIET) as broker:
        assert await stored_layout(url) == keys.VERSION
        assert await broker.stats("q") == QueueStats(running=1)
        assert await broker.reap() == 1
        (job,) = await broker.claim("q")
        assert (job.key, job.attempts) == (KEY, 2)
        await broker.ack(job)
        assert await broker.stats("q") == QueueStats(done=1)


async def test_a_dayjob_of_the_first_layout_refuses_this_one(
    url: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.close()
    newer = keys.VERSION
    monkeypatch.setattr(keys, "VERSION", 1)
    for refused in (url, f"{url}?readonly=1", f"{url}?takeover=1"):
        with pytest.raises(ConfigError, match=f"layout {newer} is from a newer dayjob"):
            await Broker(refused, config=QUIET).open()


async def test_a_migration_between_the_check_and_the_opening_is_detected(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_database(path, "future")

    async def checked(settings: object) -> None:
        """The layout was older at this time."""

    with monkeypatch.context() as patched:
        patched.setattr(store_thread, "check_owner", checked)
        with pytest.raises(ConfigError, match="layout 9999"):
            await Broker(url, config=QUIET).open()
    with pytest.raises(ConfigError, match="layout 9999"):
        await Broker(url, config=QUIET).open()


async def test_an_unreadable_document_is_ignored(url: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker._engine.compare_and_set([WRITE, DocumentWrite("k", "b", None, b"2")])
        await rewrite(url, lambda opened: opened._write_batch.put(keys.document("k", "a"), b"garbage"))
    async with Broker(url, config=QUIET) as broker:
        async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
            assert await values_of(reader._engine) == {"b": b"2"}
        assert await values_of(broker._engine) == {"b": b"2"}
        assert await broker._engine.compare_and_set([WRITE])
    async with Broker(url, config=QUIET) as broker:
        assert await values_of(broker._engine) == {"a": b"1", "b": b"2"}


# Readers.


async def test_a_reader_returns_documents_and_positions(url: str, broker: Broker) -> None:
    first, second = await broker.enqueue_many([NewJob("q"), NewJob("q")])
    before = SYSTEM.now()
    await broker._engine.compare_and_set([WRITE, DocumentWrite("kk", "a", None, b"2")])
    async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
        engine = reader._engine
        now, (document,) = await engine.documents("k")
        assert (document.name, document.value) == ("a", b"1")
        assert before <= document.written_us <= now <= SYSTEM.now()
        assert await engine.position(id_key(second.id), 10) == 1
        assert await engine.position(id_key(first.id), 10) == 0
        await broker._engine.compare_and_set([DocumentWrite("k", "a", b"1", None)])
        assert await values_of(engine) == {}


async def test_a_reader_writes_no_documents_and_reclaims_nothing(url: str, broker: Broker) -> None:
    await broker.enqueue("q")
    await broker.claim("q", worker="w")
    async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
        with pytest.raises(InvalidState, match="readonly=1"):
            await reader._engine.compare_and_set([WRITE])
        assert len(await reader._engine.reclaim(["w"], 10)) == 0
    assert (await broker.stats("q")).running == 1


# Claims of dead workers.


async def test_claims_of_an_earlier_opening_are_reclaimed(url: str) -> None:
    """The workers are in the rows of the claims, and of renewed jobs."""
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue_many([NewJob("q") for _ in range(3)])
        _, renewed = await broker.claim("q", limit=2, worker="gone")
        await broker.claim("q", worker="here")
        await broker.renew(renewed, 3600)
    async with Broker(url, config=QUIET) as broker:
        assert len(await broker._engine.reclaim(["gone"], 10)) == 2
        assert len(await broker._engine.reclaim(["gone"], 10)) == 0
    async with Broker(url, config=QUIET) as broker:
        assert await broker.stats("q") == QueueStats(pending=2, running=1)
        assert {job.last_error for job in await broker.claim("q", limit=2)} == {"worker gone"}
