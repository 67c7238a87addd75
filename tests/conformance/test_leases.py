"""Leases: renewal, and the fate of a job whose worker vanished."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from dayjob import Broker, JobState, NewJob, QueueConfig
from tests.support.arrange import OpenBroker, claim_one, quiet, record, running, state
from tests.support.observe import everything, fields
from tests.support.waiting import WatchedClock


async def test_renew_sets_the_lease_from_now(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    clock.advance(20)
    for lease, seconds in ((100, 100.0), (timedelta(minutes=3), 180.0), (5, 5.0)):
        await broker.renew(claim, lease)
        assert claim.lease_expires_at == clock.time + timedelta(seconds=seconds)
        stored = await record(broker, claim.id)
        assert stored.lease_expires_at == claim.lease_expires_at
        assert (stored.attempts, stored.epoch, stored.state) == (1, claim.epoch, JobState.RUNNING)


async def test_renew_without_a_lease_uses_the_lease_of_the_queue(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(queues={"slow": QueueConfig(lease=600)}))
    for queue, lease in (("q", 30), ("slow", 600)):
        claim = await running(broker, queue)
        clock.advance(10)
        await broker.renew(claim)
        assert claim.lease_expires_at == clock.time + timedelta(seconds=lease)


async def test_renew_keeps_and_returns_a_cancel_request(broker: Broker) -> None:
    claim = await running(broker)
    await broker.cancel(claim.id)
    await broker.renew(claim)
    assert claim.cancel_requested
    assert claim.cancel_token.cancelled
    assert (await record(broker, claim.id)).cancel_requested


async def test_renew_many_renews_current_claims_and_reports_lost_ones(
    broker: Broker, clock: WatchedClock
) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(4)])
    first, lost, flagged, last = claims = await broker.claim("q", limit=4)
    await broker.release(replace(lost))
    await broker.cancel(flagged.id)
    clock.advance(10)
    answers = await broker.renew_many(claims, 60)
    until = clock.time + timedelta(seconds=60)
    assert [answer.lease_us is None for answer in answers] == [False, True, False, False]
    assert [answer.cancel_requested for answer in answers] == [False, False, True, False]
    for claim in (first, flagged, last):
        assert (await record(broker, claim.id)).lease_expires_at == until
    assert await state(broker, lost.id) is JobState.PENDING
    assert await broker.renew_many([]) == []


async def test_a_live_lease_is_not_reaped(broker: Broker, clock: WatchedClock) -> None:
    await running(broker)
    clock.advance(timedelta(seconds=30, microseconds=-1))
    before = await everything(broker)
    assert await broker.reap() == 0
    assert await everything(broker) == before


async def test_a_renewed_lease_is_not_reaped_at_its_old_end(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    clock.advance(10)
    await broker.renew(claim, 60)
    clock.advance(59)
    assert await broker.reap() == 0
    clock.advance(1)
    assert await broker.reap() == 1


async def test_a_shortened_lease_is_reaped_at_its_new_end(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    await broker.renew(claim, 2)
    clock.advance(2)
    assert await broker.reap() == 1
    assert await state(broker, claim.id) is JobState.PENDING


async def test_an_expired_lease_with_attempts_left_is_pending_at_once(
    broker: Broker, clock: WatchedClock
) -> None:
    claim = await running(broker)
    enqueued_at = clock.time
    clock.advance(30)
    assert await broker.reap() == 1
    job = await record(broker, claim.id)
    expected = {
        "state": JobState.PENDING,
        "attempts": 1,
        "epoch": claim.epoch,
        "run_at": enqueued_at,
        "last_error": "lease expired",
        "claimed_at": None,
        "lease_expires_at": None,
        "worker": None,
        "finished_at": None,
    }
    assert fields(job, tuple(expected)) == expected
    [failure] = job.errors
    assert (failure.attempt, failure.time, failure.worker) == (1, clock.time, "w")
    assert failure.message == "lease expired"
    claim = await claim_one(broker)
    assert (claim.attempts, claim.epoch) == (2, clock.now())


async def test_an_expired_lease_without_attempts_left_is_dead(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker, max_attempts=1)
    clock.advance(31)
    assert await broker.reap() == 1
    job = await record(broker, claim.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "lease expired")
    assert (job.finished_at, job.lease_expires_at, job.worker) == (clock.time, None, "w")
    assert [failure.message for failure in job.errors] == ["lease expired"]


async def test_a_job_that_kills_its_worker_ends_dead(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q", max_attempts=3)
    for attempt in (1, 2, 3):
        assert (await claim_one(broker)).attempts == attempt
        clock.advance(30)
        assert await broker.reap() == 1
    assert await broker.claim("q") == []
    assert await state(broker, enqueued.id) is JobState.DEAD


async def test_an_expired_lease_that_was_not_reaped_may_settle(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(6)])
    acked, nacked, lettered, released, snoozed, marked = await broker.claim("q", limit=6)
    clock.advance(1000)
    await broker.ack(acked)
    assert await broker.nack(nacked, "late") is JobState.SCHEDULED
    await broker.dead_letter(lettered, "late")
    await broker.release(released)
    await broker.snooze(snoozed, 5)
    await broker.mark_cancelled(marked)
    assert await broker.reap() == 0


async def test_an_expired_lease_that_was_not_reaped_may_renew(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    clock.advance(1000)
    await broker.renew(claim, 10)
    assert await broker.reap() == 0
    await broker.ack(claim)


async def test_reaping_keeps_a_cancel_request(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    await broker.cancel(claim.id)
    clock.advance(30)
    assert await broker.reap() == 1
    assert (await record(broker, claim.id)).cancel_requested
    again = await claim_one(broker)
    assert again.cancel_requested
    assert again.cancel_token.cancelled
    assert await broker.nack(again, "stopped") is JobState.CANCELLED


async def test_reap_ends_all_expired_leases_and_no_others(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue_many([NewJob(f"q{number % 3}") for number in range(30)])
    short = await broker.claim(["q0", "q1"], limit=15, lease=10)
    live = await broker.claim(["q1", "q2"], limit=15, lease=20)
    clock.advance(10)
    assert await broker.reap() == len(short) == 15
    assert await broker.reap() == 0
    for claim in live:
        await broker.renew(claim)
    for queue in ("q0", "q1"):
        assert all(job.last_error == "lease expired" for job in await broker.jobs(queue, JobState.PENDING))


async def test_jobs_settled_in_time_are_not_reaped(broker: Broker, clock: WatchedClock) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(3)])
    acked, nacked, released = await broker.claim("q", limit=3)
    await broker.ack(acked)
    await broker.nack(nacked, "no", delay=0)
    await broker.release(released)
    clock.advance(1000)
    assert await broker.reap() == 0
