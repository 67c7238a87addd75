"""Dedup keys with many concurrent enqueues, and one that another open transaction holds."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from dayjob import App, Broker, BrokerConfig, Context, EngineUnavailable, JobState, NewJob, Recurring
from dayjob.broker import batcher
from dayjob.engines.base import Contended
from dayjob.engines.postgres import database
from dayjob.engines.postgres.database import Pool
from tests.engines.postgres.roles import enqueue_keys, wanted_keys
from tests.support.arrange import KEEP_ALL, record, state
from tests.support.observe import check_counters
from tests.support.processes import Spawn, receive_from_all, start_together
from tests.support.servers.postgres import server_url
from tests.support.servers.private_postgres import private_server
from tests.support.workers import until, with_timeout, working

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)

ROUNDS = 2


# Many at once.


@pytest.mark.slow
async def test_processes_with_the_same_keys_create_each_once_and_never_deadlock(
    spawn: Spawn,
) -> None:
    enqueuers = [[*range(number, 50, 4)] for number in range(4)]
    # Shorter than the lock timeout, so that a deadlock is detected.
    async with private_server(deadlock_timeout="10ms") as server:
        children = [await spawn(enqueue_keys, server.url, some, ROUNDS) for some in enqueuers]
        created: Counter[str] = Counter()
        holders: defaultdict[str, set[str]] = defaultdict(set)
        for round in range(ROUNDS):
            await start_together(children)
            for some, said in zip(enqueuers, await receive_from_all(children), strict=True):
                for enqueuer, enqueued in zip(some, said, strict=True):
                    for key, (id, new) in zip(wanted_keys(enqueuer, round), enqueued, strict=True):
                        created[key] += new
                        holders[key].add(id)
        assert set(created.values()) == {1}
        async with Broker(server.url, config=QUIET) as broker:
            stored = {job.dedup_key: {job.id} for job in await broker.jobs(limit=10_000)}
            assert stored == holders
            await check_counters(broker)
        assert [await child.wait() for child in children] == [0] * 4
        deadlocks = await server.fetch("SELECT sum(deadlocks)::int FROM pg_stat_database")
        assert deadlocks == [(0,)]


# A key that an open transaction holds.


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    async with Broker(url, config=QUIET) as broker:
        yield broker
        await check_counters(broker)


@pytest.fixture
def no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter has no time limit."""
    monkeypatch.setattr(batcher, "CONTENDED_FOR", 3600.0)


def pool_of(broker: Broker) -> Pool:
    engine: Any = broker._engine
    pool: Pool = engine._database.pool
    return pool


class Holder:
    """A transaction that has enqueued with a key and is still open."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], id: str) -> None:
        self.id = id
        self.commit = connection.commit
        self.rollback = connection.rollback


@pytest.fixture
async def holder(broker: Broker) -> AsyncIterator[Holder]:
    async with await psycopg.AsyncConnection.connect(server_url()) as connection:
        enqueued = await broker.enqueue("q", b"held", dedup_key="held", connection=connection)
        yield Holder(connection, enqueued.id)
        await connection.rollback()


async def submitted(*calls: Any) -> list[asyncio.Task[Any]]:
    """Start the calls in one turn of the loop, so that they share their batches."""
    return [asyncio.create_task(call) for call in calls]


@pytest.mark.usefixtures("no_time_limit")
async def test_other_enqueues_do_not_wait_for_a_held_key(broker: Broker, holder: Holder) -> None:
    held, *others = await submitted(
        broker.enqueue("q", dedup_key="held"),
        broker.enqueue("q", dedup_key="free"),
        broker.enqueue("r", dedup_key="held"),
        broker.enqueue("q"),
        broker.enqueue_many([NewJob("q"), NewJob("q", dedup_key="free too")]),
    )
    await with_timeout(asyncio.gather(*others))
    await with_timeout(broker.enqueue("q", dedup_key="later"))
    await with_timeout(broker.enqueue("q"))
    assert not held.done()
    assert (await broker.stats("q")).pending == 6
    await holder.rollback()
    assert (await with_timeout(held)).created


@pytest.mark.usefixtures("no_time_limit")
async def test_a_commit_of_the_holder_gives_the_waiter_its_id(broker: Broker, holder: Holder) -> None:
    one, many = await submitted(
        broker.enqueue("q", dedup_key="held"),
        broker.enqueue_many([NewJob("q", b"more"), NewJob("q", dedup_key="held")]),
    )
    await with_timeout(broker.enqueue("q"))
    await holder.commit()
    reply = await with_timeout(one)
    assert (reply.id, reply.created) == (holder.id, False)
    more, reply = await with_timeout(many)
    assert more.created
    assert (reply.id, reply.created) == (holder.id, False)


@pytest.mark.usefixtures("no_time_limit")
async def test_a_rollback_of_the_holder_gives_the_key_to_a_waiter(broker: Broker, holder: Holder) -> None:
    waiting = await submitted(*(broker.enqueue("q", dedup_key="held") for _ in range(3)))
    await with_timeout(broker.enqueue("q"))
    await holder.rollback()
    enqueued = await with_timeout(asyncio.gather(*waiting))
    assert sum(each.created for each in enqueued) == 1
    assert len({each.id for each in enqueued}) == 1
    assert enqueued[0].id != holder.id


async def test_a_waiter_fails_after_its_time_limit(
    broker: Broker, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "CONTENDED_FOR", 0.1)
    batch = [NewJob("q", b"of a batch"), NewJob("q", dedup_key="free"), NewJob("q", dedup_key="held")]
    calls = await submitted(broker.enqueue("q", dedup_key="held"), broker.enqueue_many(batch))
    for call in calls:
        with pytest.raises(Contended, match="are locked by a transaction that is still open") as caught:
            await with_timeout(call)
        assert isinstance(caught.value, EngineUnavailable)
        assert "nothing was changed; try again when it has ended" in str(caught.value)
    assert await broker.jobs() == [], "a batch is stored whole or not at all"
    await holder.commit()
    assert (await broker.enqueue("q", dedup_key="held")).id == holder.id
    assert [each.created for each in await broker.enqueue_many(batch)] == [True, True, False]


@pytest.mark.usefixtures("no_time_limit")
async def test_an_ack_that_waits_for_a_held_key_does_not_block_others(broker: Broker, holder: Holder) -> None:
    await broker.enqueue_many([NewJob("work") for _ in range(10)])
    first, *jobs = await broker.claim("work", limit=10)
    held, *others = await submitted(
        broker.ack(first, enqueue=[NewJob("q", b"follow-up", dedup_key="held")]),
        *(broker.ack(job, enqueue=[NewJob("after")]) for job in jobs[:3]),
        *(broker.ack(job) for job in jobs[3:6]),
        *(broker.nack(job, "no good", delay=0) for job in jobs[6:]),
    )
    await with_timeout(asyncio.gather(*others))
    assert not held.done()
    assert await state(broker, first.id) is JobState.RUNNING
    assert (await broker.stats("after")).pending == 3
    await holder.rollback()
    await with_timeout(held)
    assert await state(broker, first.id) is JobState.DONE
    assert [job.payload for job in await broker.jobs("q")] == [b"follow-up"]


@pytest.mark.usefixtures("no_time_limit")
async def test_a_worker_settles_other_jobs_while_a_follow_up_waits_for_a_held_key(url: str) -> None:
    app = App(url, config=BrokerConfig(retention=KEEP_ALL))
    begun = asyncio.Event()

    @app.task(queue="after")
    async def after() -> None: ...

    @app.task(queue="q")
    async def work(ctx: Context, follows: bool) -> None:
        if follows:
            ctx.then(after.using(dedup_key="held").bind())
        await begun.wait()

    async with app, await psycopg.AsyncConnection.connect(server_url()) as connection:
        held = await work.aenqueue(True)
        others = await work.aenqueue_many([(False,)] * 10)
        broker = app.broker
        holding = await after.using(dedup_key="held", connection=connection).aenqueue()
        async with working(app, queues=["q"]):

            async def run() -> bool:
                return (await broker.stats("q")).running == 11

            async def settled() -> bool:
                return (await broker.stats("q")).done == 10

            await until(run)
            begun.set()
            await until(settled)
            assert [await handle.astatus() for handle in others] == [JobState.DONE] * 10
            assert await held.astatus() is JobState.RUNNING
            late = await work.aenqueue(False)
            await with_timeout(broker.wait(late.id))
            await connection.commit()
            assert (await with_timeout(broker.wait(held.id))).status == "completed"
        assert (await record(broker, held.id)).state is JobState.DONE
        assert [job.id for job in await broker.jobs("after")] == [holding.id]


@pytest.mark.usefixtures("no_time_limit")
async def test_many_enqueues_with_a_held_key_leave_connections_for_the_rest(
    broker: Broker, holder: Holder
) -> None:
    pool = pool_of(broker)
    waiting = await submitted(*(broker.enqueue("q", dedup_key="held") for _ in range(200)))
    await until(lambda: pool._for_keyed.locked())
    await broker.enqueue_many([NewJob("work") for _ in range(20)])
    for _ in range(20):
        await until(lambda: not pool._free.locked())  # Half of the connections are free for other work.
        (job,) = await with_timeout(broker.claim("work"))
        await with_timeout(broker.renew(job))
        await with_timeout(broker.ack(job))
        await with_timeout(broker.enqueue("q", dedup_key=f"free {job.id}"))
        await with_timeout(broker.lead())
    assert not any(call.done() for call in waiting)
    await holder.commit()
    assert {each.id for each in await with_timeout(asyncio.gather(*waiting))} == {holder.id}


@pytest.mark.usefixtures("no_time_limit")
async def test_a_free_key_is_not_delayed_by_a_batch_full_of_held_ones(broker: Broker, holder: Holder) -> None:
    """The free key is last in its batch, and each try with a held key waits for its lock only briefly."""
    *held, free = await submitted(
        *(broker.enqueue("q", dedup_key="held") for _ in range(100)), broker.enqueue("q", dedup_key="free")
    )
    assert (await with_timeout(free)).created
    assert not any(call.done() for call in held)
    await holder.rollback()
    enqueued = await with_timeout(asyncio.gather(*held))
    assert sum(each.created for each in enqueued) == 1


@pytest.mark.usefixtures("no_time_limit")
async def test_a_contended_try_keeps_its_connection(
    broker: Broker, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (waiting,) = await submitted(broker.enqueue("q", dedup_key="held"))
    pool = pool_of(broker)
    await until(lambda: pool._contended_until > 0)
    first = pool._contended_until

    async def connect(*_: object) -> None:
        raise AssertionError("a new connection was opened")

    monkeypatch.setattr(database, "connect", connect)
    await until(lambda: pool._contended_until > first)
    await holder.commit()
    assert (await with_timeout(waiting)).id == holder.id


async def test_a_schedule_with_a_held_key_stops_no_other(url: str) -> None:
    app = App(url, config=QUIET)

    @app.task(dedup=True)
    async def report() -> None: ...

    async with app, await psycopg.AsyncConnection.connect(server_url()) as connection:
        broker = app.broker
        holding = await report.using(connection=connection).aenqueue()
        await broker.schedule(Recurring("report", every=0.1, task=report, missed="skip"))
        await broker.schedule(Recurring("bill", every=0.1, queue="bills", missed="skip"))

        async def fired() -> int:
            await broker.recur()
            return (await broker.stats("bills")).pending

        async def twice() -> bool:
            return await fired() >= 2

        await until(twice)
        before = await fired()
        schedules = {each.id: each for each in await broker.schedules()}
        assert "holds its dedup key" in str(schedules["report"].problem)
        assert (schedules["bill"].problem, schedules["report"].last_at) == (None, None)

        async def again() -> bool:
            return await fired() > before

        await until(again)
        await connection.rollback()
        await broker.recur()
        assert (await broker.schedules())[1].problem is None
        [job] = await broker.jobs("default")
        assert job.id != holding.id


@pytest.mark.usefixtures("no_time_limit")
async def test_other_enqueues_do_not_wait_for_an_id_of_an_open_transaction(broker: Broker) -> None:
    async with await psycopg.AsyncConnection.connect(server_url()) as connection:
        stored = await broker.enqueue("q", b"held", connection=connection)
        held, *others = await submitted(
            broker.enqueue("q", b"again", id=stored.id), *(broker.enqueue("q") for _ in range(5))
        )
        await with_timeout(asyncio.gather(*others))
        await with_timeout(broker.enqueue("q"))
        assert not held.done()
        await connection.commit()
        reply = await with_timeout(held)
        assert (reply.id, reply.created) == (stored.id, False)
