"""Behind a pooler without sessions: ``?pgbouncer=1``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from dayjob import (
    App,
    Broker,
    BrokerConfig,
    CancelOutcome,
    Context,
    DayjobError,
    JobState,
    NewJob,
    QueueConfig,
    Retry,
)
from dayjob.engines.base import DocumentWrite
from dayjob.model.job import id_text
from dayjob.runtime.signals import documents_topic
from tests.engines.postgres.verbs import use_every_verb
from tests.support.arrange import KEEP_ALL, claim_one, record, running
from tests.support.bound import BOUND
from tests.support.observe import check_counters
from tests.support.servers.postgres import schema_url, server_url, with_options
from tests.support.servers.transaction_pooler import Pooler, pooler
from tests.support.workers import until, with_timeout, working

CONFIG = BrokerConfig(
    default=QueueConfig(retry=Retry.fixed(attempts=5, delay=0)), retention=KEEP_ALL, duties=False
)


@pytest.fixture
def direct_url(tmp_path: Path) -> str:
    return schema_url(tmp_path)


@pytest.fixture
async def pool() -> AsyncIterator[Pooler]:
    """A pooler that checks that no session state was used."""
    async with pooler(server_url(), size=2) as pool:
        yield pool
        assert pool.refusals == 0, "a statement was prepared by name"
        assert pool.session_statements == []
        assert pool.transactions > 0


@pytest.fixture
def url(pool: Pooler, direct_url: str) -> str:
    return with_options(pool.through(direct_url), pgbouncer="1", poll="0.05")


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    async with Broker(url, config=CONFIG) as broker:
        yield broker
        await check_counters(broker)


async def test_jobs_are_enqueued_claimed_and_settled(broker: Broker) -> None:
    first = await broker.enqueue("q", b"first", headers={"a": "b"}, kv={b"k": b"v"})
    again = await broker.enqueue("q", dedup_key="key")
    assert (await broker.enqueue("q", dedup_key="key")).id == again.id
    await broker.enqueue_many([NewJob("q", b"%d" % n) for n in range(100)])
    job = await claim_one(broker)
    assert (job.id, job.payload, job.headers) == (first.id, b"first", {"a": "b"})
    await broker.renew(job, 60)
    await broker.ack(job, result=b"r", enqueue=[NewJob("after")], kv={b"k": b"w"})
    assert (await record(broker, job.id)).result == b"r"
    assert await broker.kv_get(b"k") == b"w"
    assert len(await broker.jobs("after")) == 1
    jobs = await broker.claim("q", limit=200)
    assert len(jobs) == 101
    assert await broker.nack(jobs[0], "no good", delay=60) is JobState.SCHEDULED
    await broker.dead_letter(jobs[1], "no good")
    await asyncio.gather(*map(broker.ack, jobs[2:]))
    assert await broker.requeue(jobs[1].id)
    assert (await broker.stats("q")).done == 100
    await broker.pause("q")
    assert await broker.claim("q") == []
    await broker.resume("q")
    assert await broker.cancel(jobs[1].id) is CancelOutcome.REMOVED


async def test_a_waiting_claim_polls(broker: Broker, url: str) -> None:
    async with Broker(url, config=CONFIG) as other:
        waiting = asyncio.create_task(broker.claim("q", wait=20))
        enqueued = await other.enqueue("q")
        (job,) = await with_timeout(waiting)
        assert job.id == enqueued.id
        ended = asyncio.create_task(other.wait(job.id, 20))
        await broker.ack(job)
        assert (await with_timeout(ended)).status == "completed"


async def test_a_cancel_reaches_the_claim_by_polling(broker: Broker, url: str) -> None:
    job = await running(broker)
    async with Broker(url, config=CONFIG) as other:
        assert await other.cancel(job.id) is CancelOutcome.REQUESTED
        await with_timeout(job.cancel_token.wait())
    await broker.mark_cancelled(job)


async def test_documents_and_jobs_are_written_together_or_not_at_all(broker: Broker, url: str) -> None:
    engine, storage = broker._engine, broker._session.storage
    first, second = (broker._validator.insertion(NewJob("q", dedup_key="d")) for _ in range(2))
    both = [DocumentWrite("k", "a", None, b"1"), DocumentWrite("k", "b", None, b"1")]
    assert await storage.compare_and_set(both[1:])
    assert not await storage.compare_and_set(both, [first])
    assert [document.name for document in (await engine.documents("k"))[1]] == ["b"]
    assert await broker.jobs() == []
    async with Broker(url, config=CONFIG) as other:
        with other._engine.signals.listen([documents_topic("k")]) as changed:
            await other._engine.documents("k")
            changed.clear()
            assert await storage.compare_and_set(both[:1], [second], announce=True)
            await with_timeout(changed.wait())
        written = await asyncio.gather(
            *(
                at.compare_and_set([DocumentWrite("k", "a", b"1", b"2"), DocumentWrite("k", "b", b"1", None)])
                for at in (storage, other._session.storage, storage)
            )
        )
        assert sorted(written) == [False, False, True]
    assert [job.id for job in await broker.jobs()] == [id_text(second.key)]
    [job] = await broker.claim("q", worker="gone")
    assert await engine.position(job.key, 10) == 0
    assert len(await engine.reclaim(["gone"], 10)) == 1


async def test_a_worker_runs_jobs(url: str) -> None:
    app = App(url, config=BrokerConfig(retention=KEEP_ALL))
    runs: Counter[int] = Counter()

    @app.task
    async def work(ctx: Context, number: int) -> int:
        runs[number] += 1
        if number % 10 == 3 and ctx.attempt == 1:
            raise ValueError("once")
        return number

    async with app:
        handles = await work.using(max_attempts=2).aenqueue_many([(number,) for number in range(100)])
        async with working(app, concurrency=20):
            await until(lambda: runs.total() >= 100)
            late = await work.aenqueue(100)
            assert await late.aresult(timeout=BOUND) == 100
            assert await handles[99].aresult(timeout=BOUND) == 99
        await app.broker.promote()
        assert runs[100] == 1


async def test_many_producers_share_a_few_connections(url: str) -> None:
    async with Broker(url, config=CONFIG) as one, Broker(url, config=CONFIG) as two:
        await asyncio.gather(*(broker.enqueue("q") for broker in (one, two) for _ in range(200)))
        claimed = await asyncio.gather(one.claim("q", limit=300), two.claim("q", limit=300))
        jobs = [job.id for some in claimed for job in some]
        assert len(jobs) == len(set(jobs)) == 400
        await check_counters(one)


async def test_an_enqueue_joins_the_callers_own_transaction(broker: Broker, pool: Pooler) -> None:
    url = pool.through(server_url())
    async with await psycopg.AsyncConnection.connect(url, prepare_threshold=None) as connection:
        async with connection.transaction(force_rollback=True):
            await broker.enqueue("q", b"rolled back", connection=connection)
        async with connection.transaction():
            await broker.enqueue("q", b"committed", connection=connection)
    assert [job.payload for job in await broker.jobs("q")] == [b"committed"]


async def test_a_pooler_that_tracks_prepared_statements_gets_them_by_name(direct_url: str) -> None:
    """A single session tracks them, as PgBouncer does for many."""
    url = with_options(direct_url, pgbouncer="prepared", connections="1", poll="0.05")
    async with Broker(url, config=CONFIG) as broker:
        await use_every_verb(broker)
        pool = broker._engine._database.pool  # type: ignore[attr-defined]
        named = await pool.run(
            lambda connection: connection.fetch("SELECT statement FROM pg_prepared_statements")
        )
        assert any("Claim pending jobs" in row[0] for row in named)


async def test_a_pooler_that_tracks_no_prepared_statements_is_reported(pool: Pooler, direct_url: str) -> None:
    with pytest.raises(DayjobError, match=r"add \?pgbouncer=1 to the URL"):
        await Broker(with_options(pool.through(direct_url), pgbouncer="prepared")).open()
    assert pool.refusals > 0
    pool.refusals = 0
    async with Broker(with_options(pool.through(direct_url), pgbouncer="1")):
        """The pooler is in order."""


async def test_without_the_option_the_error_names_it(pool: Pooler, direct_url: str) -> None:
    async with Broker(with_options(pool.through(direct_url), pgbouncer="1")):
        pass
    with pytest.raises(DayjobError, match="pgbouncer=1"):
        await Broker(pool.through(direct_url)).open()
    pool.refusals = 0
    pool.session_statements.clear()
