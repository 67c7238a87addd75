"""The fence: a claim that is no longer current changes nothing, however it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from dayjob import Broker, Job, JobState, LeaseLost, NewJob, Settlement
from dayjob.engines.base import Progress
from dayjob.model.durations import SECOND
from tests.support.arrange import KEEP_ALL, OpenBroker, claim_one, quiet, record, running
from tests.support.engines import EngineUnderTest
from tests.support.observe import everything, ids
from tests.support.waiting import WatchedClock

Stale = Callable[[Broker, WatchedClock], Awaitable[Job]]

FOLLOW_UP = NewJob("follow-up", b"must not be")

VERBS: dict[str, Callable[[Broker, Job], Awaitable[object]]] = {
    "ack": lambda broker, claim: broker.ack(claim, result=b"late", enqueue=[FOLLOW_UP], kv={b"late": b"1"}),
    "plain ack": lambda broker, claim: broker.ack(claim),
    "nack": lambda broker, claim: broker.nack(claim, "late", delay=0),
    "nack with delay": lambda broker, claim: broker.nack(claim, "late", delay=9),
    "dead_letter": lambda broker, claim: broker.dead_letter(claim, "late"),
    "release": lambda broker, claim: broker.release(claim),
    "snooze": lambda broker, claim: broker.snooze(claim, 9),
    "mark_cancelled": lambda broker, claim: broker.mark_cancelled(claim),
    "renew": lambda broker, claim: broker.renew(claim, 1000),
}

SETTLEMENTS: list[Callable[[Job], Settlement]] = [
    lambda claim: Settlement.ack(claim, result=b"late", enqueue=[FOLLOW_UP], kv={b"late": b"1"}),
    lambda claim: Settlement.ack(claim),
    lambda claim: Settlement.nack(claim, "late", delay=0),
    lambda claim: Settlement.nack(claim, "late", delay=9),
    lambda claim: Settlement.dead_letter(claim, "late"),
    lambda claim: Settlement.release(claim),
    lambda claim: Settlement.snooze(claim, 9),
    lambda claim: Settlement.mark_cancelled(claim),
]


async def first_claim(broker: Broker, max_attempts: int = 3) -> Job:
    return await running(broker, max_attempts=max_attempts, priority=1)


async def reaped(broker: Broker, clock: WatchedClock) -> Job:
    claim = await first_claim(broker)
    clock.advance(30)
    assert await broker.reap() == 1
    return claim


async def reaped_and_claimed_again(broker: Broker, clock: WatchedClock) -> Job:
    claim = await reaped(broker, clock)
    assert (await claim_one(broker)).id == claim.id
    return claim


async def reaped_claimed_and_settled_by_the_next(broker: Broker, clock: WatchedClock) -> Job:
    claim = await reaped(broker, clock)
    await broker.ack(await claim_one(broker), result=b"the real one")
    return claim


async def reaped_to_dead(broker: Broker, clock: WatchedClock) -> Job:
    claim = await first_claim(broker, max_attempts=1)
    clock.advance(30)
    assert await broker.reap() == 1
    return claim


async def requeued_after_dead(broker: Broker, clock: WatchedClock) -> Job:
    claim = await reaped_to_dead(broker, clock)
    assert await broker.requeue(claim.id)
    return claim


async def requeued_and_claimed_with_the_same_attempts(broker: Broker, clock: WatchedClock) -> Job:
    """The requeue reset the attempts, so only the key distinguishes the two claims."""
    claim = await requeued_after_dead(broker, clock)
    again = await claim_one(broker)
    assert (again.id, again.attempts) == (claim.id, claim.attempts)
    return claim


async def requeued_with_others_and_claimed(broker: Broker, clock: WatchedClock) -> Job:
    claim = await reaped_to_dead(broker, clock)
    assert await broker.requeue_dead("q") == 1
    assert (await claim_one(broker)).attempts == claim.attempts
    return claim


async def released(broker: Broker, clock: WatchedClock) -> Job:
    claim = await first_claim(broker)
    await broker.release(replace(claim))
    return claim


async def released_and_claimed_again(broker: Broker, clock: WatchedClock) -> Job:
    claim = await released(broker, clock)
    again = await claim_one(broker)
    assert (again.id, again.attempts) == (claim.id, claim.attempts)
    return claim


async def snoozed(broker: Broker, clock: WatchedClock) -> Job:
    claim = await first_claim(broker)
    await broker.snooze(replace(claim), 60)
    return claim


async def nacked(broker: Broker, clock: WatchedClock) -> Job:
    claim = await first_claim(broker)
    assert await broker.nack(replace(claim), "failed", delay=60) is JobState.SCHEDULED
    return claim


async def nacked_and_claimed_again(broker: Broker, clock: WatchedClock) -> Job:
    claim = await first_claim(broker)
    assert await broker.nack(replace(claim), "failed", delay=0) is JobState.PENDING
    assert (await claim_one(broker)).id == claim.id
    return claim


async def acked(broker: Broker, clock: WatchedClock) -> Job:
    claim = await first_claim(broker)
    await broker.ack(replace(claim), result=b"the real one")
    return claim


async def dead_lettered(broker: Broker, clock: WatchedClock) -> Job:
    claim = await first_claim(broker)
    await broker.dead_letter(replace(claim), "hopeless")
    return claim


async def marked_cancelled(broker: Broker, clock: WatchedClock) -> Job:
    claim = await first_claim(broker)
    await broker.mark_cancelled(replace(claim))
    return claim


async def purged(broker: Broker, clock: WatchedClock) -> Job:
    claim = await reaped_to_dead(broker, clock)
    assert await broker.purge_dead("q") == 1
    return claim


async def enqueue_again(broker: Broker, claim: Job, queue: str = "q") -> None:
    """Let the job of a claim leave the storage, and enqueue a new job with its id."""
    await broker.dead_letter(replace(claim), "hopeless")
    assert await broker.purge_dead("q") == 1
    assert (await broker.enqueue(queue, id=claim.id, priority=1)).created


async def id_enqueued_again(broker: Broker, clock: WatchedClock) -> Job:
    claim = await first_claim(broker)
    await enqueue_again(broker, claim)
    return claim


async def id_enqueued_and_claimed_at_the_same_time(broker: Broker, clock: WatchedClock) -> Job:
    """Attempts, epoch and lease of both claims are equal."""
    claim = await id_enqueued_again(broker, clock)
    assert (await claim_one(broker)).epoch == claim.epoch
    return claim


async def id_enqueued_and_claimed_later(broker: Broker, clock: WatchedClock) -> Job:
    claim = await id_enqueued_again(broker, clock)
    clock.advance(1e-6)
    assert (await claim_one(broker)).epoch > claim.epoch
    return claim


async def id_enqueued_and_claimed_after_the_clock_was_set_back(broker: Broker, clock: WatchedClock) -> Job:
    claim = await id_enqueued_again(broker, clock)
    clock.set(clock.time - timedelta(days=1))
    assert (await broker.claim("q"))[0].id == claim.id
    return claim


async def id_enqueued_and_claimed_on_another_queue(broker: Broker, clock: WatchedClock) -> Job:
    claim = await first_claim(broker)
    await enqueue_again(broker, claim, "elsewhere")
    assert (await claim_one(broker, "elsewhere")).id == claim.id
    return claim


async def id_of_a_reaped_job_enqueued_and_claimed(broker: Broker, clock: WatchedClock) -> Job:
    claim = await reaped(broker, clock)
    await enqueue_again(broker, await claim_one(broker))
    assert (await claim_one(broker)).id == claim.id
    return claim


async def never_claimed(broker: Broker, clock: WatchedClock) -> Job:
    return await record(broker, (await broker.enqueue("q", priority=1)).id)


async def never_claimed_but_running_by_now(broker: Broker, clock: WatchedClock) -> Job:
    job = await never_claimed(broker, clock)
    await claim_one(broker)
    return job


async def unknown_id(broker: Broker, clock: WatchedClock) -> Job:
    return replace(await first_claim(broker), key=bytes(range(16)))


REUSED: list[Stale] = [
    id_enqueued_and_claimed_at_the_same_time, id_enqueued_and_claimed_later,
    id_enqueued_and_claimed_after_the_clock_was_set_back, id_enqueued_and_claimed_on_another_queue,
    id_of_a_reaped_job_enqueued_and_claimed,
]  # fmt: skip
"""The job of the claim has left, and a new job with its id is running."""

STALE: list[Stale] = [
    reaped, reaped_and_claimed_again, reaped_claimed_and_settled_by_the_next, reaped_to_dead,
    requeued_after_dead, requeued_and_claimed_with_the_same_attempts, requeued_with_others_and_claimed,
    released, released_and_claimed_again, snoozed, nacked, nacked_and_claimed_again, acked, dead_lettered,
    marked_cancelled, purged, id_enqueued_again, never_claimed, never_claimed_but_running_by_now, unknown_id,
    *REUSED,
]  # fmt: skip

every_way_to_be_stale = pytest.mark.parametrize("stale", STALE, ids=lambda stale: stale.__name__)


@every_way_to_be_stale
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
async def test_a_stale_claim_settles_and_renews_nothing(
    open_broker: OpenBroker, clock: WatchedClock, stale: Stale, kept: bool
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL if kept else None))
    claim = await stale(broker, clock)
    lease = claim.lease_expires_at
    before = await everything(broker)
    for name, verb in VERBS.items():
        with pytest.raises(LeaseLost, match=claim.id):
            await verb(broker, replace(claim))
        assert await everything(broker) == before, f"{name} changed something"
    await broker.record_progress([Progress(claim.key, claim.claim, 0.5, "late")])
    assert await everything(broker) == before, "the progress was stored"
    assert await broker.kv_get(b"late") is None
    assert claim.lease_expires_at == lease


@every_way_to_be_stale
async def test_in_a_batch_a_stale_claim_is_reported_lost_while_its_neighbours_apply(
    open_broker: OpenBroker, clock: WatchedClock, stale: Stale
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    claim = await stale(broker, clock)
    before = await everything(broker)
    for late in SETTLEMENTS:
        await broker.enqueue_many([NewJob("live"), NewJob("live")])
        first, last = await broker.claim("live", limit=2)
        results = await broker.settle_many(
            [
                Settlement.ack(first, kv={b"first": b"1"}),
                late(replace(claim)),
                Settlement.dead_letter(last, "x"),
            ]
        )
        assert [result.id for result in results] == [first.id, claim.id, last.id]
        assert [result.applied for result in results] == [True, False, True]
        assert [result.lost for result in results] == [False, True, False]
        assert [result.state for result in results] == [JobState.DONE, None, JobState.DEAD]
    after = await everything(broker)
    assert [job for job in after["jobs"] if job["queue"] != "live"] == before["jobs"]
    assert await broker.kv_get(b"late") is None
    assert await broker.kv_get(b"first") == b"1"
    assert "follow-up" not in after["queues"]


async def test_of_two_settlements_of_one_claim_in_a_batch_the_first_applies(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    claim = await running(broker)
    results = await broker.settle_many(
        [
            Settlement.nack(replace(claim), "first", delay=0),
            Settlement.ack(replace(claim), kv={b"late": b"1"}),
            Settlement.release(replace(claim)),
        ]
    )
    assert [result.applied for result in results] == [True, False, False]
    job = await record(broker, claim.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 1, "first")
    assert await broker.kv_get(b"late") is None


async def test_a_claim_is_acked_once_in_a_batch_of_plain_acks(broker: Broker) -> None:
    claim = await running(broker)
    results = await broker.settle_many([Settlement.ack(replace(claim)), Settlement.ack(replace(claim))])
    assert [result.applied for result in results] == [True, False]
    stats = await broker.stats(claim.queue)
    assert (stats.running, stats.done) == (0, 1)


async def check_fence(broker: Broker, clock: WatchedClock, stale: Job, current: Job) -> None:
    """Check that the stale claim is refused, and that the current one renews, reports and settles."""
    for verb in VERBS.values():
        with pytest.raises(LeaseLost):
            await verb(broker, replace(stale))
    await broker.renew(current, 60)
    assert (await record(broker, current.id)).lease_expires_at == clock.time + timedelta(seconds=60)
    await broker.record_progress([Progress(current.key, current.claim, 0.5, "half")])
    assert (await record(broker, current.id)).progress == (0.5, "half")
    await broker.ack(current)
    assert (await broker.stats(current.queue)).done == 1


@pytest.mark.parametrize("stale", [reaped_and_claimed_again, *REUSED], ids=lambda stale: stale.__name__)
async def test_the_current_claim_is_unharmed_by_the_stale_one(
    broker: Broker, clock: WatchedClock, stale: Stale
) -> None:
    claim = await stale(broker, clock)
    await check_fence(broker, clock, claim, await record(broker, claim.id))


@pytest.mark.parametrize("later", [0, 1], ids=["at the same time", "later"])
async def test_a_claim_that_a_restart_lost_is_refused_after_the_next_claim(
    engine: EngineUnderTest, open_broker: OpenBroker, clock: WatchedClock, tmp_path: Path, later: int
) -> None:
    """A failover or a restart may lose the last commits. Two claims of a job then start from one state."""
    broker = await open_broker()
    if not broker.capabilities.persistent:
        pytest.skip("the engine is not persistent")
    enqueued = await broker.enqueue("q")
    await broker.close()
    assert engine.snapshot is not None
    restore = engine.snapshot(tmp_path)
    broker = await open_broker()
    lost = await claim_one(broker)
    await broker.close()
    restore()
    clock.advance(later)
    broker = await open_broker()
    current = await claim_one(broker)
    assert current.id == lost.id == enqueued.id
    assert current.epoch == lost.epoch + later * SECOND
    await check_fence(broker, clock, lost, current)


async def test_a_stale_renewal_leaves_the_lease_field_unchanged(broker: Broker, clock: WatchedClock) -> None:
    stale = await reaped(broker, clock)
    before = stale.lease_expires_at
    with pytest.raises(LeaseLost):
        await broker.renew(stale, 1000)
    assert stale.lease_expires_at == before


async def test_a_claim_may_be_settled_through_another_broker(broker: Broker, open_broker: OpenBroker) -> None:
    other = await open_broker()
    await broker.enqueue_many([NewJob("q"), NewJob("q")])
    first, second = await broker.claim("q", limit=2)
    await other.renew(first, 60)
    await other.ack(first)
    [result] = await other.settle_many([Settlement.release(second)])
    assert result.applied
    with pytest.raises(LeaseLost):
        await broker.ack(first)
    assert ids(await broker.claim("q", limit=5)) == [second.id]
