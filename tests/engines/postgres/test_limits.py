"""Limits on a server: claims of several connections, locks of buckets, and the blocks that a claim reads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing

import pytest

from dayjob import Broker, Job, JobState, Limit, NewJob, QueueConfig
from dayjob.engines.base import MOST_BLOCKED
from dayjob.engines.postgres.database import Connection, connect
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.engines.postgres.statements import Statements
from dayjob.model.job import id_key
from dayjob.runtime import ids
from tests.engines.postgres.query_plans import blocks, open_session
from tests.support.arrange import quiet
from tests.support.servers.postgres import server_url, with_options
from tests.support.waiting import turns, until, with_timeout

CONNECTIONS = 4


@pytest.fixture
def schema() -> str:
    return f"test_limits_{ids.new_key().hex()}"


@pytest.fixture
async def brokers(schema: str) -> AsyncIterator[list[Broker]]:
    """Brokers of several processes would share nothing but the server, and so do these."""
    url = with_options(server_url(), schema=schema)
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Broker(url, config=quiet())) for _ in range(CONNECTIONS)]
    with closing(open_session(as_the_engine=False)) as session:
        session.execute(f"DROP SCHEMA {schema} CASCADE")


class Record:
    """The running units of each limit, as the workers see them, and the order of starts."""

    def __init__(self, most: dict[str, int]) -> None:
        self._most = most
        self._running = Counter[str]()
        self.started: list[str] = []
        self.done: list[str] = []

    def start(self, job: Job) -> None:
        self.started.append(job.id)
        for bucket, units in job.limits:
            self._running[bucket] += units
            assert self._running[bucket] <= self._most[bucket.partition(":")[0]], bucket

    def end(self, job: Job) -> None:
        self.done.append(job.id)
        for bucket, units in job.limits:
            self._running[bucket] -= units


async def work(broker: Broker, record: Record, total: int, limit: int) -> None:
    """Claim and settle until all jobs are done. Room counts from the reply of the claim to the settlement."""
    while len(record.done) < total:
        jobs = await broker.claim("q", limit=limit, worker="w")
        for job in jobs:
            record.start(job)
        for job in jobs:
            record.end(job)
            await broker.ack(job)
        if not jobs:
            await turns(1)


async def test_claims_of_several_connections_never_exceed_a_limit(brokers: list[Broker]) -> None:
    first = brokers[0]
    await first.set_limit("api", Limit(running=3))
    new = await first.enqueue_many([NewJob("q", limits=["api"])] * 60)
    record = Record({"api": 3})
    await with_timeout(asyncio.gather(*(work(broker, record, 60, 2) for broker in brokers)))
    assert sorted(record.done) == sorted(each.id for each in new)
    assert [(info.running, info.limited) for info in await first.limits()] == [(0, 0)]


async def test_two_limits_in_both_orders_neither_deadlock_nor_leak(brokers: list[Broker]) -> None:
    first = brokers[0]
    await first.set_limit("one", Limit(running=1))
    await first.set_limit("two", Limit(running=2))
    orders = [["one", "two"], ["two", "one"], ["one"], ["two"]]
    new = await first.enqueue_many([NewJob("q", limits=orders[number % 4]) for number in range(60)])
    record = Record({"one": 1, "two": 2})
    await with_timeout(asyncio.gather(*(work(broker, record, 60, 3) for broker in brokers)))
    assert sorted(record.done) == sorted(each.id for each in new)
    assert [(info.running, info.limited) for info in await first.limits()] == [(0, 0), (0, 0)]


async def test_the_jobs_of_a_key_keep_their_order(brokers: list[Broker]) -> None:
    first = brokers[0]
    await first.set_limit("key", Limit(running=1))
    new = await first.enqueue_many([NewJob("q", limits=[f"key:{number % 5}"]) for number in range(50)])
    record = Record({"key": 1})
    await with_timeout(asyncio.gather(*(work(broker, record, 50, 4) for broker in brokers)))
    number_of = {each.id: number for number, each in enumerate(new)}
    for key in range(5):
        started = [number_of[id] for id in record.started if number_of[id] % 5 == key]
        assert started == sorted(started)


WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'"
)


async def test_the_next_job_of_a_key_does_not_overtake_while_a_claim_waits(
    brokers: list[Broker], schema: str
) -> None:
    """The first claim has locked the first job of a key, and waits for the bucket of another job."""
    first, second, *_ = brokers
    await first.set_limit("api", Limit(running=5))
    await first.set_limit("key", Limit(running=1))
    new = await first.enqueue_many([NewJob("q", limits=["api"]), *[NewJob("q", limits=["key:1"])] * 2])
    gate = await connect(PostgresSettings("", server_url()), 10)
    watch = await connect(PostgresSettings("", server_url()), 10)  # A transaction sees one state of sessions.
    try:
        async with gate.transaction():
            await gate.execute(Statements(schema).with_schema("INSERT INTO dayjob.buckets VALUES ('api')"))
            claims = [asyncio.ensure_future(first.claim("q", limit=2, worker="w"))]
            await until(lambda: has_waiting(watch, schema, 1))
            claims.append(asyncio.ensure_future(second.claim("q", limit=2, worker="w")))
            await until(lambda: has_waiting(watch, schema, 1 if claims[1].done() else 2))
            await gate.execute(
                Statements(schema).with_schema("DELETE FROM dayjob.buckets WHERE name = 'api'")
            )
    finally:
        gate.terminate()
        watch.terminate()
    claimed = [job.id for jobs in await with_timeout(asyncio.gather(*claims)) for job in jobs]
    assert claimed == [new[0].id, new[1].id]


async def test_the_time_of_a_claim_is_after_its_wait_for_room(brokers: list[Broker], schema: str) -> None:
    """By the engine's time no claim begins before the end of the run that it waited for."""
    first, *_ = brokers
    await first.set_limit("api", Limit(running=1))
    await first.enqueue("q", limits=["api"])
    async with gate(schema, "INSERT INTO dayjob.buckets VALUES ('api')") as time_of_wait:
        claim = asyncio.ensure_future(first.claim("q", worker="w"))
        begun = await time_of_wait()
    (job,) = await with_timeout(claim)
    assert job.claimed_us is not None
    assert job.claimed_us >= begun


async def test_the_time_of_a_claim_is_after_the_lock_of_its_last_bucket(
    brokers: list[Broker], schema: str
) -> None:
    """A run may end after the claim has locked its first buckets, before it locks those of the next jobs."""
    first, *_ = brokers
    await first.set_limit("key", Limit(running=1))
    new = await first.enqueue_many([NewJob("q", limits=[f"key:{key}"]) for key in (1, 1, 2)])
    with closing(open_session(as_the_engine=False)) as session:
        for statement in (
            "CREATE FUNCTION dayjob.wait() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM FROM dayjob.meta WHERE key = ''layout'' FOR UPDATE; RETURN NEW; END'",
            "CREATE TRIGGER wait BEFORE INSERT ON dayjob.buckets "
            "FOR EACH ROW WHEN (NEW.name = 'key:2') EXECUTE FUNCTION dayjob.wait()",
        ):
            session.execute(Statements(schema).with_schema(statement))
    async with gate(schema, "SELECT FROM dayjob.meta WHERE key = 'layout' FOR UPDATE") as time_of_wait:
        claim = asyncio.ensure_future(first.claim("q", limit=2, worker="w"))
        begun = await time_of_wait()
    jobs = await with_timeout(claim)
    assert [job.id for job in jobs] == [new[0].id, new[2].id]
    assert [job.claimed_us >= begun for job in jobs if job.claimed_us is not None] == [True, True]


@asynccontextmanager
async def gate(schema: str, lock: str) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Hold a lock. Yield a call that waits until a claim waits for it, and returns the time of the server."""
    holder = await connect(PostgresSettings("", server_url()), 10)
    watch = await connect(PostgresSettings("", server_url()), 10)  # A transaction sees one state of sessions.

    async def time_of_wait() -> int:
        await until(lambda: has_waiting(watch, schema, 1))
        time: int = await watch.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        return time

    try:
        async with holder.transaction():
            await holder.execute(Statements(schema).with_schema(lock))
            yield time_of_wait
    finally:
        holder.terminate()
        watch.terminate()


async def has_waiting(watch: Connection, schema: str, count: int) -> bool:
    return bool(await watch.fetchval(WAITING, schema) >= count)


async def test_a_claim_in_one_process_learns_of_limits_from_another(brokers: list[Broker]) -> None:
    """The statement for queues without limits claims nothing from a queue that has got some."""
    first, second, *_ = brokers
    await first.enqueue("q")
    assert len(await second.claim("q", worker="w")) == 1
    await first.set_limit("api", Limit(running=1))
    await first.enqueue_many([NewJob("q", limits=["api"])] * 2)
    assert len(await second.claim("q", limit=5, worker="w")) == 1
    assert (await first.stats("q")).limited == 1


async def test_room_wakes_a_claim_of_another_process(brokers: list[Broker]) -> None:
    first, second, *_ = brokers
    await first.set_limit("api", Limit(running=1))
    await first.enqueue_many([NewJob("q", limits=["api"])] * 2)
    (job,) = await first.claim("q", limit=2, worker="w")
    waiting = asyncio.ensure_future(second.claim("q", wait=600, worker="w"))
    await first.ack(job)
    assert len(await with_timeout(waiting)) == 1


async def test_a_job_joins_no_line_in_the_transaction_of_a_caller(brokers: list[Broker], schema: str) -> None:
    """It would hold the lock of the bucket until the caller commits."""
    first = brokers[0]
    await first.set_limit("api", Limit(running=1))
    await first.enqueue_many([NewJob("q", limits=["api"])] * 2)
    (job,) = await first.claim("q", limit=2, worker="w")
    connection = await connect(PostgresSettings("", server_url()), 10)
    try:
        async with connection.transaction():
            new = await first.enqueue("q", limits=["api"], connection=connection)
            await with_timeout(first.ack(job))
            assert len(await with_timeout(first.claim("q", limit=2, worker="w"))) == 1
    finally:
        connection.terminate()
    found = await first.get(new.id)
    assert found is not None
    assert found.state is JobState.PENDING
    assert await first.claim("q", limit=2, worker="w") == []
    found = await first.get(new.id)
    assert found is not None
    assert found.state is JobState.LIMITED


async def test_a_line_is_woken_again_if_its_first_job_was_locked(brokers: list[Broker], schema: str) -> None:
    """A cancel that locks the first job, and is rolled back, must not use up its wake-up."""
    first = brokers[0]
    await first.set_limit("api", Limit(running=1))
    _, second = [each.id for each in await first.enqueue_many([NewJob("q", limits=["api"])] * 2)]
    (job,) = await first.claim("q", limit=2, worker="w")
    connection = await connect(PostgresSettings("", server_url()), 10)
    lock = Statements(schema).with_schema("SELECT FROM dayjob.jobs WHERE state = 'limited' FOR UPDATE")
    try:
        async with connection.transaction():
            await connection.execute(lock)
            await first.ack(job)
    finally:
        connection.terminate()
    assert await first.next_due() is not None

    async def is_claimed() -> bool:
        await first.promote()
        return [job.id for job in await first.claim("q", worker="w")] == [second]

    await until(is_claimed)


async def test_no_job_of_a_line_overtakes_its_locked_first_job(brokers: list[Broker], schema: str) -> None:
    """The wake-up skips the first job. The second one becomes pending, and joins the line again."""
    first = brokers[0]
    await first.set_limit("api", Limit(running=1))
    new = [each.id for each in await first.enqueue_many([NewJob("q", limits=["api"])] * 3)]
    (job,) = await first.claim("q", limit=3, worker="w")
    async with locked(schema, new[1]):
        await first.ack(job)
        assert await claim_ids(first) == []
    assert await first.next_due() is not None

    async def is_claimed() -> bool:
        await first.promote()
        return await claim_ids(first) == [new[1]]

    await until(is_claimed)


@asynccontextmanager
async def locked(schema: str, id: str) -> AsyncIterator[None]:
    """Lock a job in another transaction, which is rolled back."""
    connection = await connect(PostgresSettings("", server_url()), 10)
    lock = Statements(schema).with_schema("SELECT FROM dayjob.jobs WHERE id = $1 FOR UPDATE")
    try:
        await connection.execute("BEGIN")
        await connection.execute(lock, id_key(id))
        yield
        await connection.execute("ROLLBACK")
    finally:
        connection.terminate()


async def claim_ids(broker: Broker, limit: int = 10) -> list[str]:
    return [job.id for job in await broker.claim("q", limit=limit, worker="w")]


@pytest.mark.parametrize("limit", [10, 2, 1])
@pytest.mark.parametrize("second", [["key:1"], ["other", "key:1"]], ids=["same limits", "one shared limit"])
async def test_no_job_overtakes_a_locked_one_of_its_key(
    brokers: list[Broker], schema: str, second: list[str], limit: int
) -> None:
    """An ack after the end of the lease locks the job, which is pending again, until it commits."""
    first = brokers[0]
    await first.set_limit("key", Limit(running=1))
    limits = [["key:1", "api"], second, ["key:2"], []]
    new = [each.id for each in await first.enqueue_many([NewJob("q", limits=names) for names in limits])]
    async with locked(schema, new[0]):
        claimed = [id for _ in range(3) for id in await claim_ids(first, limit)]
    assert claimed == [new[2], new[3]]
    assert (await first.stats("q")).pending == 2, "the second job joined a line"
    (job,) = await first.claim("q", limit=limit, worker="w")
    assert job.id == new[0]
    assert await claim_ids(first, limit) == []
    await first.ack(job)
    assert await claim_ids(first, limit) == [new[1]]


async def test_a_locked_job_holds_back_neither_earlier_jobs_of_its_key_nor_other_queues(
    brokers: list[Broker], schema: str
) -> None:
    first = brokers[0]
    await first.set_limit("api", Limit(running=5))
    jobs = [NewJob(queue, limits=["api"]) for queue in ("q", "q", "q", "other")]
    new = [each.id for each in await first.enqueue_many(jobs)]
    async with locked(schema, new[1]):
        claimed = await first.claim(["q", "other"], limit=10, worker="w")
    assert [job.id for job in claimed] == [new[0], new[3]]
    assert await claim_ids(first) == [new[1], new[2]]


async def test_a_claim_examines_a_bounded_number_of_jobs_behind_a_locked_one(
    brokers: list[Broker], schema: str
) -> None:
    first = brokers[0]
    await first.set_limit("key", Limit(running=1))
    new = await first.enqueue_many([NewJob("q", limits=["key:1"])] * (3 * MOST_BLOCKED))
    lock = "SELECT count(*) FROM dayjob.jobs WHERE xmax::text <> '0'"
    async with locked(schema, new[0].id):
        assert await claim_ids(first, 1) == []
        with closing(open_session(as_the_engine=False)) as session:
            found = session.execute(Statements(schema).with_schema(lock)).fetchone()
    assert found is not None
    assert MOST_BLOCKED <= found[0] <= 2 * MOST_BLOCKED


@pytest.mark.parametrize("jobs", [1, 2])
async def test_a_waiting_claim_gets_a_job_after_its_lock_is_gone(
    brokers: list[Broker], schema: str, jobs: int
) -> None:
    """A rollback notifies no listener."""
    first = brokers[0]
    await first.set_limit("key", Limit(running=1))
    new = await first.enqueue_many([NewJob("q", limits=["key:1"])] * jobs)
    async with locked(schema, new[0].id):
        assert await claim_ids(first) == []
        waiting = asyncio.ensure_future(first.claim("q", wait=600, worker="w"))
        await turns(1)
    (job,) = await with_timeout(waiting)
    assert job.id == new[0].id


async def test_no_job_overtakes_one_that_returns_while_a_claim_waits(
    brokers: list[Broker], schema: str
) -> None:
    """A claim has picked the second job of a key, and waits for a bucket. The first one runs until then."""
    first, second, *_ = brokers
    await first.set_limit("key", Limit(running=1))
    new = [each.id for each in await first.enqueue_many([NewJob("q", limits=["key:1"])] * 2)]
    (job,) = await first.claim("q", worker="w")
    new += [each.id for each in await first.enqueue_many([NewJob("q", limits=["api"]), NewJob("q")])]
    gate = await connect(PostgresSettings("", server_url()), 10)
    watch = await connect(PostgresSettings("", server_url()), 10)
    try:
        async with gate.transaction():
            await gate.execute(Statements(schema).with_schema("INSERT INTO dayjob.buckets VALUES ('api')"))
            claim = asyncio.ensure_future(claim_ids(second))
            await until(lambda: has_waiting(watch, schema, 1))
            await first.release(job)
            await gate.execute(
                Statements(schema).with_schema("DELETE FROM dayjob.buckets WHERE name = 'api'")
            )
    finally:
        gate.terminate()
        watch.terminate()
    assert await with_timeout(claim) == new[2:]
    (job,) = await first.claim("q", limit=2, worker="w")
    assert job.id == new[0]
    await first.ack(job)
    assert await claim_ids(first) == [new[1]]
    assert [(info.running, info.limited) for info in await first.limits()] == [(1, 0)]


# Blocks.


BLOCKED = """
INSERT INTO dayjob.jobs (
    id, queue, state, task, payload, priority, max_attempts, enqueued_at, run_at, dedup_until, limits,
    limited_by
)
SELECT lpad(to_hex({first} + n), 32, '0')::uuid, 'q', 'limited', 'task', 'blocked', 1000, 3, n, n, 'claimed',
    '[["api", 1]]', 'api'
FROM generate_series(1, {count}) AS n;
ANALYZE dayjob.jobs
"""

CLAIM = """
SELECT count(*)
FROM dayjob.claim_limited(
    NULL, '{q}', '{30000000}', 3, 'w', gen_random_uuid(), 100000, 1000, 100, 500000, 10000000, 1000
)
"""


async def test_blocked_jobs_at_the_head_cost_a_claim_nothing(brokers: list[Broker], schema: str) -> None:
    """100,000 jobs without room, then others. A claim reads as many blocks as with ten of the first ones."""
    first, statements = brokers[0], Statements(schema)
    await first.set_limit("api", Limit(running=1))
    await first.enqueue("q", limits=["api"])
    assert len(await first.claim("q", limit=2, worker="w")) == 1
    await first.enqueue_many([NewJob("q", limits=["other"]), NewJob("q"), NewJob("q", limits=["api"])])
    measured = []
    with closing(open_session(as_the_engine=True)) as session:
        for count in (10, 99_990):
            session.execute(statements.with_schema(BLOCKED.format(first=count, count=count)))
            measured.append(blocks(session, statements.with_schema(CLAIM)))
    few, many = measured
    assert many <= few + 30, measured


# Writes of buckets.

WRITES = """
SELECT pg_stat_get_xact_tuples_inserted(buckets), pg_stat_get_xact_tuples_updated(buckets),
    pg_stat_get_xact_tuples_deleted(buckets)
FROM (SELECT 'dayjob.buckets'::regclass::oid AS buckets) AS named
"""

LEAVE = """
SELECT dayjob.leave_limits(NULL, array_agg(ROW('running', limits, NULL, NULL)::dayjob.departure))
FROM dayjob.jobs WHERE state = 'running'
"""


async def test_the_bucket_of_a_key_is_inserted_and_deleted_and_never_updated(
    brokers: list[Broker], schema: str
) -> None:
    """With a key per job, the buckets are most of the cost of a limit."""
    first, statements = brokers[0], Statements(schema)
    await first.set_limit("key", Limit(running=1))
    await first.enqueue_many([NewJob("q", limits=[f"key:{number}"]) for number in range(3)])
    with closing(open_session(as_the_engine=True)) as session:
        session.execute("BEGIN")
        assert session.execute(statements.with_schema(CLAIM)).fetchone() == (3,)
        assert session.execute(statements.with_schema(WRITES)).fetchone() == (3, 0, 0)
        assert session.execute(statements.with_schema(LEAVE)).fetchone() == ([],)
        assert session.execute(statements.with_schema(WRITES)).fetchone() == (3, 0, 3)
        session.execute("ROLLBACK")


async def test_many_bounded_enqueues_at_once_never_exceed_max_pending(schema: str) -> None:
    config = quiet(queues={"q": QueueConfig(max_pending=5)})
    url = with_options(server_url(), schema=schema)
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(Broker(url, config=config)) for _ in range(CONNECTIONS)]
        calls = [broker.enqueue("q") for broker in brokers for _ in range(4)]
        await with_timeout(asyncio.gather(*calls, return_exceptions=True))
        assert (await brokers[0].stats("q")).pending == 5
    with closing(open_session(as_the_engine=False)) as session:
        session.execute(f"DROP SCHEMA {schema} CASCADE")
