"""Shared batches: a bad item fails alone, a cancelled caller affects no other, ``enqueue_many`` is atomic."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from dayjob import Broker, Enqueued, JobState, LeaseLost, NewJob, PayloadTooLarge, Settlement
from tests.support.arrange import KEEP_ALL, OpenBroker, quiet, record, state
from tests.support.observe import every_job, everything, ids
from tests.support.waiting import SAME_TURN, WatchedClock, cancel_at, with_timeout


async def test_a_batch_with_the_id_of_an_existing_job_stores_the_others(broker: Broker) -> None:
    """The id of the existing job was generated, so it is not reserved."""
    existing = (await broker.enqueue("q")).id
    replies = await broker.enqueue_many([NewJob("q"), NewJob("q", id=existing), NewJob("q")])
    assert [reply.created for reply in replies] == [True, False, True]
    assert (await broker.stats("q")).pending == len(await broker.jobs("q")) == 3


async def test_a_bad_enqueue_among_good_ones_fails_alone(broker: Broker) -> None:
    calls: list[Coroutine[Any, Any, Enqueued]] = []
    for number in range(30):
        match number % 10:
            case 3:
                calls.append(broker.enqueue("", kv={b"bad": b"1"}))
            case 6:
                calls.append(broker.enqueue("q", b"x" * (2**20 + 1)))
            case 9:
                calls.append(broker.enqueue("q", priority=-1))
            case _:
                calls.append(broker.enqueue("q", str(number).encode(), kv={b"%d" % number: b"1"}))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for number, answer in enumerate(answers):
        match number % 10:
            case 6:
                assert isinstance(answer, PayloadTooLarge)
            case 3 | 9:
                assert isinstance(answer, ValueError)
            case _:
                assert isinstance(answer, Enqueued)
                assert (await record(broker, answer.id)).payload == str(number).encode()
                assert await broker.kv_get(b"%d" % number) == b"1"
    assert len(await every_job(broker)) == 21
    assert await broker.kv_get(b"bad") is None


async def test_a_stale_settlement_among_good_ones_fails_alone(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    await broker.enqueue_many([NewJob("q", max_attempts=9) for _ in range(24)])
    claims = await broker.claim("q", limit=24)
    for claim in claims[::3]:
        await broker.release(replace(claim))
    answers = await asyncio.gather(
        *(
            broker.ack(claim, kv={b"ack": b"1"}) if number % 2 else broker.nack(claim, "x", delay=9)
            for number, claim in enumerate(claims)
        ),
        return_exceptions=True,
    )
    for number, (claim, answer) in enumerate(zip(claims, answers, strict=True)):
        if number % 3 == 0:
            assert isinstance(answer, LeaseLost)
            assert await state(broker, claim.id) is JobState.PENDING
        else:
            assert answer is (None if number % 2 else JobState.SCHEDULED)
            assert await state(broker, claim.id) is (JobState.DONE if number % 2 else JobState.SCHEDULED)


async def test_bad_settlements_and_renewals_among_good_ones_fail_alone(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(6)])
    claims = await broker.claim("q", limit=6)
    await broker.release(replace(claims[1]))
    answers = await asyncio.gather(
        broker.ack(claims[0], enqueue=[NewJob("next")]),
        broker.renew(claims[1]),
        broker.ack(claims[2], enqueue=[NewJob("")]),
        broker.renew(claims[3]),
        broker.settle_many([Settlement.ack(claims[1]), Settlement.release(claims[4])]),
        broker.nack(claims[5], "x", delay=-1),
        return_exceptions=True,
    )
    assert answers[0] is None
    assert isinstance(answers[1], LeaseLost)
    assert isinstance(answers[2], ValueError)
    assert answers[3] is None
    assert isinstance(answers[4], list)
    assert [result.applied for result in answers[4]] == [False, True]
    assert isinstance(answers[5], ValueError)
    assert (await broker.stats("next")).pending == 1
    assert [await state(broker, claim.id) for claim in claims] == [
        None, "pending", "running", "running", "pending", "running",
    ]  # fmt: skip


async def test_unknown_ids_in_a_batch_do_not_affect_known_ones(broker: Broker) -> None:
    known = await broker.enqueue_many([NewJob("q") for _ in range(6)])
    wanted = [known[0].id, "nonsense", known[1].id, str(UUID(int=1)), known[2].id]
    found = await asyncio.gather(*(broker.get(id) for id in wanted))
    assert [None if job is None else job.id for job in found] == [
        known[0].id,
        None,
        known[1].id,
        None,
        known[2].id,
    ]
    outcomes = await asyncio.gather(*(broker.cancel(id) for id in [*wanted, known[0].id]))
    assert sorted(outcomes) == sorted(["removed", "not_found"] * 3)


# A cancelled caller.


@pytest.mark.parametrize("turn", [SAME_TURN, *range(6)])
async def test_a_cancelled_enqueue_does_not_cancel_its_batch(broker: Broker, turn: int) -> None:
    ids_given = [str(UUID(int=number)) for number in range(12)]
    calls = [asyncio.create_task(broker.enqueue("q", id=id, kv={id.encode(): b"1"})) for id in ids_given]
    await cancel_at(turn, calls[::4])
    answers = await with_timeout(asyncio.gather(*calls, return_exceptions=True))
    for number, answer in enumerate(answers):
        if isinstance(answer, Enqueued):
            assert (answer.id, answer.created) == (ids_given[number], True)
        else:
            assert number % 4 == 0
            assert isinstance(answer, asyncio.CancelledError)
    await broker.enqueue("q")
    for number, id in enumerate(ids_given):
        stored = await broker.get(id) is not None
        assert stored or number % 4 == 0
        assert await broker.kv_get(id.encode()) == (b"1" if stored else None), (
            "the job and its kv, or neither"
        )


@pytest.mark.parametrize("turn", [SAME_TURN, *range(6)])
async def test_a_cancelled_settlement_does_not_cancel_its_batch(broker: Broker, turn: int) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(12)])
    claims = await broker.claim("q", limit=12)
    calls = [
        asyncio.create_task(broker.ack(claim, enqueue=[NewJob("next", claim.id.encode())]))
        for claim in claims
    ]
    await cancel_at(turn, calls[::4])
    answers = await with_timeout(asyncio.gather(*calls, return_exceptions=True))
    assert [answer for number, answer in enumerate(answers) if number % 4] == [None] * 9
    await broker.enqueue("q")
    followed = {job.payload.decode() for job in await broker.jobs("next")}
    for number, claim in enumerate(claims):
        settled = await broker.get(claim.id) is None
        assert settled or number % 4 == 0
        assert settled == (claim.id in followed), "the ack and its follow-up, or neither"


@pytest.mark.parametrize("turn", [SAME_TURN, *range(6)])
async def test_a_cancelled_claim_does_not_cancel_its_batch(broker: Broker, turn: int) -> None:
    await broker.enqueue_many([NewJob("q") for _ in range(8)])
    calls = [asyncio.create_task(broker.claim("q", limit=2)) for _ in range(4)]
    await cancel_at(turn, calls[1:2])
    answers = await with_timeout(asyncio.gather(*calls, return_exceptions=True))
    claimed = [job for answer in answers if isinstance(answer, list) for job in answer]
    assert len({job.id for job in claimed}) == len(claimed) >= 6
    for job in claimed:
        await broker.ack(job)


# ``enqueue_many``.


@pytest.mark.parametrize("place", [0, 50, 99])
async def test_one_bad_job_of_a_batch_stores_nothing(broker: Broker, place: int) -> None:
    await broker.enqueue("q", dedup_key="held")
    before = await everything(broker)
    jobs = [NewJob(f"new{n % 3}", dedup_key=f"k{n}", kv={b"%d" % n: b"1"}) for n in range(100)]
    jobs[place] = NewJob("q", tenant="")
    with pytest.raises(ValueError, match="tenant"):
        await broker.enqueue_many(jobs)
    assert await everything(broker) == before
    assert [await broker.kv_get(b"%d" % n) for n in range(100)] == [None] * 100
    jobs[place] = NewJob("q", tenant="fine")
    assert all(one.created for one in await broker.enqueue_many(jobs)), "the failed batch holds no dedup key"


async def test_an_empty_batch_is_a_no_op(broker: Broker) -> None:
    assert await broker.enqueue_many([]) == []
    assert await broker.enqueue_many(()) == []


async def test_a_batch_of_more_than_ten_thousand_is_refused(broker: Broker) -> None:
    with pytest.raises(ValueError, match="10,000"):
        await broker.enqueue_many([NewJob("q")] * 10_001)
    assert await broker.queues() == []
    answers = await broker.enqueue_many([NewJob("q") for _ in range(10_000)])
    assert [answer.id for answer in answers] == sorted({answer.id for answer in answers})
    assert (await broker.stats("q")).pending == 10_000


async def test_any_sequence_is_a_batch(broker: Broker) -> None:
    answers = await broker.enqueue_many((NewJob("q", b"1"), NewJob("q", b"2")))
    assert ids(await every_job(broker)) == [answer.id for answer in answers]


async def test_concurrent_batches_and_single_enqueues_each_get_their_own_replies(broker: Broker) -> None:
    async def batch(number: int) -> None:
        wanted = [str(UUID(int=number * 1000 + place)) for place in range(number)]
        answers = await broker.enqueue_many([NewJob("q", id=id) for id in wanted])
        assert [answer.id for answer in answers] == wanted

    async def single(number: int) -> None:
        id = str(UUID(int=10**9 + number))
        assert (await broker.enqueue("q", id=id)).id == id

    await asyncio.gather(*(work(number) for number in range(20) for work in (batch, single)))
    assert (await broker.stats("q")).pending == sum(range(20)) + 20


async def test_an_id_first_rejected_by_dedup_is_stored_on_its_own_new_queue(broker: Broker) -> None:
    first, second = str(UUID(int=1)), str(UUID(int=2))
    answers = await broker.enqueue_many(
        [
            NewJob("q", id=first, dedup_key="key"),
            NewJob("q", id=second, dedup_key="key"),
            NewJob("new", id=second),
        ]
    )
    assert [(one.id, one.created) for one in answers] == [(first, True), (first, False), (second, True)]
    assert [(job.id, job.queue) for job in await every_job(broker)] == [(first, "q"), (second, "new")]
    assert await broker.queues() == ["new", "q"]
    assert ids(await broker.claim("new")) == [second]


async def test_enqueuing_an_existing_id_does_not_create_its_queue(broker: Broker) -> None:
    first = str(UUID(int=1))
    await broker.enqueue_many([NewJob("q", id=first), NewJob("new", id=first)])
    await broker.enqueue("newer", id=first)
    assert await broker.queues() == ["q"]


async def test_a_claim_settled_twice_in_a_batch_applies_in_the_order_of_its_first_settlement(
    broker: Broker,
) -> None:
    await broker.enqueue_many([NewJob("q"), NewJob("q")])
    first, second = await broker.claim("q", limit=2)
    results = await broker.settle_many(
        [
            Settlement.ack(first, enqueue=[NewJob("q", id=second.id)]),
            Settlement.ack(second),
            Settlement.ack(first),
        ]
    )
    assert [result.applied for result in results] == [True, True, False]
    assert await every_job(broker) == [], "the follow-up existed already, and was settled after it"
