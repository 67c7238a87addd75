"""Claim: which jobs are claimed, in which order, and each only once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from dayjob import Broker, JobState, NewJob, QueueConfig
from dayjob.engines.base import ClaimRequest, Engine
from dayjob.model.durations import SECOND
from tests.support.arrange import OpenBroker, claim_one, quiet, record, running, state
from tests.support.observe import CLAIM_FIELDS, everything, fields, ids
from tests.support.waiting import LONG, WatchedClock, with_timeout


async def test_a_claim_makes_the_job_running(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue(
        "q", b"data", task="t", priority=7, max_attempts=4, headers={"h": "v"}, tenant="acme"
    )
    clock.advance(5)
    claim = await claim_one(broker, worker="w1")
    expected = {
        "id": enqueued.id,
        "queue": "q",
        "task": "t",
        "payload": b"data",
        "headers": {"h": "v"},
        "tenant": "acme",
        "priority": 7,
        "state": JobState.RUNNING,
        "attempts": 1,
        "max_attempts": 4,
        "epoch": clock.now(),
        "lease_expires_at": clock.time + timedelta(seconds=30),
        "cancel_requested": False,
        "limits": (),
        "turn": 0,
    }
    assert fields(claim, CLAIM_FIELDS) == expected
    stored = await record(broker, enqueued.id)
    assert fields(stored, CLAIM_FIELDS) == expected
    assert (stored.claimed_at, stored.worker, stored.finished_at) == (clock.time, "w1", None)
    assert stored.enqueued_at == stored.run_at == clock.time - timedelta(seconds=5)


async def test_a_job_is_claimed_once(broker: Broker) -> None:
    await broker.enqueue("q")
    assert len(await broker.claim("q", limit=10)) == 1
    assert await broker.claim("q", limit=10) == []


async def test_each_claim_counts_an_attempt_and_has_a_higher_epoch(
    broker: Broker, clock: WatchedClock
) -> None:
    await broker.enqueue("q", max_attempts=10)
    first = clock.now()
    for count in (1, 2, 3):
        claim = await claim_one(broker)
        assert (claim.attempts, claim.epoch) == (count, first + count - 1)
        await broker.nack(claim, "again", delay=0)
    claim = await claim_one(broker)
    await broker.release(claim)
    claim = await claim_one(broker)
    assert (claim.attempts, claim.epoch) == (4, first + 4)
    await broker.release(claim)
    clock.advance(1)
    assert (await claim_one(broker)).epoch == clock.now()


async def test_the_epoch_of_a_job_grows_though_the_clock_is_set_back(
    broker: Broker, clock: WatchedClock
) -> None:
    first = await running(broker)
    await broker.release(first)
    clock.set(clock.time - timedelta(days=1))
    assert (await claim_one(broker)).epoch == first.epoch + 1


async def test_each_claim_has_a_key_of_its_own(broker: Broker, raw_engine: Engine) -> None:
    await broker.enqueue_many([NewJob("q"), NewJob("q")])
    claims = [await claim_one(broker) for _ in range(2)]
    for claim in claims:
        assert (await record(broker, claim.id)).claim == claim.claim
        await broker.release(claim)
    for _ in range(2):
        request = ClaimRequest((("q", SECOND),), 1, None)
        [[claim]] = await raw_engine.claim([request])
        claims.append(claim)
    assert len({claim.claim for claim in claims}) == 4
    assert {len(claim.claim) for claim in claims} == {16}


@pytest.mark.parametrize("lease", [90, 90.0, timedelta(seconds=90)], ids=["int", "float", "timedelta"])
async def test_the_lease_argument_sets_the_lease(
    broker: Broker, clock: WatchedClock, lease: float | timedelta
) -> None:
    await broker.enqueue("q")
    claim = await claim_one(broker, lease=lease)
    assert claim.lease_expires_at == clock.time + timedelta(seconds=90)
    assert (await record(broker, claim.id)).lease_expires_at == claim.lease_expires_at


async def test_each_queue_has_its_own_lease(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await open_broker(
        quiet(default=QueueConfig(lease=10), queues={"slow": QueueConfig(lease=timedelta(hours=1))})
    )
    await broker.enqueue_many([NewJob("fast"), NewJob("slow")])
    fast, slow = await broker.claim(["fast", "slow"], limit=2)
    assert fast.lease_expires_at == clock.time + timedelta(seconds=10)
    assert slow.lease_expires_at == clock.time + timedelta(hours=1)


# Order.


async def test_lower_priority_numbers_run_first_then_lower_ids(broker: Broker) -> None:
    places = [(2, 5), (1, 9), (2, 1), (0, 7), (1, 3), (2**32 - 1, 0), (0, 8), (2, 4)]
    for priority, number in places:
        await broker.enqueue("q", priority=priority, id=UUID(int=number))
    claimed = await broker.claim("q", limit=100)
    assert [(job.priority, UUID(job.id).int) for job in claimed] == sorted(places)


async def test_single_claims_and_one_large_claim_give_the_same_order(broker: Broker) -> None:
    places = [(priority, number) for number, priority in enumerate([3, 1, 2, 1, 3, 0, 2, 2])]
    await broker.enqueue_many(
        [NewJob("q", priority=priority, id=UUID(int=number)) for priority, number in places]
    )
    claimed = [await claim_one(broker) for _ in places]
    assert [(job.priority, UUID(job.id).int) for job in claimed] == sorted(places)


async def test_a_retry_keeps_its_position(broker: Broker, clock: WatchedClock) -> None:
    first, second, third = await broker.enqueue_many([NewJob("q"), NewJob("q"), NewJob("q")])
    claim = await claim_one(broker)
    assert claim.id == first.id
    await broker.nack(claim, "again", delay=5)
    assert (await claim_one(broker)).id == second.id
    clock.advance(5)
    await broker.promote()
    assert ids(await broker.claim("q", limit=9)) == [first.id, third.id]


async def test_a_released_job_keeps_its_position(broker: Broker) -> None:
    first, second = await broker.enqueue_many([NewJob("q"), NewJob("q")])
    await broker.release(await claim_one(broker))
    assert ids(await broker.claim("q", limit=9)) == [first.id, second.id]


async def test_a_promoted_job_takes_the_position_of_its_id(broker: Broker, clock: WatchedClock) -> None:
    later = await broker.enqueue("q", delay=5)
    sooner = await broker.enqueue("q")
    clock.advance(5)
    await broker.promote()
    assert ids(await broker.claim("q", limit=9)) == [later.id, sooner.id]


async def test_several_queues_are_claimed_in_the_order_given(broker: Broker) -> None:
    for queue in ("a", "b", "c"):
        for priority in (2, 1):
            await broker.enqueue(queue, f"{queue}{priority}".encode(), priority=priority)
    claimed = await broker.claim(["c", "a", "b"], limit=5)
    assert [job.payload for job in claimed] == [b"c1", b"c2", b"a1", b"a2", b"b1"]
    assert [job.payload for job in await broker.claim(("b", "c"), limit=5)] == [b"b2"]


async def test_a_queue_named_twice_gives_each_job_once(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q"), NewJob("q")])
    assert len(await broker.claim(["q", "q"], limit=5)) == 2


async def test_a_queue_named_twice_does_not_use_up_the_limit_for_later_queues(broker: Broker) -> None:
    first, second = [(await broker.enqueue(queue)).id for queue in ("a", "b")]
    assert ids(await broker.claim(["a", "a", "b"], limit=2)) == [first, second]


async def test_a_claim_returns_jobs_of_its_own_queues_only(broker: Broker) -> None:
    await broker.enqueue("a")
    assert await broker.claim("b") == []
    assert await broker.claim(["b", "c"], limit=10) == []
    assert len(await broker.claim("a")) == 1


async def test_claim_any_claims_from_every_queue_in_name_order(broker: Broker) -> None:
    await broker.enqueue_many([NewJob(queue) for queue in ("b", "c", "a", "paused", "é", "b")])
    await broker.pause("paused")
    assert [job.queue for job in await broker.claim_any(limit=3)] == ["a", "b", "b"]
    assert [job.queue for job in await broker.claim_any(limit=9)] == ["c", "é"]
    assert await broker.claim_any() == []


async def test_claim_any_names_only_queues_with_pending_jobs(broker: Broker) -> None:
    """Names of queues are kept for ever. Those of a thousand idle tenants would make each claim slow."""
    for queue in ("idle", "running", "a", "b"):
        await broker.enqueue(queue, delay=60 if queue == "idle" else None)
    await broker.claim("running")
    claim = broker._engine.claim
    named: list[str] = []

    async def watched(requests: Sequence[ClaimRequest], *arguments: Any, **options: Any) -> Any:
        named.extend(queue for request in requests for queue, _ in request.queues)
        return await claim(requests, *arguments, **options)

    broker._engine.claim = watched  # type: ignore[method-assign]
    assert len(await broker.claim_any(limit=5)) == 2
    assert await broker.claim_any(limit=5) == []
    assert named == ["a", "b"]


async def test_queues_with_pending_jobs_are_named_in_order(broker: Broker) -> None:
    assert await broker._engine.pending_queues() == []
    await broker.enqueue_many([NewJob("é"), NewJob("b"), NewJob("a"), NewJob("a"), NewJob("later", delay=60)])
    await broker.pause("b")
    assert await broker._engine.pending_queues() == ["a", "b", "é"]
    (job,) = await broker.claim("é")
    (first,) = await broker.claim("a")
    await broker.ack(first)
    assert await broker._engine.pending_queues() == ["a", "b"]
    await broker.release(job)
    assert await broker._engine.pending_queues() == ["a", "b", "é"]


async def test_claim_any_waits_for_queues_that_do_not_exist_yet(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    for enqueuer in (broker, await open_broker()):
        waiting = asyncio.create_task(broker.claim_any(wait=LONG))
        await clock.until_waiting()
        enqueued = await enqueuer.enqueue(f"new {id(enqueuer)}")
        assert ids(await with_timeout(waiting)) == [enqueued.id]


# Jobs that can't be claimed.


async def test_a_due_job_is_not_claimable_before_promote(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q", delay=10)
    clock.advance(60)
    assert await broker.claim("q") == []
    assert await state(broker, enqueued.id) is JobState.SCHEDULED
    assert await broker.promote() == 1
    assert (await claim_one(broker)).id == enqueued.id


async def test_finished_jobs_are_not_claimed(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(default=QueueConfig(max_attempts=1)))
    await broker.nack(await running(broker), "no")
    await broker.ack(await running(broker))
    await broker.cancel((await broker.enqueue("q")).id)
    assert await broker.claim("q", limit=10) == []


async def test_a_claim_from_an_unknown_queue_returns_nothing_and_does_not_create_it(broker: Broker) -> None:
    await broker.enqueue("known")
    before = await everything(broker)
    assert await broker.claim("unknown") == []
    assert await broker.claim(["unknown", "strange"], limit=5) == []
    assert await everything(broker) == before


# Limits.


async def test_a_claim_returns_at_most_its_limit(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(7)])
    assert len(await broker.claim("q")) == 1
    assert len(await broker.claim("q", limit=4)) == 4
    assert len(await broker.claim("q", limit=4)) == 2


async def test_a_limit_of_zero_returns_nothing(broker: Broker) -> None:
    await broker.enqueue("q")
    before = await everything(broker)
    assert await broker.claim("q", limit=0) == []
    assert await everything(broker) == before


@pytest.mark.parametrize("limit", [10**6, 2**63, 2**70])
async def test_a_huge_limit_returns_all_pending_jobs(broker: Broker, limit: int) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(20)])
    assert len(await broker.claim("q", limit=limit)) == 20


async def test_one_claim_returns_at_most_ten_thousand_jobs(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("a") for _ in range(9_995)])
    await broker.enqueue_many([NewJob("b") for _ in range(10)])
    claimed = await broker.claim(["a", "b"], limit=20_000)
    assert len(claimed) == len(set(ids(claimed))) == 10_000
    assert [job.queue for job in claimed[-6:]] == ["a"] + ["b"] * 5
    assert len(await broker.claim(["a", "b"], limit=20_000)) == 5


@pytest.mark.parametrize("limit", [-1, -(2**70)])
async def test_a_negative_limit_is_refused(broker: Broker, limit: int) -> None:
    await broker.enqueue("q")
    with pytest.raises(ValueError, match="limit"):
        await broker.claim("q", limit=limit)


# Concurrency.


async def test_concurrent_claims_never_return_the_same_job(broker: Broker, open_broker: OpenBroker) -> None:
    brokers = [broker, await open_broker(), await open_broker()]
    enqueued = await broker.enqueue_many([NewJob(f"q{number % 3}") for number in range(200)])
    answers = await asyncio.gather(
        *(brokers[turn % 3].claim(["q0", "q1", "q2"], limit=1 + turn % 5) for turn in range(60))
    )
    claimed = [job.id for jobs in answers for job in jobs]
    assert len(claimed) == len(set(claimed)) == sum(1 + turn % 5 for turn in range(60))
    assert set(claimed) <= {one.id for one in enqueued}


async def test_concurrent_claims_take_the_front_of_the_queue(broker: Broker) -> None:
    enqueued = await broker.enqueue_many([NewJob("q") for _ in range(50)])
    answers = await asyncio.gather(*(broker.claim("q", limit=2) for _ in range(10)))
    assert sorted(job.id for jobs in answers for job in jobs) == [one.id for one in enqueued[:20]]
