"""Deduplication: which job holds a key, how long, and that no other job takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from dayjob import Broker, Job, JobState, NewJob
from dayjob.model.job import DedupUntil
from tests.support.arrange import KEEP_ALL, OpenBroker, claim_one, quiet, record
from tests.support.observe import every_job, everything
from tests.support.waiting import WatchedClock

WINDOWS: list[DedupUntil] = ["claimed", "settled"]

both_windows = pytest.mark.parametrize("until", WINDOWS)


async def holder(broker: Broker, key: str = "k", queue: str = "q") -> str | None:
    """Return the id of the job that holds the key, or None. Does not take the key."""
    probe = await broker.enqueue(queue, dedup_key=key, delay=10**6)
    if not probe.created:
        return probe.id
    assert (await broker.cancel(probe.id)).acted
    return None


@both_windows
async def test_a_waiting_job_holds_its_key(broker: Broker, clock: WatchedClock, until: DedupUntil) -> None:
    first = await broker.enqueue("q", b"first", dedup_key="k", dedup_until=until, delay=5)
    for window in WINDOWS:
        before = await everything(broker)
        again = await broker.enqueue("q", b"again", dedup_key="k", dedup_until=window, kv={b"k": b"v"})
        assert (again.id, again.created) == (first.id, False)
        [again] = await broker.enqueue_many(
            [NewJob("q", b"again", dedup_key="k", dedup_until=window, kv={b"k": b"v"})]
        )
        assert (again.id, again.created) == (first.id, False)
        assert await everything(broker) == before
        clock.advance(5)
        await broker.promote()
    assert await broker.kv_get(b"k") is None, "a hit writes no kv"
    assert (await record(broker, first.id)).payload == b"first"


async def test_until_claimed_the_claim_releases_the_key(broker: Broker) -> None:
    first = await broker.enqueue("q", dedup_key="k")
    await claim_one(broker)
    second = await broker.enqueue("q", dedup_key="k")
    assert second.created
    assert second.id != first.id
    assert await holder(broker) == second.id


async def test_until_settled_the_run_and_its_retries_hold_the_key(
    broker: Broker, clock: WatchedClock
) -> None:
    first = await broker.enqueue("q", dedup_key="k", dedup_until="settled", max_attempts=9)
    assert await broker.nack(await claim_one(broker), "again", delay=0) is JobState.PENDING
    assert await holder(broker) == first.id
    assert await broker.nack(await claim_one(broker), "again", delay=1) is JobState.SCHEDULED
    assert await holder(broker) == first.id
    clock.advance(1)
    await broker.promote()
    await broker.release(await claim_one(broker))
    assert await holder(broker) == first.id
    await broker.snooze(await claim_one(broker), 0)
    assert await holder(broker) == first.id
    await broker.promote()
    await claim_one(broker)
    clock.advance(30)
    await broker.reap()
    assert await holder(broker) == first.id
    claim = await claim_one(broker)
    assert await holder(broker) == first.id
    await broker.ack(claim)
    assert await holder(broker) is None


Ending = Callable[[Broker, Job], Awaitable[object]]

ENDINGS: dict[str, Ending] = {
    "ack": lambda broker, claim: broker.ack(claim),
    "dead_letter": lambda broker, claim: broker.dead_letter(claim, "x"),
    "last nack": lambda broker, claim: broker.nack(claim, "x"),
    "mark_cancelled": lambda broker, claim: broker.mark_cancelled(claim),
}


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
async def test_until_settled_the_end_of_the_job_releases_the_key(
    open_broker: OpenBroker, ending: Ending, kept: bool
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL if kept else None))
    first = await broker.enqueue("q", dedup_key="k", dedup_until="settled", max_attempts=1)
    claim = await claim_one(broker)
    assert await holder(broker) == first.id
    await ending(broker, claim)
    assert await holder(broker) is None


@both_windows
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
async def test_a_cancelled_job_releases_its_key(
    open_broker: OpenBroker, until: DedupUntil, kept: bool
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL if kept else None))
    for delay in (0, 60):
        enqueued = await broker.enqueue("q", dedup_key="k", dedup_until=until, delay=delay)
        assert (await broker.cancel(enqueued.id)).acted
        assert await holder(broker) is None


@both_windows
async def test_an_expired_job_releases_its_key(
    broker: Broker, clock: WatchedClock, until: DedupUntil
) -> None:
    await broker.enqueue("q", dedup_key="k", dedup_until=until, expires=10)
    clock.advance(10)
    await broker.promote()
    assert await holder(broker) is None


async def test_a_job_dead_by_its_expired_lease_releases_its_key(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue("q", dedup_key="k", dedup_until="settled", max_attempts=1)
    await claim_one(broker)
    clock.advance(30)
    await broker.reap()
    assert await holder(broker) is None


Return = Callable[[Broker, WatchedClock, Job], Awaitable[object]]


async def by_lease(broker: Broker, clock: WatchedClock, claim: Job) -> None:
    clock.advance(30)
    assert await broker.reap() == 1


async def by_requeue(broker: Broker, clock: WatchedClock, claim: Job) -> None:
    await broker.dead_letter(claim, "x")
    assert await broker.requeue(claim.id)


async def by_requeue_dead(broker: Broker, clock: WatchedClock, claim: Job) -> None:
    await broker.dead_letter(claim, "x")
    assert await broker.requeue_dead("q") == 1


RETURNS: dict[str, Return] = {
    "nack": lambda broker, clock, claim: broker.nack(claim, "again", delay=0),
    "nack with delay": lambda broker, clock, claim: broker.nack(claim, "again", delay=5),
    "release": lambda broker, clock, claim: broker.release(claim),
    "snooze": lambda broker, clock, claim: broker.snooze(claim, 5),
    "lease expired": by_lease,
    "requeue": by_requeue,
    "requeue_dead": by_requeue_dead,
}


@pytest.mark.parametrize("back", RETURNS.values(), ids=RETURNS)
async def test_a_key_released_by_a_claim_is_not_taken_again_by_that_job(
    broker: Broker, clock: WatchedClock, back: Return
) -> None:
    first = await broker.enqueue("q", dedup_key="k")
    await back(broker, clock, await claim_one(broker))
    assert await holder(broker) is None
    second = await broker.enqueue("q", dedup_key="k", delay=100)
    assert second.created
    assert await broker.reschedule(first.id, run_at=clock.time)
    await broker.ack(await claim_one(broker))
    assert await holder(broker) == second.id, (
        "the end of the first job does not release the key of the second"
    )


@pytest.mark.parametrize("back", ["requeue", "requeue_dead"])
async def test_a_requeued_job_does_not_take_back_a_key_held_until_settled(
    broker: Broker, clock: WatchedClock, back: str
) -> None:
    await broker.enqueue("q", dedup_key="k", dedup_until="settled")
    await RETURNS[back](broker, clock, await claim_one(broker))
    assert await holder(broker) is None
    again = await claim_one(broker)
    assert await holder(broker) is None
    second = await broker.enqueue("q", dedup_key="k", dedup_until="settled", delay=100)
    await broker.ack(again)
    assert await holder(broker) == second.id


async def test_a_key_belongs_to_its_queue(broker: Broker) -> None:
    first = await broker.enqueue("a", dedup_key="k")
    second = await broker.enqueue("b", dedup_key="k")
    assert first.created
    assert second.created
    await broker.claim("a")
    assert await holder(broker, queue="a") is None
    assert await holder(broker, queue="b") == second.id


async def test_of_several_jobs_with_one_key_in_a_batch_the_first_wins(broker: Broker) -> None:
    answers = await broker.enqueue_many(
        [
            NewJob("q", b"1", dedup_key="k", kv={b"1": b"1"}),
            NewJob("q", b"2", dedup_key="k", dedup_until="settled", kv={b"2": b"2"}),
            NewJob("q", b"3"),
            NewJob("q", b"4", dedup_key="other"),
            NewJob("r", b"5", dedup_key="k"),
            NewJob("q", b"6", dedup_key="k", delay=9),
        ]
    )
    assert [answer.created for answer in answers] == [True, False, True, True, True, False]
    assert answers[1].id == answers[5].id == answers[0].id
    assert sorted(job.payload for job in await every_job(broker)) == [b"1", b"3", b"4", b"5"]
    assert (await broker.kv_get(b"1"), await broker.kv_get(b"2")) == (b"1", None)


async def test_rescheduling_keeps_the_key(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q", dedup_key="k")
    assert await broker.reschedule(enqueued.id, run_at=clock.time + timedelta(seconds=60), priority=5)
    assert await holder(broker) == enqueued.id


@both_windows
async def test_of_concurrent_enqueues_with_one_key_one_wins(
    broker: Broker, open_broker: OpenBroker, until: DedupUntil
) -> None:
    brokers = [broker, await open_broker(), await open_broker()]
    answers = await asyncio.gather(
        *(brokers[n % 3].enqueue("q", dedup_key=f"k{n % 5}", dedup_until=until) for n in range(60)),
    )
    for n in range(5):
        same = answers[n::5]
        assert sum(answer.created for answer in same) == 1
        assert len({answer.id for answer in same}) == 1
    assert len(await every_job(broker)) == 5


async def test_the_record_has_the_key_and_its_window(broker: Broker) -> None:
    for until in WINDOWS:
        enqueued = await broker.enqueue("q", dedup_key=f"key {until}", dedup_until=until)
        job = await record(broker, enqueued.id)
        assert (job.dedup_key, job.dedup_until) == (f"key {until}", until)
