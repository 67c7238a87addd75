"""A commit whose reply was lost is not repeated: the retry gets the reply of the first try."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from psycopg import AsyncConnection

from dayjob import (
    Broker,
    BrokerConfig,
    CancelOutcome,
    EngineUnavailable,
    JobState,
    NewJob,
    QueueConfig,
    Retry,
    Settlement,
)
from dayjob.engines.base import DocumentWrite, Progress
from dayjob.engines.postgres.statements import Statements
from dayjob.model.durations import to_datetime
from dayjob.runtime.clock import SYSTEM
from dayjob.testing import ManualClock
from tests.support.arrange import KEEP_ALL, claim_one, dead, record, running
from tests.support.observe import check_counters, every_job, ids
from tests.support.servers.postgres import schema_of, server_url, with_options
from tests.support.servers.postgres_proxy import Loss, Proxy
from tests.support.waiting import until

CONFIG = BrokerConfig(
    default=QueueConfig(retry=Retry.fixed(attempts=5, delay=0)), retention=KEEP_ALL, duties=False
)
FORGETFUL = BrokerConfig(duties=False)

Lose = Callable[[str], Loss]
Corrupt = Callable[[str], Awaitable[None]]


@pytest.fixture
def lose(wire: Proxy, tmp_path: Path) -> Lose:
    """Lose the reply of the next transaction that runs this statement."""
    statements = Statements(schema_of(tmp_path))

    def lose(name: str) -> Loss:
        wanted = statements[name]
        return wire.lose_reply(lambda statement: statement == wanted)

    return lose


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    async with Broker(url, config=CONFIG) as broker:
        yield broker
        await check_counters(broker)


@pytest.fixture
def corrupt(tmp_path: Path) -> Corrupt:
    """Damage the record of a job."""

    async def corrupt(id: str) -> None:
        async with await AsyncConnection.connect(server_url(), autocommit=True) as console:
            update = f"UPDATE {schema_of(tmp_path)}.jobs SET headers = '[1]' WHERE id = %s"
            await console.execute(update.encode(), [id])

    return corrupt


async def test_an_enqueue_is_stored_once(broker: Broker, lose: Lose) -> None:
    loss = lose("insert_plain")
    enqueued = await broker.enqueue("q", b"once")
    assert loss.has_happened
    assert enqueued.created
    assert ids(await every_job(broker)) == [enqueued.id]


async def test_an_enqueue_with_options_is_stored_once(broker: Broker, lose: Lose) -> None:
    loss = lose("insert")
    enqueued = await broker.enqueue("q", b"once", headers={"n": "1"})
    assert loss.has_happened
    assert enqueued.created
    assert ids(await every_job(broker)) == [enqueued.id]


async def test_an_enqueue_of_an_id_that_exists_stores_nothing(broker: Broker, lose: Lose) -> None:
    first = await broker.enqueue("q", b"first")
    loss = lose("insert_reserving")
    again = await broker.enqueue("q", b"again", id=first.id)
    assert loss.has_happened
    assert (again.id, again.created) == (first.id, False)


async def test_an_enqueue_whose_retries_are_lost_too_is_stored_once(broker: Broker, lose: Lose) -> None:
    losses = [lose("insert_plain"), lose("stored_reply"), lose("stored_reply")]
    enqueued = await broker.enqueue("q", b"once")
    assert all(loss.has_happened for loss in losses)
    assert enqueued.created
    assert ids(await every_job(broker)) == [enqueued.id]


async def test_a_batch_is_stored_once_and_gets_its_first_replies(broker: Broker, lose: Lose) -> None:
    held = await broker.enqueue("q", dedup_key="held")
    loss = lose("insert_skipping")
    jobs = [
        NewJob("q", b"plain"), NewJob("other", b"keyed", dedup_key="free", kv={b"a": b"1"}),
        NewJob("q", b"refused", dedup_key="held", kv={b"b": b"2"}), NewJob("q", b"late", delay=60),
    ]  # fmt: skip
    enqueued = await broker.enqueue_many(jobs)
    assert loss.has_happened
    assert [each.created for each in enqueued] == [True, True, False, True]
    assert enqueued[2].id == held.id
    assert ids(await every_job(broker)) == sorted({held.id, *(each.id for each in enqueued)})
    assert [await broker.kv_get(key) for key in (b"a", b"b")] == [b"1", None]


async def test_a_keyed_enqueue_gets_its_first_reply(broker: Broker, lose: Lose) -> None:
    loss = lose("insert_skipping")
    first = await broker.enqueue("q", b"first", dedup_key="key")
    assert loss.has_happened
    assert first.created
    loss = lose("insert_skipping")
    second = await broker.enqueue("q", b"second", dedup_key="key")
    assert loss.has_happened
    assert (second.id, second.created) == (first.id, False)


async def test_a_claim_returns_the_jobs_of_its_first_try(broker: Broker, lose: Lose) -> None:
    expected = [(await broker.enqueue("q", b"%d" % n, headers={"n": str(n)})).id for n in range(5)]
    loss = lose("claim")
    jobs = await broker.claim("q", limit=3, worker="w")
    assert loss.has_happened
    assert ids(jobs) == expected[:3], "the jobs of the lost reply, and no others"
    assert [(job.payload, job.headers, job.attempts) for job in jobs] == [
        (b"%d" % n, {"n": str(n)}, 1) for n in range(3)
    ]
    assert (await broker.stats("q")).running == 3
    for job in jobs:
        await broker.ack(job)


async def test_an_enqueue_that_a_claim_waits_for_is_claimed(broker: Broker, url: str, lose: Lose) -> None:
    async with Broker(url, config=CONFIG) as other:
        loss = lose("insert_plain")
        (enqueued,) = await other.enqueue_many([NewJob("q", b"waited for")])
        assert loss.has_happened
        assert (await claim_one(broker)).id == enqueued.id


async def test_an_ack_writes_its_follow_ups_and_values_once(broker: Broker, lose: Lose) -> None:
    job = await running(broker)
    loss = lose("settle")
    await broker.ack(
        job, result=b"r", enqueue=[NewJob("after", b"1"), NewJob("after", b"2")], kv={b"k": b"v"}
    )
    assert loss.has_happened
    assert (await record(broker, job.id)).result == b"r"
    assert [after.payload for after in await broker.jobs("after")] == [b"1", b"2"]
    assert await broker.kv_get(b"k") == b"v"
    assert (await broker.stats("q")).done == 1


async def test_an_ack_that_keeps_nothing_is_applied_once(url: str, lose: Lose) -> None:
    async with Broker(url, config=FORGETFUL) as broker:
        jobs = [await running(broker) for _ in range(3)]
        await broker.cancel(jobs[1].id)
        await broker.mark_cancelled(jobs[1])
        loss = lose("ack")
        results = await broker.settle_many([Settlement.ack(job) for job in jobs])
        assert loss.has_happened
        assert [result.applied for result in results] == [True, False, True]
        assert (await broker.stats("q")).done == 2
        await check_counters(broker)


async def test_a_nack_counts_once(broker: Broker, lose: Lose) -> None:
    job = await running(broker)
    loss = lose("settle")
    assert await broker.nack(job, "no good", delay=60) is JobState.SCHEDULED
    assert loss.has_happened
    found = await record(broker, job.id)
    assert (found.state, found.attempts, len(found.errors)) == (JobState.SCHEDULED, 1, 1)


async def test_the_last_nack_ends_the_job_once(broker: Broker, lose: Lose) -> None:
    job = await running(broker, max_attempts=1)
    loss = lose("settle")
    assert await broker.nack(job, "no good") is JobState.DEAD
    assert loss.has_happened
    assert len((await record(broker, job.id)).errors) == 1


async def test_release_snooze_and_dead_letter_are_applied_once(broker: Broker, lose: Lose) -> None:
    job = await running(broker)
    loss = lose("settle")
    await broker.release(job)
    assert loss.has_happened
    first, job = job, await claim_one(broker)
    assert job.attempts == 1
    assert job.epoch > first.epoch
    loss = lose("settle")
    await broker.snooze(job, 60)
    assert loss.has_happened
    assert (await record(broker, job.id)).state is JobState.SCHEDULED
    job = await running(broker)
    loss = lose("settle")
    await broker.dead_letter(job, "no good")
    assert loss.has_happened
    assert (await record(broker, job.id)).last_error == "no good"


async def test_a_renewal_sets_the_lease(broker: Broker, lose: Lose) -> None:
    job = await running(broker)
    before = job.lease_us
    loss = lose("renew")
    await broker.renew(job, 600)
    assert loss.has_happened
    assert before is not None
    assert job.lease_us is not None
    assert job.lease_us > before
    assert (await record(broker, job.id)).lease_us == job.lease_us


async def test_a_cancel_gets_its_first_outcome(broker: Broker, lose: Lose) -> None:
    waiting = await broker.enqueue("q")
    loss = lose("cancel")
    assert await broker.cancel(waiting.id) is CancelOutcome.REMOVED
    assert loss.has_happened
    job = await running(broker)
    loss = lose("cancel")
    assert await broker.cancel(job.id) is CancelOutcome.REQUESTED
    assert loss.has_happened


async def test_a_requeue_and_a_purge_get_their_first_replies(broker: Broker, lose: Lose) -> None:
    id = await dead(broker)
    loss = lose("requeue")
    assert await broker.requeue(id)
    assert loss.has_happened
    assert (await claim_one(broker)).id == id
    for _ in range(3):
        await dead(broker, "other")
    loss = lose("purge_dead")
    assert await broker.purge_dead("other") == 3
    assert loss.has_happened


async def test_a_reschedule_is_applied(broker: Broker, lose: Lose) -> None:
    waiting = await broker.enqueue("q")
    loss = lose("reschedule")
    later = to_datetime(SYSTEM.now()) + timedelta(hours=1)
    assert await broker.reschedule(waiting.id, run_at=later)
    assert loss.has_happened
    assert (await record(broker, waiting.id)).state is JobState.SCHEDULED


async def test_promote_and_reap_change_each_job_once(broker: Broker, lose: Lose) -> None:
    await broker.enqueue("q", delay=0.05)

    async def is_due() -> bool:
        return await broker.next_due() == 0

    await until(is_due)
    loss = lose("promote")
    await broker.promote()
    assert loss.has_happened
    job = await claim_one(broker, lease=0.001)

    async def is_reaped() -> bool:
        await broker.reap()
        return (await record(broker, job.id)).state is not JobState.RUNNING

    loss = lose("end_claims")
    await until(is_reaped)
    assert loss.has_happened
    found = await record(broker, job.id)
    assert (found.state, found.attempts, len(found.errors)) == (JobState.PENDING, 1, 1)


@pytest.mark.parametrize("names", [["a"], ["a", "b"]], ids=["one", "several"])
async def test_documents_are_written_once(broker: Broker, lose: Lose, names: list[str]) -> None:
    storage = broker._session.storage
    loss = lose("compare_and_set")
    assert await storage.compare_and_set([DocumentWrite("k", name, None, b"1") for name in names])
    assert loss.has_happened
    loss = lose("compare_and_set")
    assert await storage.compare_and_set([DocumentWrite("k", name, b"1", b"2") for name in names])
    assert loss.has_happened
    assert [(document.name, document.value) for document in (await storage.documents("k"))[1]] == [
        (n, b"2") for n in names
    ]
    for expected in (None, b"1"):
        loss = lose("compare_and_set")
        assert not await storage.compare_and_set([DocumentWrite("k", name, expected, b"3") for name in names])
        assert loss.has_happened
    loss = lose("compare_and_set")
    assert await storage.compare_and_set([DocumentWrite("k", name, b"2", None) for name in names])
    assert loss.has_happened
    assert (await storage.documents("k"))[1] == []


async def test_documents_and_their_jobs_are_written_once(broker: Broker, lose: Lose) -> None:
    storage = broker._session.storage
    jobs = [broker._validator.insertion(NewJob("q", b"%d" % number, dedup_key="d")) for number in range(2)]
    loss = lose("compare_and_set")
    assert await storage.compare_and_set([DocumentWrite("k", "a", None, b"1")], jobs)
    assert loss.has_happened
    assert [(document.name, document.value) for document in (await storage.documents("k"))[1]] == [
        ("a", b"1")
    ]
    assert [job.payload for job in await every_job(broker)] == [b"0"]
    loss = lose("compare_and_set")
    assert not await storage.compare_and_set([DocumentWrite("k", "a", None, b"2")], jobs)
    assert loss.has_happened
    assert (await broker.stats("q")).pending == 1


async def test_a_reclaim_ends_each_claim_once(broker: Broker, lose: Lose) -> None:
    job = await running(broker)
    loss = lose("end_claims")
    (ended,) = await broker._session.storage.write(
        lambda token: broker._engine.reclaim(["w"], 10, token=token)
    )
    assert (ended.id, ended.state, ended.error) == (job.id, JobState.PENDING, "worker gone")
    assert loss.has_happened
    found = await record(broker, job.id)
    assert (found.state, found.attempts, len(found.errors)) == (JobState.PENDING, 1, 1)


async def test_kv_writes_are_applied(broker: Broker, lose: Lose) -> None:
    loss = lose("kv_write")
    await broker.kv_put(b"k", b"v")
    assert loss.has_happened
    assert await broker.kv_get(b"k") == b"v"
    loss = lose("kv_write")
    await broker.kv_delete(b"k")
    assert loss.has_happened
    assert await broker.kv_get(b"k") is None


async def test_a_pause_and_a_resume_are_applied(broker: Broker, lose: Lose) -> None:
    loss = lose("pause")
    await broker.pause("q")
    assert loss.has_happened
    assert await broker.paused() == {"q"}
    loss = lose("resume")
    await broker.resume("q")
    assert loss.has_happened
    assert await broker.paused() == set()


async def test_progress_is_stored(broker: Broker, lose: Lose) -> None:
    job = await running(broker)
    loss = lose("record_progress")
    await broker._session.storage.write(
        lambda token: broker._engine.record_progress([Progress(job.key, job.claim, 0.5, "half")], token)
    )
    assert loss.has_happened
    assert (await record(broker, job.id)).progress == (0.5, "half")


async def test_expiry_and_sweeps_end_each_job_once(url: str, lose: Lose) -> None:
    clock = ManualClock()
    async with Broker(url, config=CONFIG, clock=clock) as broker:
        await broker.enqueue("q", expires=1)
        clock.advance(2)
        loss = lose("expire")
        await broker.promote()
        assert loss.has_happened
        assert (await broker.stats("q")).cancelled == 1
        await dead(broker)
        loss = lose("sweep_finished")
        assert await broker.sweep_dead(0) == 1
        assert loss.has_happened
        clock.advance(10 * 24 * 3600)
        loss = lose("sweep")
        assert await broker.sweep() == 1
        assert loss.has_happened
        assert await every_job(broker) == []


async def test_requeue_dead_returns_its_first_number(broker: Broker, lose: Lose) -> None:
    for _ in range(3):
        await dead(broker)
    loss = lose("requeue")
    assert await broker.requeue_dead("q") == 3
    assert loss.has_happened
    assert (await broker.stats("q")).pending == 3


async def test_an_enqueue_that_is_claimed_in_the_same_call_is_claimed_once(
    broker: Broker, lose: Lose
) -> None:
    for statement in ("insert_plain", "claim"):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(broker.claim("q", wait=20))
            await until_waiting(broker)
            loss = lose(statement)
            enqueued = await broker.enqueue("q")
        (job,) = waiting.result()
        assert loss.has_happened
        assert (job.id, job.attempts) == (enqueued.id, 1)
        await broker.ack(job)


async def until_waiting(broker: Broker) -> None:
    async def waits() -> bool:
        return any(kind == "queue" for kind, _ in broker._engine.signals.topics)

    await until(waits)


async def test_a_claim_of_a_record_that_is_quarantined(broker: Broker, lose: Lose, corrupt: Corrupt) -> None:
    bad, good = await broker.enqueue("q", headers={"a": "b"}), await broker.enqueue("q")
    await corrupt(bad.id)
    loss = lose("quarantine")
    jobs = await broker.claim("q", limit=2)
    assert loss.has_happened
    assert ids(jobs) == [good.id]
    found = await record(broker, bad.id)
    assert (found.state, len(found.errors)) == (JobState.DEAD, 1)


@pytest.mark.parametrize("options", [{}, {"dedup_key": "k", "kv": {b"k": b"v"}}], ids=["plain", "keyed"])
async def test_an_enqueue_that_its_caller_repeats_after_the_job_has_run(
    url: str, direct_url: str, wire: Proxy, lose: Lose, options: dict[str, Any]
) -> None:
    """The reply stays lost until the timeout, so the caller gets an error and repeats the call itself."""
    job = NewJob("q", id=str(UUID(int=7)), **options)
    caller = Broker(with_options(url, timeout="3"), config=FORGETFUL)
    async with caller, Broker(direct_url, config=FORGETFUL) as worker:
        loss = lose("insert_reserving")
        enqueuing = asyncio.create_task(caller.enqueue_many([job]))
        await loss.happens()
        wire.refuse()
        with pytest.raises(EngineUnavailable):
            await enqueuing
        await worker.ack(await claim_one(worker))
        await wire.accept()
        [again] = await caller.enqueue_many([job])
        assert (again.id, again.created) == (job.id, False)
        assert await worker.claim("q") == []
