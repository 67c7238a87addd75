"""A write that is repeated with its token changes nothing and gets the first reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

import psycopg
import pytest
from msgspec.structs import replace

from dayjob import Broker, BrokerConfig, CancelOutcome, JobState, NewJob
from dayjob.engines.base import (
    ClaimRequest,
    DocumentWrite,
    Engine,
    Progress,
    Reschedule,
    RetentionTimes,
    SettleOp,
    Token,
)
from dayjob.model.durations import SECOND
from dayjob.model.job import Job, id_key, id_text
from dayjob.model.lifecycle import Transition
from dayjob.runtime.clock import SYSTEM
from dayjob.runtime.ids import new_key
from tests.support.arrange import KEEP_ALL, claim_one, dead, record, running
from tests.support.observe import check_counters, every_job
from tests.support.waiting import until, with_timeout

HOUR = 3600 * SECOND
KEPT = RetentionTimes(done=HOUR, dead=HOUR, cancelled=HOUR)
FORGET = RetentionTimes(done=0, dead=0, cancelled=0)

Reply = TypeVar("Reply")


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    async with Broker(url, config=BrokerConfig(duties=False, retention=KEEP_ALL)) as broker:
        yield broker
        await check_counters(broker)


@pytest.fixture
def engine(broker: Broker) -> Engine:
    return broker._engine


class Write(Generic[Reply]):
    """A write with its token, to be tried several times."""

    def __init__(self, call: Callable[[Token], Awaitable[Reply]]) -> None:
        self._call = call
        self._token = Token(new_key(), new_key(), 0, 1)

    async def first(self) -> Reply:
        return await self._call(self._token)

    async def again(self) -> Reply:
        self._token = replace(self._token, repeated=True)
        return await self._call(self._token)


def ack(job: Job, retention: RetentionTimes = FORGET, **effects: Any) -> SettleOp:
    return SettleOp(job.key, job.claim, Transition.ACK, retention, **effects)


@pytest.mark.parametrize(
    "jobs",
    [
        [NewJob("q")],
        [NewJob("q"), NewJob("r")],
        [NewJob("q", dedup_key="d")],
        [NewJob("q", dedup_key="d", kv={b"k": b"v"}), NewJob("r", dedup_key="e")],
    ],
    ids=["one", "many", "keyed", "with kv"],
)
async def test_an_insert_after_its_jobs_have_run(broker: Broker, engine: Engine, jobs: list[NewJob]) -> None:
    insertions = [broker._validator.insertion(job) for job in jobs]
    write = Write(lambda token: engine.insert(insertions, token=token))
    enqueued = await write.first()
    claimed = await broker.claim(["q", "r"], limit=10)
    await engine.settle([ack(job) for job in claimed])
    await broker.kv_delete(b"k")
    assert await write.again() == enqueued
    assert await every_job(broker) == []
    assert await broker.kv_get(b"k") is None


async def test_an_insert_that_stored_nothing_is_a_first_try_when_it_is_repeated(
    broker: Broker, engine: Engine
) -> None:
    first = await broker.enqueue("q", dedup_key="d")
    insertion = broker._validator.insertion(NewJob("q", dedup_key="d"))
    write = Write(lambda token: engine.insert([insertion], token=token))
    (refused,) = await engine.insert([insertion])
    assert (refused.id, refused.created) == (first.id, False)
    assert await write.first() == [refused]
    await claim_one(broker)
    (reply,) = await write.again()
    assert reply.created, "the key is free now"


async def test_a_claim_of_several_requests(broker: Broker, engine: Engine) -> None:
    ids = [each.id for each in await broker.enqueue_many([NewJob("q")] * 5 + [NewJob("r")] * 2)]
    requests = [
        ClaimRequest((("q", HOUR),), 2, "a"),
        ClaimRequest((("q", HOUR),), 2, "b"),
        ClaimRequest((("r", HOUR),), 5, "c"),
    ]
    write = Write(lambda token: engine.claim(requests, token=token))
    claimed = await write.first()
    assert [[job.id for job in jobs] for jobs in claimed] == [ids[:2], ids[2:4], ids[5:]]
    again = await write.again()
    for before, after in zip(claimed, again, strict=True):
        assert [(job.id, job.claim, job.worker) for job in after] == [
            (job.id, job.claim, job.worker) for job in before
        ]
    assert (await broker.stats("q")).running == 4


async def test_a_repeated_claim_waits_for_its_first_try_that_is_under_way(
    broker: Broker, engine: Engine, console: psycopg.Connection[Any], schema: str
) -> None:
    first, second = await broker.enqueue_many([NewJob("q")] * 2)
    token = Token(new_key(), new_key(), 0, 1, repeated=True)
    key = id_text(token.key)

    async def is_waiting() -> bool:
        return console.execute(_WAITING).fetchone() == (True,)

    with console.transaction():
        console.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s::uuid::text, 0))", [key])
        repeated = asyncio.create_task(engine.claim([ClaimRequest((("q", HOUR),), 1, "a")], token=token))
        await until(is_waiting)
        console.execute(
            f"""UPDATE "{schema}".jobs SET state = 'running', attempts = 1, claim = %s, claimed_at = run_at,
            lease_expires_at = run_at + 3600000000, worker = 'a' WHERE id = %s""",
            [key, first.id],
        )
        console.execute(f"""INSERT INTO "{schema}".counters (queue, pending, running) VALUES ('q', -1, 1)""")
    [[job]] = await with_timeout(repeated)
    assert job.id == first.id
    assert (await record(broker, second.id)).state is JobState.PENDING


_WAITING = """SELECT EXISTS (
    SELECT FROM pg_locks AS held JOIN pg_locks AS wanted USING (locktype, classid, objid)
    WHERE held.pid = pg_backend_pid() AND locktype = 'advisory' AND NOT wanted.granted)"""


async def test_a_claim_that_took_nothing_is_a_first_try_when_it_is_repeated(
    broker: Broker, engine: Engine
) -> None:
    write = Write(lambda token: engine.claim([ClaimRequest((("q", HOUR),), 2, "a")], token=token))
    assert await write.first() == [[]]
    enqueued = await broker.enqueue("q")
    ((job,),) = await write.again()
    assert job.id == enqueued.id


async def test_an_insert_with_a_claim(broker: Broker, engine: Engine) -> None:
    insertion = broker._validator.insertion(NewJob("q"))
    requests = [ClaimRequest((("q", HOUR),), 1, "a")]
    write = Write(lambda token: engine.insert_and_claim([insertion], requests, token=token))
    enqueued, ((job,),) = await write.first()
    again, ((same,),) = await write.again()
    assert again == enqueued
    assert (same.key, same.claim) == (job.key, job.claim)
    assert len(await every_job(broker)) == 1


@pytest.mark.parametrize("retention", [FORGET, KEPT], ids=["not kept", "kept"])
async def test_a_settlement_of_a_current_and_a_lost_claim(
    broker: Broker, engine: Engine, retention: RetentionTimes
) -> None:
    jobs = [await running(broker) for _ in range(2)]
    await broker.release(jobs[1])
    ops = [ack(job, retention) for job in jobs]
    write = Write(lambda token: engine.settle(ops, token=token))
    assert await write.first() == [JobState.DONE, None]
    assert await write.again() == [JobState.DONE, None]
    assert (await broker.stats("q")).done == 1


async def test_a_settlement_writes_its_effects_once(broker: Broker, engine: Engine) -> None:
    job = await running(broker)
    insertion = broker._validator.insertion(NewJob("after", dedup_key="d"))
    op = ack(job, insert=(insertion,), kv={b"k": b"v"})
    write = Write(lambda token: engine.settle([op], token=token))
    assert await write.first() == [JobState.DONE]
    await engine.settle([ack(await claim_one(broker, "after"))])
    await broker.kv_put(b"k", b"newer")
    assert await write.again() == [JobState.DONE]
    assert await every_job(broker) == []
    assert await broker.kv_get(b"k") == b"newer"


async def test_progress_does_not_replace_later_progress(broker: Broker, engine: Engine) -> None:
    job = await running(broker)

    def at(fraction: float) -> list[Progress]:
        return [Progress(job.key, job.claim, fraction, "")]

    write = Write(lambda token: engine.record_progress(at(0.5), token=token))
    await write.first()
    await engine.record_progress(at(0.9))
    await write.again()
    assert (await record(broker, job.id)).progress == (0.9, "")


async def test_a_cancel_gets_its_first_outcomes(broker: Broker, engine: Engine) -> None:
    waiting, job = await broker.enqueue("later", delay=60), await running(broker)
    write = Write(lambda token: engine.cancel([id_key(waiting.id), job.key], token=token))
    assert await write.first() == [CancelOutcome.REMOVED, CancelOutcome.REQUESTED]
    await broker.mark_cancelled(job)
    assert await write.again() == [CancelOutcome.REMOVED, CancelOutcome.REQUESTED]


async def test_a_requeue_of_a_job_that_died_again_leaves_it_dead(broker: Broker, engine: Engine) -> None:
    id = await dead(broker)
    write = Write(lambda token: engine.requeue([id_key(id)], token=token))
    assert await write.first() == [True]
    await broker.dead_letter(await claim_one(broker), "no good")
    assert await write.again() == [True]
    assert (await record(broker, id)).state is JobState.DEAD


async def test_bulk_operations_do_not_take_the_next_jobs(broker: Broker, engine: Engine) -> None:
    for _ in range(5):
        await dead(broker)
    for write in (
        Write(lambda token: engine.requeue_dead("q", 2, token=token)),
        Write(lambda token: engine.purge_dead("q", 2, token=token)),
    ):
        assert await write.first() == 2
        assert await write.again() == 2
    stats = await broker.stats("q")
    assert (stats.pending, stats.dead) == (2, 1)
    (left,) = await broker.dead_jobs("q")
    purge = Write(lambda token: engine.purge([left.key], token=token))
    assert (await purge.first(), await purge.again()) == (1, 1)


async def test_a_reschedule_of_a_job_that_has_started_gets_its_first_reply(
    broker: Broker, engine: Engine
) -> None:
    waiting = await broker.enqueue("q", delay=60)
    change = Reschedule(id_key(waiting.id), SYSTEM.now(), 5)
    write = Write(lambda token: engine.reschedule([change], token=token))
    assert await write.first() == [True]
    await claim_one(broker)
    assert await write.again() == [True]


async def test_a_kv_write_does_not_replace_a_later_value(broker: Broker, engine: Engine) -> None:
    write = Write(lambda token: engine.kv_write([(b"put", b"1"), (b"deleted", None)], token=token))
    await write.first()
    await broker.kv_put(b"put", b"2")
    await broker.kv_put(b"deleted", b"2")
    await write.again()
    assert [await broker.kv_get(key) for key in (b"put", b"deleted")] == [b"2", b"2"]


@pytest.mark.parametrize("paused", [True, False])
async def test_a_pause_does_not_replace_a_later_one(broker: Broker, engine: Engine, paused: bool) -> None:
    write = Write(lambda token: engine.pause("q", paused, token=token))
    await write.first()
    await engine.pause("q", not paused)
    await write.again()
    assert await broker.paused() == (set() if paused else {"q"})


async def test_promotion_and_expiry_do_not_take_the_next_jobs(
    broker: Broker, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.enqueue_many([NewJob("q", delay=60)] * 3 + [NewJob("q", expires=60)] * 3)
    later = SYSTEM.now() + HOUR
    monkeypatch.setattr(engine, "_now", lambda: later)
    write = Write(lambda token: engine.promote(2, token))
    due, expired = await write.first()
    assert (due, len(expired)) == (2, 2)
    assert await write.again() == (due, expired)
    stats = await broker.stats("q")
    assert (stats.pending, stats.scheduled, stats.cancelled) == (3, 1, 2)


async def test_reap_and_reclaim_do_not_take_the_next_claims(
    broker: Broker, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        await broker.enqueue("q")
    await broker.claim("q", limit=4, worker="w")
    later = SYSTEM.now() + HOUR
    monkeypatch.setattr(engine, "_now", lambda: later)
    reap = Write(lambda token: engine.reap(1, later, token))
    reclaim = Write(lambda token: engine.reclaim(["w"], 1, token=token))
    for write in (reap, reclaim):
        ended = await write.first()
        assert len(ended) == 1
        assert await write.again() == ended
    stats = await broker.stats("q")
    assert (stats.running, stats.pending) == (2, 2)


async def test_sweeps_do_not_take_the_next_jobs(broker: Broker, engine: Engine) -> None:
    ids = sorted([await dead(broker) for _ in range(6)])
    later = SYSTEM.now() + 1000 * HOUR
    sweep = Write(lambda token: engine.sweep(2, later, token))
    assert [(await sweep.first())[0], (await sweep.again())[0]] == [2, 2]
    finished = Write(lambda token: engine.sweep_finished(JobState.DEAD, 0, None, 2, token))
    reply = await finished.first()
    assert reply[0] == 2
    assert await finished.again() == reply, "with the same cursor"
    assert [job.id for job in await every_job(broker)] == ids[4:]


@pytest.mark.parametrize("names", [["a"], ["a", "b"]], ids=["one", "several"])
async def test_documents_get_their_first_reply(broker: Broker, engine: Engine, names: list[str]) -> None:
    writes = [DocumentWrite("k", name, None, b"1") for name in names]
    changes = [DocumentWrite("k", name, b"1", b"2") for name in names]
    for wanted, written in ((writes, True), (writes, False), (changes, True), (changes, False)):
        write = Write(partial(engine.compare_and_set, wanted, (), False))
        assert await write.first() is written
        assert await write.again() is written
    assert {document.value for document in (await engine.documents("k"))[1]} == {b"2"}


async def test_the_first_of_two_concurrent_tries_decides(broker: Broker, engine: Engine) -> None:
    """The second try finds no stored reply, and meets the token of the first when it stores its own."""
    job = await running(broker)
    token = Token(new_key(), new_key(), 0, 1)
    op = ack(job, KEPT)
    assert await engine.settle([op], token=token) == [JobState.DONE]
    assert await engine.settle([op], token=token) == [JobState.DONE], "although it is not marked as repeated"


async def test_an_id_that_exists_leaves_out_only_its_job(broker: Broker) -> None:
    """The statement for new ids fails. The one that skips conflicts stores the rest of the batch."""
    id = id_text(new_key())
    batch = [NewJob("q", id=id, reserve_id=False), NewJob("q"), NewJob("other", b"1", priority=5)]
    assert [each.created for each in await broker.enqueue_many(batch)] == [True, True, True]
    assert [each.created for each in await broker.enqueue_many(batch)] == [False, True, True]
    assert (await broker.stats("q")).pending == 3
    assert sorted((job.queue, job.payload, job.priority) for job in await every_job(broker)) == [
        ("other", b"1", 5), ("other", b"1", 5), ("q", b"", 1000), ("q", b"", 1000), ("q", b"", 1000)
    ]  # fmt: skip


async def test_acks_with_several_retentions_share_a_batch(broker: Broker, engine: Engine) -> None:
    jobs = [await running(broker) for _ in range(4)]
    ops = [
        ack(job, retention)
        for job, retention in zip(jobs, (KEPT, FORGET, KEPT, RetentionTimes(done=None)), strict=True)
    ]
    for number, op in enumerate(ops):
        op.result = b"%d" % number
    assert await engine.settle(ops) == [JobState.DONE] * 4
    assert [job.result for job in await every_job(broker)] == [b"0", b"2", b"3"]
