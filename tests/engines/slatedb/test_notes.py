"""Notes and the layout that has them: older databases, damage, lost answers, readers; and who goes first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dayjob import Broker, ConfigError, EngineUnavailable, InvalidState, NewJob, QueueStats
from dayjob.broker.validation import Validator
from dayjob.engines.base import DocumentWrite, Engine, Insertion
from dayjob.engines.order import Line
from dayjob.engines.slatedb import core, documents, keys, values
from dayjob.engines.slatedb.live import Place
from dayjob.model.job import id_key
from dayjob.runtime.signals import documents_topic
from tests.engines.slatedb.conftest import QUIET
from tests.engines.slatedb.damage import make_database, open_core, write_database
from tests.engines.slatedb.test_opening import rewrite

WRITE = DocumentWrite("k", "a", None, b"1")
KEY = UUID(int=5).bytes


def first_layout() -> dict[bytes, bytes]:
    """What the first dayjob wrote: a pending job, its queue, and a value of the user's. To the byte."""
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
    return {note.name: note.value for note in (await engine.documents("k"))[1]}


async def stored_layout(url: str) -> object:
    opened = open_core(url)
    assert opened._loop is not None
    reading = asyncio.run_coroutine_threadsafe(opened._database.get(keys.LAYOUT_KEY), opened._loop)
    value = await asyncio.wrap_future(reading)
    return None if value is None else values.layout(value)


# The layout.


async def test_a_database_of_the_first_layout_is_brought_to_this_one(url: str, path: Path) -> None:
    write_database(path, first_layout())
    async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
        assert (await reader.stats("q")).pending == 1, "a reader needs nobody to have migrated it"
        assert await values_of(reader._engine) == {}
    async with Broker(url, config=QUIET) as broker:
        assert await stored_layout(url) == 2
        assert await broker._engine.compare_and_set([WRITE])
    async with Broker(url, config=QUIET) as broker:
        assert await values_of(broker._engine) == {"a": b"1"}
        assert await broker.kv_get(b"key") == b"value"
        (job,) = await broker.claim("q")
        assert (job.key, job.task, job.payload) == (KEY, "t", b"data")
        await broker.ack(job)
        assert await broker.stats("q") == QueueStats(done=1)


async def test_who_knows_the_first_layout_only_refuses_this_one(
    url: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.close()
    monkeypatch.setattr(keys, "VERSION", 1)
    for refused in (url, f"{url}?readonly=1", f"{url}?takeover=1"):
        with pytest.raises(ConfigError, match="layout 2 is from a newer dayjob"):
            await Broker(refused, config=QUIET).open()


async def test_a_migration_between_the_look_and_the_opening_is_noticed(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_database(path, "future")

    async def looked(place: object) -> None:
        """It was an older layout then."""

    with monkeypatch.context() as patched:
        patched.setattr(core, "may_open", looked)
        with pytest.raises(ConfigError, match="layout 9999"):
            await Broker(url, config=QUIET).open()
    with pytest.raises(ConfigError, match="layout 9999"):
        await Broker(url, config=QUIET).open()


async def test_a_note_that_is_unreadable_counts_as_none(url: str) -> None:
    async with Broker(url, config=QUIET) as broker:
        await broker._engine.compare_and_set([WRITE, DocumentWrite("k", "b", None, b"2")])
        await rewrite(url, lambda opened: opened._ledger.put(keys.note("k", "a"), b"garbage"))
    async with Broker(url, config=QUIET) as broker:
        async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
            assert await values_of(reader._engine) == {"b": b"2"}
        assert await values_of(broker._engine) == {"b": b"2"}
        assert await broker._engine.compare_and_set([WRITE])
    async with Broker(url, config=QUIET) as broker:
        assert await values_of(broker._engine) == {"a": b"1", "b": b"2"}


# Answers that were lost.


def insertion(broker: Broker) -> Insertion:
    validator: Validator = broker._validator
    return validator.insertion(NewJob("q"))


async def lose(url: str, engine: Engine, writes: list[DocumentWrite], jobs: list[Insertion]) -> None:
    """Write the notes, but hear that it took too long: the flush before was just now, so this one waits."""
    opened = open_core(url)
    patient = opened.place
    opened.place = replace(patient, patience=0)
    with pytest.raises(EngineUnavailable, match="may be repeated"):
        await engine.compare_and_set(writes, jobs, announce=True)
    opened.place = patient


@pytest.fixture
def slow_url(url: str) -> str:
    return f"{url}?flush_ms=300"


async def test_a_repetition_gets_the_answer_that_was_lost(slow_url: str) -> None:
    async with Broker(slow_url, config=QUIET) as broker:
        engine, job = broker._engine, insertion(broker)
        await broker.kv_put(b"k", b"v")
        with engine.signals.listen([documents_topic("k")]) as heard:
            await lose(slow_url, engine, [WRITE], [job])
            assert not await engine.compare_and_set([DocumentWrite("k", "a", None, b"2")], [job]), "another's"
            assert not await engine.compare_and_set([WRITE], [insertion(broker)]), "another's"
            assert await engine.compare_and_set([WRITE], [job])
            async with asyncio.timeout(20):
                await heard.wait()
        assert not await engine.compare_and_set([WRITE], [job]), "it was told once"
        assert await values_of(engine) == {"a": b"1"}
        assert (await broker.stats("q")).pending == 1


async def test_the_answer_is_there_after_others_wrote(slow_url: str) -> None:
    async with Broker(slow_url, config=QUIET) as broker:
        engine = broker._engine
        await broker.kv_put(b"k", b"v")
        await lose(slow_url, engine, [WRITE], [])
        assert await engine.compare_and_set([DocumentWrite("k", "a", b"1", b"2")])
        assert await engine.compare_and_set([WRITE])
        assert await values_of(engine) == {"a": b"2"}


async def test_a_write_that_nobody_repeats_is_not_anothers_success(slow_url: str) -> None:
    async with Broker(slow_url, config=QUIET) as broker:
        engine = broker._engine
        await broker.kv_put(b"k", b"v")
        await lose(slow_url, engine, [WRITE], [])
        assert await engine.compare_and_set([DocumentWrite("k", "a", b"1", None)])
        assert await engine.compare_and_set([WRITE]), "it is as expected, so it is written"
        assert await values_of(engine) == {"a": b"1"}
        assert not await engine.compare_and_set([WRITE])


async def test_writes_that_nobody_asks_for_again_are_forgotten(
    broker: Broker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "REMEMBERED", 2)
    kept = documents.Documents(open_core(url)._ledger)
    writes = [[replace(WRITE, name=name)] for name in "abc"]
    for some in writes:
        kept.remember(some, [])
    assert [kept.recall(some, []) for some in writes] == [False, True, True]


# Readers.


async def test_a_reader_sees_notes_and_who_goes_first(url: str, broker: Broker) -> None:
    first, second = await broker.enqueue_many([NewJob("q"), NewJob("q")])
    await broker._engine.compare_and_set([WRITE, DocumentWrite("kk", "a", None, b"2")], now=5)
    async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
        engine = reader._engine
        now, (note,) = await engine.documents("k", now=7)
        assert (now, note.name, note.value, note.written_us) == (7, "a", b"1", 5)
        assert (await engine.documents("k"))[0] > 7
        assert await engine.position(id_key(second.id), 10) == 1
        assert await engine.position(id_key(first.id), 10) == 0
        await broker._engine.compare_and_set([DocumentWrite("k", "a", b"1", None)])
        assert await values_of(engine) == {}


async def test_a_reader_writes_none_and_reclaims_nothing(url: str, broker: Broker) -> None:
    await broker.enqueue("q")
    await broker.claim("q", worker="w")
    async with Broker(f"{url}?readonly=1", config=QUIET) as reader:
        with pytest.raises(InvalidState, match="readonly=1"):
            await reader._engine.compare_and_set([WRITE])
        assert await reader._engine.reclaim(["w"], 10, broker._policies.retention) == 0
    assert (await broker.stats("q")).running == 1


# Claims of workers that are gone.


async def test_claims_of_an_earlier_opening_are_reclaimed(url: str) -> None:
    """What their workers are is told by the claims' rows, and by the jobs' own when they were renewed."""
    async with Broker(url, config=QUIET) as broker:
        await broker.enqueue_many([NewJob("q") for _ in range(3)])
        _, renewed = await broker.claim("q", limit=2, worker="gone")
        await broker.claim("q", worker="here")
        await broker.renew(renewed, 3600)
    async with Broker(url, config=QUIET) as broker:
        retention = broker._policies.retention
        assert await broker._engine.reclaim(["gone"], 10, retention) == 2
        assert await broker._engine.reclaim(["gone"], 10, retention) == 0
    async with Broker(url, config=QUIET) as broker:
        assert await broker.stats("q") == QueueStats(pending=2, running=1)
        assert {job.last_error for job in await broker.claim("q", limit=2)} == {"worker gone"}


# Who goes first.


places = st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=1))


@given(st.lists(places, max_size=50), st.sets(places))
def test_counting_agrees_with_sorting(places: list[Place], void: set[Place]) -> None:
    line: Line[Place] = Line(lambda place: place not in void, places)
    for place in places:
        line.push(place)
    left = sorted(set(places) - void)
    for place in [*left, *void]:
        before = sum(1 for other in left if other < place)
        assert [line.count_before(place, limit) for limit in (0, 3, 1000)] == [0, min(before, 3), before]


def test_counting_looks_at_few_of_many() -> None:
    looked = 0

    def is_live(place: Place) -> bool:
        nonlocal looked
        looked += 1
        return True

    line: Line[Place] = Line(is_live, range(100_000))
    line.fill((1000, number.to_bytes(4, "big")) for number in range(100_000))
    assert line.count_before((1000, (50).to_bytes(4, "big")), 1000) == 50
    assert line.count_before((2000, b""), 1000) == 1000
    assert looked <= 1050
