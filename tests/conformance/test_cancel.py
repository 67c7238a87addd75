"""Cancel: the effect in each state, and how a running claim is notified."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from dayjob import Broker, CancelOutcome, InvalidState, Job, JobState, LeaseLost, NewJob
from dayjob.duties.duties import MAX_BATCH
from tests.support.arrange import (
    KEEP_ALL,
    OpenBroker,
    cancelled,
    claim_one,
    dead,
    done,
    quiet,
    record,
    running,
    state,
)
from tests.support.observe import every_job, everything
from tests.support.waiting import WatchedClock, with_timeout


@pytest.mark.parametrize("delay", [0, 60], ids=["pending", "scheduled"])
async def test_cancelling_a_waiting_job_removes_it(broker: Broker, delay: int) -> None:
    enqueued = await broker.enqueue("q", delay=delay)
    outcome = await broker.cancel(enqueued.id)
    assert outcome is CancelOutcome.REMOVED
    assert outcome.acted
    assert await every_job(broker) == []
    assert await broker.claim("q") == []
    assert (await broker.stats("q")).cancelled == 0


@pytest.mark.parametrize("delay", [0, 60], ids=["pending", "scheduled"])
async def test_with_retention_a_cancelled_waiting_job_is_kept(
    open_broker: OpenBroker, clock: WatchedClock, delay: int
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    enqueued = await broker.enqueue("q", delay=delay)
    clock.advance(2)
    assert await broker.cancel(enqueued.id) is CancelOutcome.REMOVED
    job = await record(broker, enqueued.id)
    assert (job.state, job.finished_at, job.attempts) == (JobState.CANCELLED, clock.time, 0)
    clock.advance(60)
    assert await broker.promote() == 0
    assert await broker.claim("q") == []


async def test_cancelling_a_job_that_waits_for_its_retry_removes_it(broker: Broker) -> None:
    claim = await running(broker)
    await broker.nack(claim, "again", delay=9)
    assert await broker.cancel(claim.id) is CancelOutcome.REMOVED
    assert await broker.get(claim.id) is None


async def test_cancelling_a_running_job_stores_a_request(broker: Broker) -> None:
    claim = await running(broker)
    token = claim.cancel_token
    assert not token.cancelled
    outcome = await broker.cancel(claim.id)
    assert outcome is CancelOutcome.REQUESTED
    assert outcome.acted
    job = await record(broker, claim.id)
    assert (job.state, job.cancel_requested) == (JobState.RUNNING, True)
    await with_timeout(token.wait())
    assert token.cancelled
    assert await broker.cancel(claim.id) is CancelOutcome.REQUESTED


async def test_a_finished_or_unknown_job_is_not_found(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    known = [await done(broker), await dead(broker), await cancelled(broker)]
    before = await everything(broker)
    for id in [*known, "00000000-0000-0000-0000-000000000001"]:
        outcome = await broker.cancel(id)
        assert outcome is CancelOutcome.NOT_FOUND
        assert not outcome.acted
    assert await everything(broker) == before


@pytest.mark.parametrize("id", ["", "nonsense", "123", "0" * 31, "☃", "a\0b", "\ud800"])
async def test_a_malformed_id_is_not_found(broker: Broker, id: str) -> None:
    await broker.enqueue("q")
    assert await broker.cancel(id) is CancelOutcome.NOT_FOUND


async def test_an_id_in_any_spelling_is_accepted(broker: Broker) -> None:
    enqueued = await broker.enqueue("q")
    assert await broker.cancel(enqueued.id.upper().replace("-", "")) is CancelOutcome.REMOVED


# Cancel tokens.


async def test_the_token_of_a_claim_of_this_broker_has_fired_when_cancel_returns(broker: Broker) -> None:
    for _ in range(5):
        claim = await running(broker)
        token = claim.cancel_token
        await broker.cancel(claim.id)
        assert token.cancelled
        await broker.ack(claim)


async def test_a_cancel_does_not_fire_the_token_of_an_older_claim(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    """The broker holds a claim that it has lost, of the job that another broker runs."""
    old = await running(broker)
    token = old.cancel_token
    clock.advance(30)
    other = await open_broker()
    assert await other.reap() == 1
    current = await claim_one(other)
    assert await broker.cancel(old.id) is CancelOutcome.REQUESTED
    await with_timeout(current.cancel_token.wait())
    assert not token.cancelled


async def test_a_cancel_through_another_broker_fires_the_token(
    broker: Broker, open_broker: OpenBroker
) -> None:
    """Twice: the first may be found when the broker begins to listen, the second needs a notification."""
    other = await open_broker()
    for _ in range(2):
        claim = await running(broker)
        waiting = asyncio.create_task(claim.cancel_token.wait())
        assert await other.cancel(claim.id) is CancelOutcome.REQUESTED
        await with_timeout(waiting)
        assert claim.cancel_token.cancelled
        await broker.ack(claim)


async def test_a_token_first_read_after_the_cancel_has_fired(broker: Broker) -> None:
    claim = await running(broker)
    await broker.cancel(claim.id)
    await with_timeout(claim.cancel_token.wait())


async def test_only_the_token_of_the_cancelled_job_fires(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(3)])
    first, second, third = await broker.claim("q", limit=3)
    tokens = [job.cancel_token for job in (first, second, third)]
    await broker.cancel(second.id)
    await with_timeout(tokens[1].wait())
    assert [token.cancelled for token in tokens] == [False, True, False]


async def test_the_token_of_a_lost_claim_does_not_cancel_the_next(
    broker: Broker, clock: WatchedClock
) -> None:
    lost = await running(broker)
    clock.advance(30)
    await broker.reap()
    current = await claim_one(broker)
    assert not current.cancel_token.cancelled
    await broker.cancel(current.id)
    await with_timeout(current.cancel_token.wait())
    with pytest.raises(LeaseLost):
        await broker.mark_cancelled(lost)


async def test_a_cancel_of_the_current_claim_does_not_fire_the_token_of_a_lost_claim(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    other = await open_broker()
    lost = await running(broker)
    clock.advance(30)
    await broker.reap()
    current = await claim_one(other)
    await broker.cancel(current.id)
    await with_timeout(current.cancel_token.wait())
    await broker.check_cancels()
    assert not lost.cancel_token.cancelled


@pytest.mark.parametrize("holder", ["the same broker", "another broker"])
async def test_a_cancel_of_a_new_job_with_the_id_does_not_fire_the_earlier_token(
    broker: Broker, open_broker: OpenBroker, holder: str
) -> None:
    """Both claims were made at the same time, so that only their keys differ."""
    other = broker if holder == "the same broker" else await open_broker()
    earlier = await running(broker)
    await (await open_broker()).ack(replace(earlier))  # Its own broker still holds the claim.
    assert (await other.enqueue("q", id=earlier.id)).created
    current = await claim_one(other)
    assert await broker.cancel(current.id) is CancelOutcome.REQUESTED
    await with_timeout(current.cancel_token.wait())
    await broker.check_cancels()
    assert not earlier.cancel_token.cancelled


@pytest.mark.parametrize("holder", ["the same broker", "another broker"])
async def test_a_cancel_of_an_earlier_job_with_the_id_does_not_fire_the_token_of_the_new_one(
    broker: Broker, open_broker: OpenBroker, holder: str
) -> None:
    other = broker if holder == "the same broker" else await open_broker()
    earlier = await running(broker)
    await broker.cancel(earlier.id)
    await with_timeout(earlier.cancel_token.wait())
    await broker.ack(earlier)
    assert (await other.enqueue("q", id=earlier.id)).created
    current = await claim_one(other)
    await broker.check_cancels()
    await other.check_cancels()
    assert not current.cancel_requested
    assert not current.cancel_token.cancelled
    assert not (await record(broker, current.id)).cancel_requested


async def test_a_cancel_request_survives_renewals_and_a_lost_lease(
    broker: Broker, clock: WatchedClock
) -> None:
    claim = await running(broker)
    await broker.cancel(claim.id)
    await broker.renew(claim)
    clock.advance(30)
    assert await broker.reap() == 1
    claim = await claim_one(broker)
    assert claim.cancel_token.cancelled
    await with_timeout(claim.cancel_token.wait())
    await broker.renew(claim)
    assert (await record(broker, claim.id)).cancel_requested


async def test_the_end_of_a_run_clears_its_cancel_request(broker: Broker) -> None:
    claim = await running(broker)
    await broker.cancel(claim.id)
    await broker.dead_letter(claim, "x")
    assert await broker.requeue(claim.id)
    claim = await claim_one(broker)
    assert not claim.cancel_requested
    assert not claim.cancel_token.cancelled


async def test_a_record_without_a_claim_has_no_token(broker: Broker) -> None:
    claim = await running(broker)
    stored: Job = await record(broker, claim.id)
    with pytest.raises(InvalidState, match="claim"):
        _ = stored.cancel_token


@pytest.mark.parametrize("round", range(5))
async def test_a_cancel_racing_with_a_claim_removes_the_job_or_reaches_the_claim(
    broker: Broker, round: int
) -> None:
    """Whichever commits first, the cancel is never lost."""
    enqueued = await broker.enqueue("q")
    claimed, outcome = await asyncio.gather(broker.claim("q"), broker.cancel(enqueued.id))
    if outcome is CancelOutcome.REMOVED:
        assert claimed == []
        assert await state(broker, enqueued.id) is None
    else:
        assert outcome is CancelOutcome.REQUESTED
        await with_timeout(claimed[0].cancel_token.wait())


async def test_many_jobs_are_cancelled_in_several_commits(broker: Broker) -> None:
    claimed = await running(broker)
    waiting = [each.id for each in await broker.enqueue_many([NewJob("q")] * (MAX_BATCH + 10))]
    outcomes = await broker.cancel_many([waiting[0], claimed.id, "unknown", *waiting])
    removed, requested, not_found = CancelOutcome.REMOVED, CancelOutcome.REQUESTED, CancelOutcome.NOT_FOUND
    assert outcomes == [removed, requested, not_found, *[removed] * len(waiting)]
    assert (await broker.stats("q")).pending == 0
    assert await broker.cancel_many(waiting[:2]) == [not_found] * 2
    assert await broker.cancel_many([]) == []
