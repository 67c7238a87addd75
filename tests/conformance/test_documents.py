"""Documents: compare-and-set writes, atomic over several documents and with jobs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from dayjob import Broker, BrokerConfig, JobState
from dayjob.broker.validation import Validator
from dayjob.engines.base import DocumentWrite, Engine, Insertion
from dayjob.model.job import NewJob, id_text
from dayjob.runtime.signals import DUE, documents_topic, queue_topic
from tests.support.arrange import OpenBroker, state
from tests.support.waiting import WatchedClock, with_timeout


def insertion(broker: Broker, queue: str = "q", **options: object) -> Insertion:
    validator: Validator = broker._validator
    return validator.insertion(NewJob(queue, **options))  # type: ignore[arg-type]


async def values(engine: Engine, kind: str = "k") -> dict[str, bytes]:
    return {document.name: document.value for document in (await engine.documents(kind))[1]}


async def test_a_new_storage_has_no_documents(raw_engine: Engine) -> None:
    assert (await raw_engine.documents("k"))[1] == []


async def test_a_document_is_written_replaced_and_removed(raw_engine: Engine) -> None:
    assert await raw_engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    assert await values(raw_engine) == {"a": b"1"}
    assert await raw_engine.compare_and_set([DocumentWrite("k", "a", b"1", b"2")])
    assert await values(raw_engine) == {"a": b"2"}
    assert await raw_engine.compare_and_set([DocumentWrite("k", "a", b"2", None)])
    assert await values(raw_engine) == {}


@pytest.mark.parametrize("expected", [None, b"", b"12", b"2"])
async def test_a_write_with_another_expected_value_is_refused(
    raw_engine: Engine, expected: bytes | None
) -> None:
    await raw_engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    assert not await raw_engine.compare_and_set([DocumentWrite("k", "a", expected, b"new")])
    assert not await raw_engine.compare_and_set([DocumentWrite("k", "a", expected, None)])
    assert await values(raw_engine) == {"a": b"1"}


async def test_a_write_that_expects_a_removed_document_is_refused(raw_engine: Engine) -> None:
    assert not await raw_engine.compare_and_set([DocumentWrite("k", "a", b"1", b"2")])
    assert not await raw_engine.compare_and_set([DocumentWrite("k", "a", b"1", None)])
    assert await values(raw_engine) == {}
    assert await raw_engine.compare_and_set([DocumentWrite("k", "a", None, None)]), (
        "none was expected, and none is left"
    )


async def test_an_empty_value_differs_from_no_document(raw_engine: Engine) -> None:
    assert await raw_engine.compare_and_set([DocumentWrite("k", "a", None, b"")])
    assert not await raw_engine.compare_and_set([DocumentWrite("k", "a", None, b"2")])
    assert await values(raw_engine) == {"a": b""}
    assert await raw_engine.compare_and_set([DocumentWrite("k", "a", b"", b"2")])


async def test_one_refused_write_refuses_the_whole_batch_with_its_jobs(
    raw_engine: Engine, broker: Broker
) -> None:
    await raw_engine.compare_and_set([DocumentWrite("k", "b", None, b"1")])
    writes = [
        DocumentWrite("k", "a", None, b"x"),
        DocumentWrite("k", "b", b"?", b"x"),
        DocumentWrite("l", "c", None, b"x"),
    ]
    assert not await raw_engine.compare_and_set(writes, [insertion(broker)])
    assert await values(raw_engine) == {"b": b"1"}
    assert await values(raw_engine, "l") == {}
    assert await broker.jobs() == []


@pytest.mark.parametrize("fresh", [1, 3])
async def test_new_documents_beside_a_refused_write_are_not_written(raw_engine: Engine, fresh: int) -> None:
    await raw_engine.compare_and_set([DocumentWrite("k", "m", None, b"1")])
    for place in ("a", "z"):
        writes = [DocumentWrite("k", f"{place}{number}", None, b"x") for number in range(fresh)]
        assert not await raw_engine.compare_and_set([*writes, DocumentWrite("k", "m", None, b"x")])
        assert not await raw_engine.compare_and_set([*writes, DocumentWrite("k", "m", b"?", b"x")])
    assert await values(raw_engine) == {"m": b"1"}


async def test_a_refused_or_unannounced_write_publishes_nothing(raw_engine: Engine) -> None:
    with raw_engine.signals.listen([documents_topic("k")]) as signal:
        await raw_engine.documents("k")
        await raw_engine.compare_and_set([DocumentWrite("other", "a", None, b"1")])  # May publish all, once.
        signal.clear()
        await raw_engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
        assert not await raw_engine.compare_and_set([DocumentWrite("k", "a", None, b"2")], announce=True)
        assert not signal.is_set()


async def test_documents_and_jobs_commit_together(raw_engine: Engine, broker: Broker) -> None:
    now, later = insertion(broker, task="t", payload=b"p"), insertion(broker, delay=60)
    writes = [DocumentWrite("k", "a", None, b"1"), DocumentWrite("l", "a", None, b"2")]
    assert await raw_engine.compare_and_set(writes, [now, later])
    assert await values(raw_engine) == {"a": b"1"}
    assert await values(raw_engine, "l") == {"a": b"2"}
    assert await state(broker, id_text(now.key)) is JobState.PENDING
    assert await state(broker, id_text(later.key)) is JobState.SCHEDULED
    assert (await broker.stats("q")).pending == 1


async def test_an_existing_job_does_not_refuse_the_write(raw_engine: Engine, broker: Broker) -> None:
    there = await broker.enqueue("q", b"first", dedup_key="d")
    again = insertion(broker, payload=b"second", id=there.id)
    held = insertion(broker, dedup_key="d")
    assert await raw_engine.compare_and_set([DocumentWrite("k", "a", None, b"1")], [again, held])
    assert await values(raw_engine) == {"a": b"1"}
    assert [job.payload for job in await broker.jobs()] == [b"first"]


async def test_documents_are_listed_in_the_byte_order_of_their_names(raw_engine: Engine) -> None:
    names = ["ä", "b", "B", "a:b", "a", "a%", "a b", "😀", "\ue000", "a\n", "é", "e\u0301", "z" * 1024]
    assert await raw_engine.compare_and_set([DocumentWrite("k", name, None, name.encode()) for name in names])
    found = (await raw_engine.documents("k"))[1]
    assert [document.name for document in found] == sorted(names, key=str.encode)
    assert all(document.value == document.name.encode() for document in found)


async def test_kinds_are_separate(raw_engine: Engine) -> None:
    await raw_engine.compare_and_set(
        [DocumentWrite("k", "a", None, b"1"), DocumentWrite("kk", "a", None, b"2")]
    )
    await raw_engine.compare_and_set([DocumentWrite("k", "k", None, b"3")])
    assert await values(raw_engine, "k") == {"a": b"1", "k": b"3"}
    assert await values(raw_engine, "kk") == {"a": b"2"}


async def test_values_may_be_large_and_of_any_bytes(raw_engine: Engine) -> None:
    value = bytes(range(256)) * 6000
    assert await raw_engine.compare_and_set([DocumentWrite("k", "a", None, value)])
    assert await raw_engine.compare_and_set([DocumentWrite("k", "a", value, value + b"\0")])
    assert await values(raw_engine) == {"a": value + b"\0"}


async def test_many_documents_in_one_commit(raw_engine: Engine) -> None:
    writes = [DocumentWrite("k", f"{number:05}", None, b"1") for number in range(3000)]
    assert await raw_engine.compare_and_set(writes)
    assert len(await values(raw_engine)) == 3000
    assert not await raw_engine.compare_and_set(writes)
    again = [DocumentWrite("k", f"{number:05}", b"1", b"2") for number in range(3000)]
    assert await raw_engine.compare_and_set(again)
    assert set((await values(raw_engine)).values()) == {b"2"}


async def test_a_document_has_the_time_of_its_last_write(raw_engine: Engine, clock: WatchedClock) -> None:
    begun = clock.now()
    await raw_engine.compare_and_set(
        [DocumentWrite("k", "a", None, b"1"), DocumentWrite("k", "b", None, b"1")]
    )
    clock.advance(5)
    await raw_engine.compare_and_set([DocumentWrite("k", "a", b"1", b"1")])
    clock.advance(timedelta(microseconds=1))
    now, (first, second) = await raw_engine.documents("k")
    assert now == begun + 5_000_001
    assert (first.written_us, second.written_us) == (begun + 5_000_000, begun)


async def test_without_an_injected_clock_the_engine_clock_decides(url: str) -> None:
    async with Broker(url, config=BrokerConfig(duties=False)) as broker:
        engine = broker._engine
        before = (await engine.documents("k"))[0]
        await engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
        after, (document,) = await engine.documents("k")
        assert before <= document.written_us <= after
        assert after - before < 60_000_000


async def test_of_concurrent_writers_with_the_same_expected_value_one_succeeds(
    raw_engine: Engine, open_broker: OpenBroker
) -> None:
    others = [(await open_broker())._engine for _ in range(4)]
    for round in range(5):
        expected = str(round - 1).encode() if round else None
        written = await asyncio.gather(
            *(
                engine.compare_and_set([DocumentWrite("k", "a", expected, str(round).encode())])
                for engine in (raw_engine, *others, raw_engine)
            )
        )
        assert written.count(True) == 1


async def test_an_announced_write_notifies_every_broker(raw_engine: Engine, open_broker: OpenBroker) -> None:
    other = (await open_broker())._engine
    with (
        other.signals.listen([documents_topic("k")]) as far,
        raw_engine.signals.listen([documents_topic("k")]) as near,
    ):
        await other.documents("k")
        await raw_engine.documents("k")
        far.clear()
        near.clear()
        await raw_engine.compare_and_set([DocumentWrite("k", "a", None, b"1")], announce=True)
        await with_timeout(far.wait())
        await with_timeout(near.wait())


async def test_jobs_inserted_with_documents_are_announced(
    raw_engine: Engine, broker: Broker, open_broker: OpenBroker
) -> None:
    other = (await open_broker())._engine
    with other.signals.listen([queue_topic("q")]) as new, other.signals.listen([DUE]) as due:
        await other.claim([], None)
        await other.next_due()
        new.clear()
        due.clear()
        await raw_engine.compare_and_set([], [insertion(broker), insertion(broker, delay=5)])
        await with_timeout(new.wait())
        await with_timeout(due.wait())


async def test_documents_survive_reopening(
    raw_engine: Engine, broker: Broker, open_broker: OpenBroker
) -> None:
    if not broker.capabilities.persistent:
        pytest.skip("the engine is not persistent")
    await raw_engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    await broker.close()
    again = (await open_broker())._engine
    assert await values(again) == {"a": b"1"}


async def test_documents_and_user_kv_are_separate(raw_engine: Engine, broker: Broker) -> None:
    await broker.kv_put(b"k\0a", b"mine")
    await broker.kv_put(b"a", b"mine")
    await raw_engine.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    assert await broker.kv_get(b"a") == b"mine"
    assert await values(raw_engine) == {"a": b"1"}
