"""Notes: small records of dayjob's own, written together or not at all, and only over what was expected."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, JobState, LeaseLost
from dayjob.broker.intake import Intake
from dayjob.engines.base import Engine, Insertion, NoteWrite
from dayjob.ids import new_key
from dayjob.job import NewJob, id_key, id_text
from dayjob.signals import DUE, notes_topic, queue_topic
from tests.conformance.arrange import OpenBroker, running, state
from tests.conformance.waiting import LONG, WatchedClock, within


@pytest.fixture
def notes(broker: Broker) -> Engine:
    """The engine itself: what the broker keeps in notes has tests of its own."""
    return broker._engine


def insertion(broker: Broker, queue: str = "q", **options: object) -> Insertion:
    intake: Intake = broker._intake
    return intake.insertion(NewJob(queue, **options))  # type: ignore[arg-type]


async def values(engine: Engine, kind: str = "k") -> dict[str, bytes]:
    return {note.name: note.value for note in (await engine.notes(kind))[1]}


async def test_there_are_none_at_first(notes: Engine) -> None:
    assert (await notes.notes("k"))[1] == []


async def test_a_note_is_written_replaced_and_removed(notes: Engine) -> None:
    assert await notes.write_notes([NoteWrite("k", "a", None, b"1")])
    assert await values(notes) == {"a": b"1"}
    assert await notes.write_notes([NoteWrite("k", "a", b"1", b"2")])
    assert await values(notes) == {"a": b"2"}
    assert await notes.write_notes([NoteWrite("k", "a", b"2", None)])
    assert await values(notes) == {}


@pytest.mark.parametrize("expected", [None, b"", b"12", b"2"])
async def test_a_note_that_is_not_as_expected_stays(notes: Engine, expected: bytes | None) -> None:
    await notes.write_notes([NoteWrite("k", "a", None, b"1")])
    assert not await notes.write_notes([NoteWrite("k", "a", expected, b"new")])
    assert not await notes.write_notes([NoteWrite("k", "a", expected, None)])
    assert await values(notes) == {"a": b"1"}


async def test_a_note_that_is_gone_is_not_as_expected(notes: Engine) -> None:
    assert not await notes.write_notes([NoteWrite("k", "a", b"1", b"2")])
    assert not await notes.write_notes([NoteWrite("k", "a", b"1", None)])
    assert await values(notes) == {}
    assert await notes.write_notes([NoteWrite("k", "a", None, None)]), "none was expected, and none is left"


async def test_an_empty_value_is_a_note(notes: Engine) -> None:
    assert await notes.write_notes([NoteWrite("k", "a", None, b"")])
    assert not await notes.write_notes([NoteWrite("k", "a", None, b"2")])
    assert await values(notes) == {"a": b""}
    assert await notes.write_notes([NoteWrite("k", "a", b"", b"2")])


async def test_one_that_is_not_as_expected_spoils_all(notes: Engine, broker: Broker) -> None:
    await notes.write_notes([NoteWrite("k", "b", None, b"1")])
    writes = [
        NoteWrite("k", "a", None, b"x"),
        NoteWrite("k", "b", b"?", b"x"),
        NoteWrite("l", "c", None, b"x"),
    ]
    assert not await notes.write_notes(writes, [insertion(broker)])
    assert await values(notes) == {"b": b"1"}
    assert await values(notes, "l") == {}
    assert await broker.jobs() == []


@pytest.mark.parametrize("fresh", [1, 3])
async def test_new_notes_beside_one_that_is_not_as_expected_are_not_written(
    notes: Engine, fresh: int
) -> None:
    await notes.write_notes([NoteWrite("k", "m", None, b"1")])
    for place in ("a", "z"):
        writes = [NoteWrite("k", f"{place}{number}", None, b"x") for number in range(fresh)]
        assert not await notes.write_notes([*writes, NoteWrite("k", "m", None, b"x")])
        assert not await notes.write_notes([*writes, NoteWrite("k", "m", b"?", b"x")])
    assert await values(notes) == {"m": b"1"}


async def test_a_write_that_is_refused_or_not_announced_is_silent_here(notes: Engine) -> None:
    with notes.signals.listen([notes_topic("k")]) as heard:
        await notes.notes("k")
        heard.clear()
        await notes.write_notes([NoteWrite("k", "a", None, b"1")])
        assert not await notes.write_notes([NoteWrite("k", "a", None, b"2")], announce=True)
        assert not heard.is_set()


async def test_notes_and_jobs_commit_together(notes: Engine, broker: Broker) -> None:
    now, later = insertion(broker, task="t", payload=b"p"), insertion(broker, delay=60)
    writes = [NoteWrite("k", "a", None, b"1"), NoteWrite("l", "a", None, b"2")]
    assert await notes.write_notes(writes, [now, later])
    assert await values(notes) == {"a": b"1"}
    assert await values(notes, "l") == {"a": b"2"}
    assert await state(broker, id_text(now.key)) is JobState.PENDING
    assert await state(broker, id_text(later.key)) is JobState.SCHEDULED
    assert (await broker.stats("q")).pending == 1


async def test_a_job_that_exists_is_no_hindrance(notes: Engine, broker: Broker) -> None:
    there = await broker.enqueue("q", b"first", dedup_key="d")
    again = insertion(broker, payload=b"second", id=there.id)
    held = insertion(broker, dedup_key="d")
    assert await notes.write_notes([NoteWrite("k", "a", None, b"1")], [again, held])
    assert await values(notes) == {"a": b"1"}
    assert [job.payload for job in await broker.jobs()] == [b"first"]


async def test_notes_come_in_the_order_of_their_names_bytes(notes: Engine) -> None:
    names = ["ä", "b", "B", "a:b", "a", "a%", "a b", "😀", "\ue000", "a\n", "é", "e\u0301", "z" * 1024]
    assert await notes.write_notes([NoteWrite("k", name, None, name.encode()) for name in names])
    found = (await notes.notes("k"))[1]
    assert [note.name for note in found] == sorted(names, key=str.encode)
    assert all(note.value == note.name.encode() for note in found)


async def test_kinds_are_apart(notes: Engine) -> None:
    await notes.write_notes([NoteWrite("k", "a", None, b"1"), NoteWrite("kk", "a", None, b"2")])
    await notes.write_notes([NoteWrite("k", "k", None, b"3")])
    assert await values(notes, "k") == {"a": b"1", "k": b"3"}
    assert await values(notes, "kk") == {"a": b"2"}


async def test_values_may_be_large_and_of_any_bytes(notes: Engine) -> None:
    value = bytes(range(256)) * 6000
    assert await notes.write_notes([NoteWrite("k", "a", None, value)])
    assert await notes.write_notes([NoteWrite("k", "a", value, value + b"\0")])
    assert await values(notes) == {"a": value + b"\0"}


async def test_many_notes_in_one_commit(notes: Engine) -> None:
    writes = [NoteWrite("k", f"{number:05}", None, b"1") for number in range(3000)]
    assert await notes.write_notes(writes)
    assert len(await values(notes)) == 3000
    assert not await notes.write_notes(writes)
    again = [NoteWrite("k", f"{number:05}", b"1", b"2") for number in range(3000)]
    assert await notes.write_notes(again)
    assert set((await values(notes)).values()) == {b"2"}


async def test_a_note_knows_when_it_was_written(notes: Engine, clock: WatchedClock) -> None:
    begun = clock.now()
    await notes.write_notes([NoteWrite("k", "a", None, b"1"), NoteWrite("k", "b", None, b"1")], now=begun)
    clock.advance(5)
    await notes.write_notes([NoteWrite("k", "a", b"1", b"1")], now=clock.now())
    now, (first, second) = await notes.notes("k", now=clock.now() + 1)
    assert now == begun + 5_000_001
    assert (first.written_us, second.written_us) == (begun + 5_000_000, begun)


async def test_without_a_time_the_engines_own_counts(notes: Engine) -> None:
    before = (await notes.notes("k"))[0]
    await notes.write_notes([NoteWrite("k", "a", None, b"1")])
    after, (note,) = await notes.notes("k")
    assert before <= note.written_us <= after
    assert after - before < 60_000_000


async def test_of_those_who_expect_the_same_one_writes(notes: Engine, open_broker: OpenBroker) -> None:
    others = [(await open_broker())._engine for _ in range(4)]
    for round in range(5):
        expected = str(round - 1).encode() if round else None
        written = await asyncio.gather(
            *(
                engine.write_notes([NoteWrite("k", "a", expected, str(round).encode())])
                for engine in (notes, *others, notes)
            )
        )
        assert written.count(True) == 1


async def test_an_announced_write_is_heard_by_every_broker(notes: Engine, open_broker: OpenBroker) -> None:
    other = (await open_broker())._engine
    with other.signals.listen([notes_topic("k")]) as far, notes.signals.listen([notes_topic("k")]) as near:
        await other.notes("k")
        await notes.notes("k")
        far.clear()
        near.clear()
        await notes.write_notes([NoteWrite("k", "a", None, b"1")], announce=True)
        await within(far.wait())
        await within(near.wait())


async def test_jobs_that_come_with_notes_are_announced(
    notes: Engine, broker: Broker, open_broker: OpenBroker
) -> None:
    other = (await open_broker())._engine
    with other.signals.listen([queue_topic("q")]) as new, other.signals.listen([DUE]) as due:
        await other.claim([], None)
        await other.next_due()
        new.clear()
        due.clear()
        await notes.write_notes([], [insertion(broker), insertion(broker, delay=5)])
        await within(new.wait())
        await within(due.wait())


async def test_notes_outlive_the_process(notes: Engine, broker: Broker, open_broker: OpenBroker) -> None:
    if not broker.capabilities.persistent:
        pytest.skip("the engine is not persistent")
    await notes.write_notes([NoteWrite("k", "a", None, b"1")])
    await broker.close()
    again = (await open_broker())._engine
    assert await values(again) == {"a": b"1"}


async def test_notes_are_not_the_users_values(notes: Engine, broker: Broker) -> None:
    await broker.kv_put(b"k\0a", b"mine")
    await broker.kv_put(b"a", b"mine")
    await notes.write_notes([NoteWrite("k", "a", None, b"1")])
    assert await broker.kv_get(b"a") == b"mine"
    assert await values(notes) == {"a": b"1"}


# Claims of workers that are gone.


async def claimed_by(broker: Broker, worker: str, jobs: int = 1, **options: object) -> list[str]:
    for _ in range(jobs):
        await broker.enqueue("q", **options)  # type: ignore[arg-type]
    return [job.id for job in await broker.claim("q", limit=jobs, worker=worker)]


async def test_the_claims_of_gone_workers_end(broker: Broker, notes: Engine) -> None:
    lost = await claimed_by(broker, "gone", 2)
    kept = await claimed_by(broker, "alive")
    also = await claimed_by(broker, "also gone")
    assert await notes.reclaim(["gone", "also gone", "unknown"], 100, broker._policies.keeps) == 3
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


async def test_a_gone_workers_last_attempt_is_dead(broker: Broker, notes: Engine) -> None:
    [id] = await claimed_by(broker, "gone", max_attempts=1)
    assert await notes.reclaim(["gone"], 100, broker._policies.keeps) == 1
    job = await broker.get(id)
    assert job is not None
    assert (job.state, job.last_error) == (JobState.DEAD, "worker gone")


async def test_reclaiming_is_bounded_and_goes_on(broker: Broker, notes: Engine) -> None:
    await claimed_by(broker, "gone", 5)
    keeps = broker._policies.keeps
    assert [await notes.reclaim(["gone"], 2, keeps) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_gone_workers_settlement_is_refused(broker: Broker, notes: Engine) -> None:
    job = await running(broker)
    assert await notes.reclaim(["w"], 10, broker._policies.keeps) == 1
    [again] = await broker.claim("q", worker="new")
    with pytest.raises(LeaseLost):
        await broker.ack(job)
    await broker.ack(again)


async def test_reclaimed_jobs_are_announced(broker: Broker, notes: Engine, open_broker: OpenBroker) -> None:
    await claimed_by(broker, "gone")
    waiting = asyncio.create_task(broker.claim("q", wait=LONG))
    other = (await open_broker())._engine
    assert await other.reclaim(["gone"], 10, broker._policies.keeps) == 1
    assert len(await within(waiting)) == 1


# Who goes first.


async def test_ahead_counts_the_pending_jobs_that_go_first(broker: Broker, notes: Engine) -> None:
    first = await broker.enqueue("q")
    await running(broker, priority=1)
    await broker.enqueue("q", delay=60, priority=1)
    await broker.enqueue("other")
    second = await broker.enqueue("q")
    urgent = await broker.enqueue("q", priority=5)
    await broker.enqueue("q", priority=2000)

    async def ahead(id: str, limit: int = 10) -> int:
        return await notes.ahead(id_key(id), limit)

    assert [await ahead(job.id) for job in (urgent, first, second)] == [0, 1, 2]
    assert await ahead(second.id, 1) == 1


async def test_nothing_is_ahead_of_a_job_that_is_not_pending(broker: Broker, notes: Engine) -> None:
    await broker.enqueue("q")
    later = await broker.enqueue("q", delay=60)
    assert await notes.ahead(id_key(later.id), 10) == 0
    assert await notes.ahead(new_key(), 10) == 0
