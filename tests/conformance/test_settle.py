"""Settling: every row of the lifecycle that starts at running, with all its fields."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dayjob import (
    Broker,
    JobState,
    NewJob,
    PayloadTooLarge,
    QueueConfig,
    Retention,
    Retry,
    Settlement,
)
from tests.support.arrange import KEEP_ALL, OpenBroker, claim_one, quiet, record, running, state
from tests.support.observe import every_job, everything, fields
from tests.support.waiting import WatchedClock

BACK = {"claimed_at": None, "lease_expires_at": None, "worker": None, "finished_at": None}
"""The fields that are cleared when a job returns to its queue."""


@pytest.fixture
async def keeper(open_broker: OpenBroker) -> Broker:
    """A broker that keeps every finished job for a day."""
    return await open_broker(quiet(retention=KEEP_ALL))


# Ack.


async def test_an_acked_job_that_is_not_kept_is_removed_and_counted(broker: Broker) -> None:
    claim = await running(broker)
    await broker.ack(claim, result=b"not kept either")
    assert await broker.get(claim.id) is None
    assert await every_job(broker) == []
    assert (await broker.stats("q")).done == 1


async def test_an_acked_job_is_kept_with_its_result(keeper: Broker, clock: WatchedClock) -> None:
    claim = await running(keeper)
    claimed_at = clock.time
    clock.advance(3)
    await keeper.ack(claim, result=b"42")
    job = await record(keeper, claim.id)
    assert (job.state, job.result, job.attempts, job.epoch) == (JobState.DONE, b"42", 1, claim.epoch)
    assert (job.finished_at, job.claimed_at, job.worker) == (clock.time, claimed_at, "w")
    assert (job.lease_expires_at, job.last_error, job.errors) == (None, None, ())


async def test_an_ack_without_a_result_keeps_none(keeper: Broker) -> None:
    claim = await running(keeper)
    await keeper.ack(claim)
    assert (await record(keeper, claim.id)).result is None
    claim = await running(keeper)
    await keeper.ack(claim, result=b"")
    assert (await record(keeper, claim.id)).result == b""


async def test_a_success_keeps_earlier_errors(keeper: Broker) -> None:
    claim = await running(keeper)
    await keeper.nack(claim, "first try", delay=0)
    await keeper.ack(await claim_one(keeper))
    job = await record(keeper, claim.id)
    assert (job.state, job.last_error) == (JobState.DONE, "first try")
    assert [failure.message for failure in job.errors] == ["first try"]


async def test_an_ack_wins_over_a_cancel_request(keeper: Broker) -> None:
    claim = await running(keeper)
    await keeper.cancel(claim.id)
    await keeper.ack(claim)
    assert await state(keeper, claim.id) is JobState.DONE


async def test_follow_ups_and_kv_commit_with_the_ack(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    clock.advance(2)
    await broker.ack(
        claim,
        enqueue=[NewJob("next", b"1", delay=5), NewJob("next", b"2", kv={b"from": b"job"}), NewJob("q")],
        kv={b"seen": b"yes"},
    )
    delayed, pending, own = await every_job(broker)
    assert (delayed.state, delayed.run_at) == (JobState.SCHEDULED, clock.time + timedelta(seconds=5))
    assert (pending.payload, pending.state, own.queue) == (b"2", JobState.PENDING, "q")
    assert (await broker.kv_get(b"seen"), await broker.kv_get(b"from")) == (b"yes", b"job")


async def test_a_follow_up_that_exists_does_not_stop_the_ack(broker: Broker) -> None:
    first = await broker.enqueue("next", dedup_key="once", priority=5)
    claim = await running(broker)
    await broker.ack(
        claim, enqueue=[NewJob("next", dedup_key="once", kv={b"k": b"v"}), NewJob("other", id=first.id)]
    )
    assert [job.id for job in await every_job(broker)] == [first.id]
    assert await broker.kv_get(b"k") is None
    assert (await broker.stats("q")).done == 1


async def test_a_bad_follow_up_settles_nothing(broker: Broker) -> None:
    claim = await running(broker)
    before = await everything(broker)
    with pytest.raises(ValueError, match="queue"):
        await broker.ack(claim, enqueue=[NewJob("fine"), NewJob("")], kv={b"k": b"v"})
    with pytest.raises(PayloadTooLarge):
        await broker.ack(claim, result=b"x" * (2**20 + 1), enqueue=[NewJob("fine")])
    with pytest.raises(TypeError):
        await broker.ack(claim, result="text")  # type: ignore[arg-type]
    assert await everything(broker) == before
    assert await broker.kv_get(b"k") is None
    await broker.ack(claim)


# Nack.


async def test_a_nack_with_a_delay_is_scheduled(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    clock.advance(1)
    assert await broker.nack(claim, "boom", delay=20) is JobState.SCHEDULED
    job = await record(broker, claim.id)
    epoch = claim.epoch
    expected = {"state": JobState.SCHEDULED, "attempts": 1, "epoch": epoch, "last_error": "boom", **BACK}
    assert fields(job, tuple(expected)) == expected
    assert job.run_at == clock.time + timedelta(seconds=20)
    [failure] = job.errors
    assert (failure.attempt, failure.time, failure.worker, failure.message) == (1, clock.time, "w", "boom")


async def test_a_nack_without_delay_is_pending(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker)
    clock.advance(1)
    assert await broker.nack(claim, "boom", delay=0) is JobState.PENDING
    job = await record(broker, claim.id)
    expected = {"state": JobState.PENDING, "attempts": 1, "run_at": clock.time, "last_error": "boom", **BACK}
    assert fields(job, tuple(expected)) == expected
    assert (await claim_one(broker)).attempts == 2


async def test_the_last_nack_is_dead(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker, max_attempts=2)
    await broker.nack(claim, "first", delay=0)
    claim = await claim_one(broker)
    clock.advance(4)
    assert await broker.nack(claim, "second", delay=60) is JobState.DEAD
    job = await record(broker, claim.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 2, "second")
    assert (job.finished_at, job.lease_expires_at, job.worker) == (clock.time, None, "w")
    assert job.claimed_at == clock.time - timedelta(seconds=4)
    assert [(failure.attempt, failure.message) for failure in job.errors] == [(1, "first"), (2, "second")]


async def test_a_nack_can_raise_or_lower_the_attempts_of_its_job(broker: Broker) -> None:
    """The worker sets them: a caller that enqueues by name does not have the task's retry policy."""
    claim = await running(broker, max_attempts=1)
    [result] = await broker.settle_many([replace(Settlement.nack(claim, "x", delay=0), max_attempts=3)])
    assert result.state is JobState.PENDING
    assert (await record(broker, claim.id)).max_attempts == 3
    claim = await claim_one(broker)
    assert (claim.attempts, claim.max_attempts) == (2, 3)
    assert await broker.nack(claim, "y", delay=0) is JobState.PENDING
    claim = await claim_one(broker)
    [result] = await broker.settle_many([replace(Settlement.nack(claim, "z", delay=0), max_attempts=2)])
    assert result.state is JobState.DEAD
    job = await record(broker, claim.id)
    assert (job.state, job.attempts, job.max_attempts) == (JobState.DEAD, 3, 2)


async def test_a_nack_with_invalid_attempts_is_refused(broker: Broker) -> None:
    claim = await running(broker)
    with pytest.raises(ValueError, match="max_attempts"):
        await broker.settle_many([replace(Settlement.nack(claim, "x"), max_attempts=0)])
    await broker.ack(claim)


async def test_the_delay_of_a_nack_is_the_queues_backoff(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(
        quiet(
            default=QueueConfig(max_attempts=9),
            queues={
                "fixed": QueueConfig(retry=Retry.fixed(attempts=9, delay=7)),
                "own": QueueConfig(retry=lambda attempt, exc: attempt * 10.0, max_attempts=9),
            },
        )
    )
    for queue, delays in (("q", [1, 2, 4, 8]), ("fixed", [7, 7, 7]), ("own", [10, 20, 30])):
        await broker.enqueue(queue)
        for delay in delays:
            claim = await claim_one(broker, queue)
            assert await broker.nack(claim, RuntimeError("x")) is JobState.SCHEDULED
            assert (await record(broker, claim.id)).run_at == clock.time + timedelta(seconds=delay)
            clock.advance(delay)
            assert await broker.promote() == 1


async def test_a_policy_that_gives_up_is_dead_at_once(open_broker: OpenBroker) -> None:
    broker = await open_broker(
        quiet(
            queues={
                "keys": QueueConfig(retry=Retry.exponential(give_up_on=(KeyError,))),
                "own": QueueConfig(retry=lambda attempt, exc: None),
            }
        )
    )
    assert await broker.nack(await running(broker, "keys"), KeyError("x")) is JobState.DEAD
    assert await broker.nack(await running(broker, "keys"), OSError("x")) is JobState.SCHEDULED
    assert await broker.nack(await running(broker, "own"), "text") is JobState.DEAD


async def test_the_last_ten_errors_are_kept(broker: Broker) -> None:
    await broker.enqueue("q", max_attempts=50)
    for attempt in range(1, 14):
        claim = await claim_one(broker, worker=f"w{attempt}")
        await broker.nack(claim, f"error {attempt}", delay=0)
    [job] = await every_job(broker)
    errors = job.errors
    assert [(one.attempt, one.worker, one.message) for one in errors] == [
        (attempt, f"w{attempt}", f"error {attempt}") for attempt in range(4, 14)
    ]


@pytest.mark.parametrize("verb", ["nack", "dead_letter"])
async def test_an_error_is_text_or_an_exception(broker: Broker, verb: str) -> None:
    for error, text in (("plain text", "plain text"), (ValueError("bad value"), "bad value")):
        claim = await running(broker, max_attempts=1)
        await getattr(broker, verb)(claim, error)
        stored = (await record(broker, claim.id)).last_error
        assert stored is not None
        assert text in stored


@pytest.mark.parametrize(
    "error", ["nul \0 inside", "lone \ud800 surrogate", "", "x" * 10**6, "emoji 🦫\n\ttabs ' \" % \\"]
)
async def test_an_error_text_is_cleaned_and_never_refused(broker: Broker, error: str) -> None:
    for verb in ("nack", "dead_letter"):
        claim = await running(broker, max_attempts=1)
        await getattr(broker, verb)(claim, error)
        job = await record(broker, claim.id)
        assert job.state is JobState.DEAD
        assert job.last_error is not None
        assert job.last_error[:4] == error[:4]
        assert job.errors[-1].message == job.last_error
        assert len(job.last_error) < 100_000
        job.last_error.encode()


# ``dead_letter``, ``release``, ``snooze``, ``mark_cancelled``.


async def test_a_dead_letter_is_dead_regardless_of_the_attempts(broker: Broker, clock: WatchedClock) -> None:
    claim = await running(broker, max_attempts=100)
    clock.advance(2)
    await broker.dead_letter(claim, "hopeless")
    job = await record(broker, claim.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "hopeless")
    assert (job.finished_at, job.lease_expires_at) == (clock.time, None)
    assert [(one.attempt, one.message) for one in job.errors] == [(1, "hopeless")]


async def test_a_released_job_is_pending_and_its_run_does_not_count(
    broker: Broker, clock: WatchedClock
) -> None:
    claim = await running(broker, max_attempts=1)
    enqueued_at = clock.time
    clock.advance(9)
    await broker.release(claim)
    job = await record(broker, claim.id)
    epoch = claim.epoch
    expected = {"state": JobState.PENDING, "attempts": 0, "epoch": epoch, "run_at": enqueued_at, **BACK}
    assert fields(job, tuple(expected)) == expected
    assert (job.last_error, job.errors) == (None, ())
    claim = await claim_one(broker)
    assert (claim.attempts, claim.epoch) == (1, clock.now())


async def test_a_snoozed_job_is_scheduled_and_its_run_does_not_count(
    broker: Broker, clock: WatchedClock
) -> None:
    for delay in (40, 0):
        claim = await running(broker, max_attempts=1)
        clock.advance(1)
        await broker.snooze(claim, delay)
        job = await record(broker, claim.id)
        epoch = claim.epoch
        expected = {"state": JobState.SCHEDULED, "attempts": 0, "epoch": epoch, "last_error": None, **BACK}
        assert fields(job, tuple(expected)) == expected
        assert job.run_at == clock.time + timedelta(seconds=delay)


async def test_a_run_that_stopped_because_of_a_cancel_is_cancelled(
    keeper: Broker, clock: WatchedClock
) -> None:
    for request in (True, False):
        claim = await running(keeper)
        if request:
            await keeper.cancel(claim.id)
        clock.advance(1)
        await keeper.mark_cancelled(claim)
        job = await record(keeper, claim.id)
        assert (job.state, job.finished_at, job.attempts) == (JobState.CANCELLED, clock.time, 1)


async def test_a_snooze_stores_its_reason_and_is_not_a_failure(broker: Broker) -> None:
    enqueued = await broker.enqueue("q")
    await broker.settle_many([Settlement.snooze(await claim_one(broker), 5, reason="not here\0")])
    job = await record(broker, enqueued.id)
    assert (job.state, job.attempts, job.errors) == (JobState.SCHEDULED, 0, ())
    assert job.last_error == "not here\N{REPLACEMENT CHARACTER}"


async def test_a_nack_or_snooze_while_a_cancel_is_requested_is_cancelled(
    keeper: Broker, clock: WatchedClock
) -> None:
    for settle in (
        lambda claim: Settlement.nack(claim, "boom", delay=5),
        lambda claim: Settlement.nack(claim, "boom", delay=0),
        lambda claim: Settlement.snooze(claim, 5),
    ):
        for max_attempts in (1, 3):
            claim = await running(keeper, max_attempts=max_attempts)
            await keeper.cancel(claim.id)
            [result] = await keeper.settle_many([settle(claim)])
            assert (result.id, result.applied, result.state) == (claim.id, True, JobState.CANCELLED)
            job = await record(keeper, claim.id)
            assert (job.state, job.finished_at, job.attempts) == (JobState.CANCELLED, clock.time, 1)


async def test_a_cancelled_run_is_not_kept_by_default(broker: Broker) -> None:
    claim = await running(broker)
    await broker.cancel(claim.id)
    assert await broker.nack(claim, "boom") is JobState.CANCELLED
    other = await running(broker)
    await broker.mark_cancelled(other)
    assert await every_job(broker) == []
    assert (await broker.stats("q")).cancelled == 0


async def test_a_dead_letter_wins_over_a_cancel_request(broker: Broker) -> None:
    claim = await running(broker)
    await broker.cancel(claim.id)
    await broker.dead_letter(claim, "hopeless")
    assert await state(broker, claim.id) is JobState.DEAD


async def test_a_released_job_keeps_its_cancel_request(broker: Broker) -> None:
    claim = await running(broker)
    await broker.cancel(claim.id)
    await broker.release(claim)
    assert (await record(broker, claim.id)).cancel_requested
    assert (await claim_one(broker)).cancel_token.cancelled


# ``settle_many``.


async def test_settle_many_applies_each_and_replies_in_order(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(retention=Retention(done=60, cancelled=60)))
    await broker.enqueue_many([NewJob("q", max_attempts=2) for _ in range(7)])
    acked, retried, nacked, lettered, released, snoozed, marked = await broker.claim("q", limit=7)
    results = await broker.settle_many(
        [
            Settlement.ack(acked, result=b"r", enqueue=[NewJob("next")], kv={b"k": b"v"}),
            Settlement.nack(retried, "later", delay=9),
            Settlement.nack(nacked, ValueError("now"), delay=0),
            Settlement.dead_letter(lettered, "never"),
            Settlement.release(released),
            Settlement.snooze(snoozed, 9),
            Settlement.mark_cancelled(marked),
        ]
    )
    claims = [acked, retried, nacked, lettered, released, snoozed, marked]
    assert [result.id for result in results] == [claim.id for claim in claims]
    assert all(result.applied and not result.lost for result in results)
    expected = ["done", "scheduled", "pending", "dead", "pending", "scheduled", "cancelled"]
    assert [result.state for result in results] == expected
    assert [await state(broker, claim.id) for claim in claims] == expected
    assert (await record(broker, acked.id)).result == b"r"
    assert (await broker.stats("next")).pending == 1
    assert await broker.kv_get(b"k") == b"v"


async def test_settling_an_empty_batch_returns_an_empty_list(broker: Broker) -> None:
    assert await broker.settle_many([]) == []
