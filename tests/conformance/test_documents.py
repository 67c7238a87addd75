"""Documents: compare-and-set writes, atomic over several documents and with jobs."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, JobState, LeaseLost
from dayjob.broker.validation import Validator
from dayjob.engines.base import DocumentWrite, Engine, Insertion
from dayjob.model.job import NewJob, id_key, id_text
from dayjob.runtime.ids import new_key
from dayjob.runtime.signals import DUE, documents_topic, queue_topic
from tests.support.arrange import OpenBroker, running, state
from tests.support.waiting import LONG, WatchedClock, within


@pytest.fixture
def documents(broker: Broker) -> Engine:
    """The engine itself. The broker's own documents have tests of their own."""
    return broker._engine


def insertion(broker: Broker, queue: str = "q", **options: object) -> Insertion:
    validator: Validator = broker._validator
    return validator.insertion(NewJob(queue, **options))  # type: ignore[arg-type]


async def values(engine: Engine, kind: str = "k") -> dict[str, bytes]:
    return {document.name: document.value for document in (await engine.documents(kind))[1]}


async def test_a_new_storage_has_no_documents(documents: Engine) -> None:
    assert (await documents.documents("k"))[1] == []


async def test_a_document_is_written_replaced_and_removed(documents: Engine) -> None:
    assert await documents.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    assert await values(documents) == {"a": b"1"}
    assert await documents.compare_and_set([DocumentWrite("k", "a", b"1", b"2")])
    assert await values(documents) == {"a": b"2"}
    assert await documents.compare_and_set([DocumentWrite("k", "a", b"2", None)])
    assert await values(documents) == {}


@pytest.mark.parametrize("expected", [None, b"", b"12", b"2"])
async def test_a_write_with_another_expected_value_is_refused(
    documents: Engine, expected: bytes | None
) -> None:
    await documents.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    assert not await documents.compare_and_set([DocumentWrite("k", "a", expected, b"new")])
    assert not await documents.compare_and_set([DocumentWrite("k", "a", expected, None)])
    assert await values(documents) == {"a": b"1"}


async def test_a_write_that_expects_a_removed_document_is_refused(documents: Engine) -> None:
    assert not await documents.compare_and_set([DocumentWrite("k", "a", b"1", b"2")])
    assert not await documents.compare_and_set([DocumentWrite("k", "a", b"1", None)])
    assert await values(documents) == {}
    assert await documents.compare_and_set([DocumentWrite("k", "a", None, None)]), (
        "none was expected, and none is left"
    )


async def test_an_empty_value_differs_from_no_document(documents: Engine) -> None:
    assert await documents.compare_and_set([DocumentWrite("k", "a", None, b"")])
    assert not await documents.compare_and_set([DocumentWrite("k", "a", None, b"2")])
    assert await values(documents) == {"a": b""}
    assert await documents.compare_and_set([DocumentWrite("k", "a", b"", b"2")])


async def test_one_refused_write_refuses_the_whole_batch_with_its_jobs(
    documents: Engine, broker: Broker
) -> None:
    await documents.compare_and_set([DocumentWrite("k", "b", None, b"1")])
    writes = [
        DocumentWrite("k", "a", None, b"x"),
        DocumentWrite("k", "b", b"?", b"x"),
        DocumentWrite("l", "c", None, b"x"),
    ]
    assert not await documents.compare_and_set(writes, [insertion(broker)])
    assert await values(documents) == {"b": b"1"}
    assert await values(documents, "l") == {}
    assert await broker.jobs() == []


@pytest.mark.parametrize("fresh", [1, 3])
async def test_new_documents_beside_a_refused_write_are_not_written(documents: Engine, fresh: int) -> None:
    await documents.compare_and_set([DocumentWrite("k", "m", None, b"1")])
    for place in ("a", "z"):
        writes = [DocumentWrite("k", f"{place}{number}", None, b"x") for number in range(fresh)]
        assert not await documents.compare_and_set([*writes, DocumentWrite("k", "m", None, b"x")])
        assert not await documents.compare_and_set([*writes, DocumentWrite("k", "m", b"?", b"x")])
    assert await values(documents) == {"m": b"1"}


async def test_a_refused_or_unannounced_write_publishes_nothing(documents: Engine) -> None:
    with documents.signals.listen([documents_topic("k")]) as signal:
        await documents.documents("k")
        signal.clear()
        await documents.compare_and_set([DocumentWrite("k", "a", None, b"1")])
        assert not await documents.compare_and_set([DocumentWrite("k", "a", None, b"2")], announce=True)
        assert not signal.is_set()


async def test_documents_and_jobs_commit_together(documents: Engine, broker: Broker) -> None:
    now, later = insertion(broker, task="t", payload=b"p"), insertion(broker, delay=60)
    writes = [DocumentWrite("k", "a", None, b"1"), DocumentWrite("l", "a", None, b"2")]
    assert await documents.compare_and_set(writes, [now, later])
    assert await values(documents) == {"a": b"1"}
    assert await values(documents, "l") == {"a": b"2"}
    assert await state(broker, id_text(now.key)) is JobState.PENDING
    assert await state(broker, id_text(later.key)) is JobState.SCHEDULED
    assert (await broker.stats("q")).pending == 1


async def test_an_existing_job_does_not_refuse_the_write(documents: Engine, broker: Broker) -> None:
    there = await broker.enqueue("q", b"first", dedup_key="d")
    again = insertion(broker, payload=b"second", id=there.id)
    held = insertion(broker, dedup_key="d")
    assert await documents.compare_and_set([DocumentWrite("k", "a", None, b"1")], [again, held])
    assert await values(documents) == {"a": b"1"}
    assert [job.payload for job in await broker.jobs()] == [b"first"]


async def test_documents_are_listed_in_the_byte_order_of_their_names(documents: Engine) -> None:
    names = ["ä", "b", "B", "a:b", "a", "a%", "a b", "😀", "\ue000", "a\n", "é", "e\u0301", "z" * 1024]
    assert await documents.compare_and_set([DocumentWrite("k", name, None, name.encode()) for name in names])
    found = (await documents.documents("k"))[1]
    assert [document.name for document in found] == sorted(names, key=str.encode)
    assert all(document.value == document.name.encode() for document in found)


async def test_kinds_are_separate(documents: Engine) -> None:
    await documents.compare_and_set(
        [DocumentWrite("k", "a", None, b"1"), DocumentWrite("kk", "a", None, b"2")]
    )
    await documents.compare_and_set([DocumentWrite("k", "k", None, b"3")])
    assert await values(documents, "k") == {"a": b"1", "k": b"3"}
    assert await values(documents, "kk") == {"a": b"2"}


async def test_values_may_be_large_and_of_any_bytes(documents: Engine) -> None:
    value = bytes(range(256)) * 6000
    assert await documents.compare_and_set([DocumentWrite("k", "a", None, value)])
    assert await documents.compare_and_set([DocumentWrite("k", "a", value, value + b"\0")])
    assert await values(documents) == {"a": value + b"\0"}


async def test_many_documents_in_one_commit(documents: Engine) -> None:
    writes = [DocumentWrite("k", f"{number:05}", None, b"1") for number in range(3000)]
    assert await documents.compare_and_set(writes)
    assert len(await values(documents)) == 3000
    assert not await documents.compare_and_set(writes)
    again = [DocumentWrite("k", f"{number:05}", b"1", b"2") for number in range(3000)]
    assert await documents.compare_and_set(again)
    assert set((await values(documents)).values()) == {b"2"}


async def test_a_document_has_the_time_of_its_last_write(documents: Engine, clock: WatchedClock) -> None:
    begun = clock.now()
    await documents.compare_and_set(
        [DocumentWrite("k", "a", None, b"1"), DocumentWrite("k", "b", None, b"1")], now=begun
    )
    clock.advance(5)
    await documents.compare_and_set([DocumentWrite("k", "a", b"1", b"1")], now=clock.now())
    now, (first, second) = await documents.documents("k", now=clock.now() + 1)
    assert now == begun + 5_000_001
    assert (first.written_us, second.written_us) == (begun + 5_000_000, begun)


async def test_without_a_time_the_engine_clock_decides(documents: Engine) -> None:
    before = (await documents.documents("k"))[0]
    await documents.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    after, (document,) = await documents.documents("k")
    assert before <= document.written_us <= after
    assert after - before < 60_000_000


async def test_of_concurrent_writers_with_the_same_expected_value_one_succeeds(
    documents: Engine, open_broker: OpenBroker
) -> None:
    others = [(await open_broker())._engine for _ in range(4)]
    for round in range(5):
        expected = str(round - 1).encode() if round else None
        written = await asyncio.gather(
            *(
                engine.compare_and_set([DocumentWrite("k", "a", expected, str(round).encode())])
                for engine in (documents, *others, documents)
            )
        )
        assert written.count(True) == 1


async def test_an_announced_write_notifies_every_broker(documents: Engine, open_broker: OpenBroker) -> None:
    other = (await open_broker())._engine
    with (
        other.signals.listen([documents_topic("k")]) as far,
        documents.signals.listen([documents_topic("k")]) as near,
    ):
        await other.documents("k")
        await documents.documents("k")
        far.clear()
        near.clear()
        await documents.compare_and_set([DocumentWrite("k", "a", None, b"1")], announce=True)
        await within(far.wait())
        await within(near.wait())


async def test_jobs_inserted_with_documents_are_announced(
    documents: Engine, broker: Broker, open_broker: OpenBroker
) -> None:
    other = (await open_broker())._engine
    with other.signals.listen([queue_topic("q")]) as new, other.signals.listen([DUE]) as due:
        await other.claim([], None)
        await other.next_due()
        new.clear()
        due.clear()
        await documents.compare_and_set([], [insertion(broker), insertion(broker, delay=5)])
        await within(new.wait())
        await within(due.wait())


async def test_documents_survive_reopening(
    documents: Engine, broker: Broker, open_broker: OpenBroker
) -> None:
    if not broker.capabilities.persistent:
        pytest.skip("the engine is not persistent")
    await documents.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    await broker.close()
    again = (await open_broker())._engine
    assert await values(again) == {"a": b"1"}


async def test_documents_and_user_kv_are_separate(documents: Engine, broker: Broker) -> None:
    await broker.kv_put(b"k\0a", b"mine")
    await broker.kv_put(b"a", b"mine")
    await documents.compare_and_set([DocumentWrite("k", "a", None, b"1")])
    assert await broker.kv_get(b"a") == b"mine"
    assert await values(documents) == {"a": b"1"}


# Reclaim: the claims of dead workers.


async def claimed_by(broker: Broker, worker: str, jobs: int = 1, **options: object) -> list[str]:
    for _ in range(jobs):
        await broker.enqueue("q", **options)  # type: ignore[arg-type]
    return [job.id for job in await broker.claim("q", limit=jobs, worker=worker)]


async def test_reclaim_ends_the_claims_of_dead_workers(broker: Broker, documents: Engine) -> None:
    lost = await claimed_by(broker, "gone", 2)
    kept = await claimed_by(broker, "alive")
    also = await claimed_by(broker, "also gone")
    assert await documents.reclaim(["gone", "also gone", "unknown"], 100, broker._policies.retention) == 3
    for id in (*lost, *also):
        job = await broker.get(id)
        assert job is not None
        assert (job.state, job.attempts, job.last_error, job.worker) == (
            JobState.PENDING,
            1,
            "worker gone",
            None,
        )
        assert [(failure.worker, failure.message) for failure in job.errors] == [
            ("gone" if id in lost else "also gone", "worker gone")
        ]
    assert await state(broker, kept[0]) is JobState.RUNNING


async def test_a_reclaimed_last_attempt_is_dead(broker: Broker, documents: Engine) -> None:
    [id] = await claimed_by(broker, "gone", max_attempts=1)
    assert await documents.reclaim(["gone"], 100, broker._policies.retention) == 1
    job = await broker.get(id)
    assert job is not None
    assert (job.state, job.last_error) == (JobState.DEAD, "worker gone")


async def test_reclaim_is_bounded_by_its_limit_and_can_be_repeated(broker: Broker, documents: Engine) -> None:
    await claimed_by(broker, "gone", 5)
    retention = broker._policies.retention
    assert [await documents.reclaim(["gone"], 2, retention) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_settlement_after_reclaim_is_lost(broker: Broker, documents: Engine) -> None:
    job = await running(broker)
    assert await documents.reclaim(["w"], 10, broker._policies.retention) == 1
    [again] = await broker.claim("q", worker="new")
    with pytest.raises(LeaseLost):
        await broker.ack(job)
    await broker.ack(again)


async def test_reclaimed_jobs_are_announced(
    broker: Broker, documents: Engine, open_broker: OpenBroker
) -> None:
    await claimed_by(broker, "gone")
    waiting = asyncio.create_task(broker.claim("q", wait=LONG))
    other = (await open_broker())._engine
    assert await other.reclaim(["gone"], 10, broker._policies.retention) == 1
    assert len(await within(waiting)) == 1


# Position.


async def test_position_counts_the_pending_jobs_before_a_job(broker: Broker, documents: Engine) -> None:
    first = await broker.enqueue("q")
    await running(broker, priority=1)
    await broker.enqueue("q", delay=60, priority=1)
    await broker.enqueue("other")
    second = await broker.enqueue("q")
    urgent = await broker.enqueue("q", priority=5)
    await broker.enqueue("q", priority=2000)

    async def position(id: str, limit: int = 10) -> int:
        return await documents.position(id_key(id), limit)

    assert [await position(job.id) for job in (urgent, first, second)] == [0, 1, 2]
    assert await position(second.id, 1) == 1


async def test_the_position_of_a_job_that_is_not_pending_is_zero(broker: Broker, documents: Engine) -> None:
    await broker.enqueue("q")
    later = await broker.enqueue("q", delay=60)
    assert await documents.position(id_key(later.id), 10) == 0
    assert await documents.position(new_key(), 10) == 0
