"""An id that the caller gave counts as existing for an hour after its insert, even if its job was removed.

A caller whose reply was lost repeats the enqueue with the same id. Without the reservation, a job that had
run and was removed meanwhile would run twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dayjob import Broker, NewJob, Recurring
from dayjob.engines.base import ID_RESERVATION, ClaimRequest, DocumentWrite
from dayjob.model.durations import SECOND
from dayjob.runtime.ids import new_key
from tests.support.arrange import KEEP_ALL, OpenBroker, claim_one, done, quiet, running
from tests.support.engines import EngineUnderTest
from tests.support.observe import every_job, everything
from tests.support.waiting import WatchedClock

ID = "0190f3a2-7b1c-7def-8123-456789abcdef"
HOUR = ID_RESERVATION / SECOND
MOMENT = timedelta(microseconds=1)

Insert = Callable[[Broker, NewJob], Awaitable[object]]


async def by_follow_up(broker: Broker, job: NewJob) -> None:
    await broker.ack(await running(broker, "before"), enqueue=[job])


async def by_compare_and_set(broker: Broker, job: NewJob) -> None:
    write = DocumentWrite("k", new_key().hex(), None, b"1")
    insertion = broker._validator.insertion(job)
    assert await broker._engine.compare_and_set([write], [insertion])


async def by_insert_and_claim(broker: Broker, job: NewJob) -> None:
    insertion = broker._validator.insertion(job)
    requests = [ClaimRequest((("empty", SECOND),), 1, "w")]
    await broker._engine.insert_and_claim([insertion], requests)


INSERTS: dict[str, Insert] = {
    "enqueue": lambda broker, job: broker.enqueue_many([job]),
    "a batch": lambda broker, job: broker.enqueue_many([NewJob("other"), job, NewJob("other")]),
    "a batch with it twice": lambda broker, job: broker.enqueue_many([job, job]),
    "a batch with dedup keys": lambda broker, job: broker.enqueue_many([NewJob("o", dedup_key="k"), job]),
    "follow-up": by_follow_up,
    "compare_and_set": by_compare_and_set,
    "insert_and_claim": by_insert_and_claim,
}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dedup key": {"dedup_key": "d"},
    "dedup key until settled": {"dedup_key": "d", "dedup_until": "settled"},
    "kv": {"kv": {b"k": b"v"}},
}


async def leave(broker: Broker) -> None:
    """Run the job with the id and remove it."""
    await broker.ack(await claim_one(broker))
    assert await broker.get(ID) is None


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
async def test_a_repeated_insert_of_a_job_that_has_run_stores_nothing(
    broker: Broker, insert: Insert, options: dict[str, Any]
) -> None:
    job = NewJob("q", id=ID, **options)
    await insert(broker, job)
    await leave(broker)
    await broker.kv_delete(b"k")
    for again in INSERTS.values():
        await again(broker, job)
    assert await broker.get(ID) is None
    assert await broker.claim("q") == []
    assert await broker.kv_get(b"k") is None
    reply = await broker.enqueue("another queue", id=ID)
    assert (reply.id, reply.created) == (ID, False)
    assert "another queue" not in await broker.queues()


async def test_a_reservation_ends_an_hour_after_the_insert(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue("q", id=ID)
    clock.advance(HOUR / 2)
    await leave(broker)
    clock.advance(timedelta(seconds=HOUR / 2) - MOMENT)
    assert not (await broker.enqueue("q", id=ID)).created
    clock.advance(MOMENT)
    assert (await broker.enqueue("q", id=ID)).created
    await leave(broker)
    clock.advance(timedelta(seconds=HOUR) - MOMENT)
    assert not (await broker.enqueue("q", id=ID)).created, "the second insert reserves the id again"


async def test_a_refused_insert_does_not_extend_the_reservation(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue("q", id=ID)
    clock.advance(HOUR - 1)
    assert not (await broker.enqueue("q", id=ID)).created, "the job exists"
    await leave(broker)
    assert not (await broker.enqueue("q", id=ID)).created, "the id is reserved"
    clock.advance(1)
    assert (await broker.enqueue("q", id=ID)).created


async def test_an_existing_job_without_a_reservation_gets_none(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue("q", id=ID)
    clock.advance(HOUR)
    for insert in INSERTS.values():
        await insert(broker, NewJob("q", id=ID))
    await leave(broker)
    assert (await broker.enqueue("q", id=ID)).created


@pytest.mark.parametrize("way", ["cancelled", "expired", "purged"])
async def test_the_id_stays_reserved_however_the_job_left(
    broker: Broker, clock: WatchedClock, way: str
) -> None:
    await broker.enqueue("q", id=ID, expires=5)
    if way == "cancelled":
        await broker.cancel(ID)
    elif way == "expired":
        clock.advance(5)
        await broker.promote()
    else:
        await broker.dead_letter(await claim_one(broker), "no good")
        await broker.purge_dead()
    assert await broker.get(ID) is None
    assert not (await broker.enqueue("q", id=ID)).created


async def test_a_job_that_was_refused_by_its_dedup_key_reserves_nothing(broker: Broker) -> None:
    for insert in INSERTS.values():
        holder = await broker.enqueue("q", dedup_key="held")
        await insert(broker, NewJob("q", id=ID, dedup_key="held"))
        assert await broker.get(ID) is None
        await broker.cancel(holder.id)
    assert (await broker.enqueue("q", id=ID)).created


async def test_the_id_is_compared_before_the_dedup_key(broker: Broker) -> None:
    await broker.enqueue("q", id=ID)
    await leave(broker)
    await broker.enqueue("q", dedup_key="held")
    reply = await broker.enqueue("q", id=ID, dedup_key="held")
    assert (reply.id, reply.created) == (ID, False)


async def test_in_a_batch_only_the_reserved_ids_are_refused(broker: Broker) -> None:
    await broker.enqueue("q", id=ID)
    await leave(broker)
    for options in OPTIONS.values():
        replies = await broker.enqueue_many([NewJob("a"), NewJob("q", id=ID, **options), NewJob("b")])
        assert [reply.created for reply in replies] == [True, False, True]
        assert replies[1].id == ID


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_of_many_enqueues_while_jobs_run_one_creates_the_job(
    broker: Broker, open_broker: OpenBroker, options: dict[str, Any]
) -> None:
    other, runs = await open_broker(), 0

    async def run_jobs() -> None:
        nonlocal runs
        for _ in range(20):
            for job in await other.claim("q"):
                await other.ack(job)
                runs += 1

    enqueues = [each.enqueue("q", id=ID, **options) for _ in range(20) for each in (broker, other)]
    replies, _ = await asyncio.gather(asyncio.gather(*enqueues), run_jobs())
    await run_jobs()
    assert [reply.created for reply in replies].count(True) == 1
    assert {reply.id for reply in replies} == {ID}
    assert runs == 1


async def test_generated_ids_are_not_reserved(broker: Broker, clock: WatchedClock) -> None:
    id = await done(broker)
    await broker.ack(await running(broker), enqueue=[NewJob("q")])
    await broker.schedule(Recurring("r", every=60, task="t", queue="q"))
    clock.advance(60)
    await broker.recur()
    clock.advance(HOUR)
    assert (await broker._engine.sweep(10))[1] == 0
    assert (await broker.enqueue("q", id=id)).created


async def test_a_kept_job_holds_its_id_after_the_reservation(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    id = (await broker.enqueue("q", b"first")).id
    await broker.ack(await claim_one(broker))
    clock.advance(2 * ID_RESERVATION / SECOND)
    assert not (await broker.enqueue("q", b"second", id=id)).created
    assert [job.payload for job in await broker.jobs("q")] == [b"first"]


async def test_reservations_survive_a_reopening(open_broker: OpenBroker) -> None:
    first = await open_broker()
    if not first.capabilities.persistent:
        pytest.skip("the engine is not persistent")
    await first.enqueue("q", id=ID)
    await leave(first)
    await first.close()
    second = await open_broker()
    assert not (await second.enqueue("q", id=ID)).created
    assert await second.claim("q") == []


async def test_sweep_removes_reservations_that_have_ended(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue_many([NewJob("q", id=new_key().hex()) for _ in range(5)])
    clock.advance(1)
    await broker.enqueue("q", id=ID)
    engine = broker._engine
    clock.advance(timedelta(seconds=HOUR - 1) - MOMENT)
    assert await engine.sweep(10) == (0, 0)
    clock.advance(MOMENT)
    assert [await engine.sweep(2) for _ in range(4)] == [(0, 2), (0, 2), (0, 1), (0, 0)]
    await broker.cancel(ID)
    assert not (await broker.enqueue("q", id=ID)).created
    clock.advance(1)
    assert await engine.sweep(10) == (0, 1)


async def test_the_duty_removes_all_ended_reservations_and_returns_the_jobs(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet())
    for _ in range(3):
        await broker.enqueue_many([NewJob("q", id=new_key().hex()) for _ in range(1000)])
    clock.advance(HOUR)
    assert await broker.sweep() == 0
    assert await broker._engine.sweep(10) == (0, 0)


@pytest.fixture
def transaction(broker: Broker, engine: EngineUnderTest, tmp_path: Path) -> AbstractContextManager[Any]:
    if not broker.capabilities.transactional_enqueue:
        pytest.skip("the engine has no transactional enqueue")
    assert engine.connect is not None
    return engine.connect(tmp_path)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_a_transactional_enqueue_reserves_its_id(
    broker: Broker, transaction: AbstractContextManager[Any], options: dict[str, Any]
) -> None:
    with transaction as connection:
        assert (await broker.enqueue("q", id=ID, connection=connection, **options)).created
        connection.execute("COMMIT")
        await leave(broker)
        connection.execute("BEGIN")
        assert not (await broker.enqueue("q", id=ID, connection=connection, **options)).created
        connection.execute("COMMIT")
    assert not (await broker.enqueue("q", id=ID)).created
    assert await every_job(broker) == []


async def test_a_rollback_frees_the_id(broker: Broker, transaction: AbstractContextManager[Any]) -> None:
    before = await everything(broker)
    with transaction as connection:
        assert (await broker.enqueue("q", id=ID, connection=connection)).created
        connection.execute("ROLLBACK")
    assert await everything(broker) == before
    assert (await broker.enqueue("q", id=ID)).created


@pytest.mark.parametrize("name", sorted(INSERTS.keys() - {"a batch with it twice"}))
async def test_an_id_that_is_new_needs_no_reservation(broker: Broker, name: str) -> None:
    """The follow-ups of ``ctx.then`` have such ids, so that the handler gets them before the commit."""
    await INSERTS[name](broker, NewJob("q", id=ID, reserve_id=False))
    await broker.ack(await claim_one(broker))
    assert (await broker.enqueue("q", id=ID)).created
    assert (await claim_one(broker)).id == ID
