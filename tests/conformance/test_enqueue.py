"""Enqueue: the stored fields, their defaults, and the id."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from dayjob import HIGH, LOW, NORMAL, Broker, JobState, NewJob, QueueConfig
from dayjob.engines.base import Engine
from tests.support.arrange import OpenBroker, claim_one, done, quiet, record
from tests.support.observe import FIELDS, every_job, everything, fields, ids
from tests.support.waiting import WatchedClock

SPELLED = "0190F3A2-7B1C-7DEF-8123-456789ABCDEF"
CANONICAL = SPELLED.lower()


async def test_a_bare_job_is_pending_with_the_defaults(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q")
    assert enqueued.created
    assert fields(await record(broker, enqueued.id)) == {
        **dict.fromkeys(FIELDS),
        "id": enqueued.id,
        "queue": "q",
        "task": "",
        "payload": b"",
        "headers": {},
        "priority": NORMAL,
        "state": JobState.PENDING,
        "attempts": 0,
        "max_attempts": 3,
        "epoch": 0,
        "enqueued_at": clock.time,
        "run_at": clock.time,
        "errors": (),
        "dedup_until": "claimed",
        "cancel_requested": False,
        "limits": (),
        "turn": 0,
    }


async def test_an_id_that_exists_is_not_stored_again_without_a_reservation(
    broker: Broker, raw_engine: Engine
) -> None:
    job = broker._validator.insertion(NewJob("q", b"first"))
    assert not job.reserve_id
    [first] = await raw_engine.insert([job])
    assert first.created
    claim = await claim_one(broker)
    [again] = await raw_engine.insert([broker._validator.insertion(NewJob("q", b"x"))])
    assert again.created
    job.payload = b"second"
    [repeated] = await raw_engine.insert([job])
    assert (repeated.id, repeated.created) == (first.id, False)
    assert (await record(broker, first.id)).payload == b"first"
    await broker.ack(claim)


async def test_every_option_is_stored(broker: Broker, clock: WatchedClock) -> None:
    run_at = clock.time + timedelta(seconds=60, microseconds=123_457)
    expires = clock.time + timedelta(hours=1, microseconds=1)
    options = {
        "task": "pkg.task",
        "priority": HIGH,
        "max_attempts": 7,
        "dedup_key": "once",
        "dedup_until": "settled",
        "headers": {"trace": "1", "empty": ""},
        "tenant": "acme",
    }
    enqueued = await broker.enqueue(
        "q",
        b"\x00\xffdata",
        task="pkg.task",
        priority=HIGH,
        run_at=run_at,
        expires=expires,
        max_attempts=7,
        dedup_key="once",
        dedup_until="settled",
        headers={"trace": "1", "empty": ""},
        tenant="acme",
        kv={b"k": b"v"},
        id=SPELLED,
    )
    job = await record(broker, enqueued.id)
    assert fields(job, tuple(options)) == options
    assert (job.id, job.payload) == (CANONICAL, b"\x00\xffdata")
    assert (job.state, job.run_at, job.expires_at) == (JobState.SCHEDULED, run_at, expires)
    assert await broker.kv_get(b"k") == b"v"


async def test_enqueue_many_stores_the_same_records_as_single_calls(
    broker: Broker, clock: WatchedClock
) -> None:
    run_at = clock.time + timedelta(minutes=5)
    await broker.enqueue(
        "one", b"p", task="t", priority=LOW, run_at=run_at, expires=600, max_attempts=2, dedup_key="d",
        dedup_until="settled", headers={"h": "v"}, tenant="t1", kv={b"one": b"1"},
    )  # fmt: skip
    [many] = await broker.enqueue_many(
        [
            NewJob(
                "many", b"p", task="t", priority=LOW, run_at=run_at, expires=600, max_attempts=2,
                dedup_key="d", dedup_until="settled", headers={"h": "v"}, tenant="t1", kv={b"many": b"2"},
            )
        ]
    )  # fmt: skip
    first, second = await every_job(broker)
    assert second.id == many.id
    assert {**fields(first), "id": "", "queue": ""} == {**fields(second), "id": "", "queue": ""}
    assert (await broker.kv_get(b"one"), await broker.kv_get(b"many")) == (b"1", b"2")


@pytest.mark.parametrize("ago", [0, 1, 10**10], ids=["now", "a moment ago", "three centuries ago"])
async def test_a_past_run_at_gives_a_pending_job(broker: Broker, clock: WatchedClock, ago: int) -> None:
    run_at = clock.time - timedelta(seconds=ago)
    enqueued = await broker.enqueue("q", run_at=run_at)
    job = await record(broker, enqueued.id)
    assert (job.state, job.run_at) == (JobState.PENDING, run_at)
    assert (await claim_one(broker)).id == enqueued.id


async def test_a_future_run_at_gives_a_scheduled_job(broker: Broker, clock: WatchedClock) -> None:
    moment = clock.time + timedelta(microseconds=1)
    tokyo = (clock.time + timedelta(hours=3)).astimezone(timezone(timedelta(hours=9)))
    latest = datetime.max.replace(tzinfo=UTC)
    for run_at in (moment, tokyo, latest):
        job = await record(broker, (await broker.enqueue("q", run_at=run_at)).id)
        assert (job.state, job.run_at) == (JobState.SCHEDULED, run_at)
    assert await broker.claim("q", limit=10) == []


@pytest.mark.parametrize("delay", [60, 60.0, timedelta(minutes=1)], ids=["int", "float", "timedelta"])
async def test_a_delay_gives_a_scheduled_job(
    broker: Broker, clock: WatchedClock, delay: float | timedelta
) -> None:
    job = await record(broker, (await broker.enqueue("q", delay=delay)).id)
    assert (job.state, job.run_at) == (JobState.SCHEDULED, clock.time + timedelta(minutes=1))


async def test_a_delay_of_zero_gives_a_pending_job(broker: Broker, clock: WatchedClock) -> None:
    for delay in (0, 0.0, timedelta(0)):
        job = await record(broker, (await broker.enqueue("q", delay=delay)).id)
        assert (job.state, job.run_at) == (JobState.PENDING, clock.time)


async def test_expires_accepts_a_duration_or_a_time(broker: Broker, clock: WatchedClock) -> None:
    moment = clock.time + timedelta(seconds=90)
    for expires in (90, 90.0, timedelta(seconds=90), moment):
        assert (await record(broker, (await broker.enqueue("q", expires=expires)).id)).expires_at == moment


@pytest.mark.parametrize("priority", [0, HIGH, NORMAL, LOW, 2**31, 2**32 - 1])
async def test_any_priority_in_range_is_stored(broker: Broker, priority: int) -> None:
    enqueued = await broker.enqueue("q", priority=priority)
    assert (await record(broker, enqueued.id)).priority == priority
    assert (await claim_one(broker)).priority == priority


async def test_priority_and_attempts_come_from_the_call_or_else_the_queue(open_broker: OpenBroker) -> None:
    broker = await open_broker(
        quiet(
            default=QueueConfig(priority=5, max_attempts=9),
            queues={"special": QueueConfig(priority=6, max_attempts=1)},
        )
    )
    for queue, priority, max_attempts, expected in (
        ("q", None, None, (5, 9)),
        ("special", None, None, (6, 1)),
        ("special", 0, 2, (0, 2)),
    ):
        one = await broker.enqueue(queue, priority=priority, max_attempts=max_attempts)
        [many] = await broker.enqueue_many([NewJob(queue, priority=priority, max_attempts=max_attempts)])
        for enqueued in (one, many):
            job = await record(broker, enqueued.id)
            assert (job.priority, job.max_attempts) == expected


async def test_a_payload_of_any_bytes_up_to_the_limit_is_stored(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(max_payload=256 * 256))
    for payload in (b"", bytes(range(256)), bytes(range(256)) * 256):
        enqueued = await broker.enqueue("q", payload)
        assert (await record(broker, enqueued.id)).payload == payload
        assert (await claim_one(broker)).payload == payload


async def test_the_default_payload_limit_is_one_mebibyte(broker: Broker) -> None:
    payload = b"x" * 2**20
    await broker.enqueue("q", payload)
    assert (await claim_one(broker)).payload == payload


# Ids.


async def test_generated_ids_are_uuid7_in_order(broker: Broker) -> None:
    made = [(await broker.enqueue("q")).id for _ in range(20)]
    made += [one.id for one in await broker.enqueue_many([NewJob("q") for _ in range(20)])]
    made += [(await broker.enqueue("q")).id for _ in range(20)]
    assert made == sorted(set(made))
    assert {UUID(id).version for id in made} == {7}
    assert [str(UUID(id)) for id in made] == made
    assert ids(await every_job(broker)) == made


@pytest.mark.parametrize(
    "spelling",
    [
        CANONICAL,
        SPELLED,
        CANONICAL.replace("-", ""),
        f"{{{SPELLED}}}",
        f"urn:uuid:{CANONICAL}",
        UUID(SPELLED),
    ],
    ids=["canonical", "upper case", "no dashes", "braces", "urn", "UUID"],
)
async def test_an_id_in_any_spelling_is_accepted(broker: Broker, spelling: str | UUID) -> None:
    enqueued = await broker.enqueue("q", id=spelling)
    assert (enqueued.id, enqueued.created) == (CANONICAL, True)
    assert (await record(broker, CANONICAL)).id == CANONICAL
    assert (await record(broker, SPELLED)).id == CANONICAL
    again = await broker.enqueue("q", id=CANONICAL)
    assert (again.id, again.created) == (CANONICAL, False)


@pytest.mark.parametrize("number", [0, 1, 2**128 - 1, UUID("f47ac10b-58cc-4372-a567-0e02b2c3d479").int])
async def test_an_id_may_be_any_uuid(broker: Broker, number: int) -> None:
    enqueued = await broker.enqueue("q", id=UUID(int=number))
    assert enqueued.id == str(UUID(int=number))
    job = await claim_one(broker)
    assert job.id == enqueued.id
    assert (await broker.nack(job, "again", delay=0)) is JobState.PENDING
    assert ids(await every_job(broker)) == [enqueued.id]


async def test_an_id_that_exists_is_a_no_op(broker: Broker) -> None:
    await broker.enqueue("q", b"first", id=CANONICAL, dedup_key="first")
    await broker.enqueue("q", b"other", dedup_key="second")
    before = await everything(broker)
    variants: list[dict[str, Any]] = [{}, {"dedup_key": "second"}, {"delay": 5}, {"priority": 1}]
    for options in variants:
        again = await broker.enqueue("elsewhere", b"second", id=SPELLED, kv={b"k": b"v"}, **options)
        assert (again.id, again.created) == (CANONICAL, False), "the id is checked before the dedup key"
    [again] = await broker.enqueue_many([NewJob("elsewhere", b"second", id=CANONICAL, kv={b"k": b"v"})])
    assert (again.id, again.created) == (CANONICAL, False)
    assert await everything(broker) == before
    assert await broker.kv_get(b"k") is None


async def test_an_id_that_exists_in_any_state_is_a_no_op(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(default=QueueConfig(max_attempts=1)))
    await broker.enqueue("q", id=CANONICAL)
    claim = await claim_one(broker)
    assert not (await broker.enqueue("q", id=CANONICAL)).created
    assert await broker.nack(claim, "no") is JobState.DEAD
    assert not (await broker.enqueue("q", id=CANONICAL)).created
    assert await broker.claim("q") == []


async def test_the_generated_id_of_a_removed_job_can_be_used_again(broker: Broker) -> None:
    id = await done(broker)
    assert (await broker.enqueue("q", b"new", id=id)).created
    again = await claim_one(broker)
    assert (again.payload, again.attempts) == (b"new", 1)


@pytest.mark.parametrize("way", ["acked", "cancelled", "moved before it was due"])
async def test_the_id_of_a_removed_job_can_be_used_on_another_queue(
    broker: Broker, clock: WatchedClock, way: str
) -> None:
    """No trace of the first job moves the second one to the queue of the first."""
    id = (await broker.enqueue("first", delay=5 if way.startswith("moved") else 0)).id
    if way == "acked":
        await broker.ack(await claim_one(broker, "first"))
    else:
        await broker.cancel(id)
    assert (await broker.enqueue("second", id=id)).created
    clock.advance(60)
    assert (await broker.promote(), await broker.reap()) == (0, 0)
    assert await broker.claim("first") == []
    assert (await claim_one(broker, "second")).id == id


async def test_two_jobs_with_one_id_in_a_batch_are_one_job(broker: Broker) -> None:
    first, second = await broker.enqueue_many(
        [NewJob("q", b"1", id=CANONICAL, kv={b"k": b"1"}), NewJob("r", b"2", id=SPELLED, kv={b"k": b"2"})]
    )
    assert (first.id, first.created) == (CANONICAL, True)
    assert (second.id, second.created) == (CANONICAL, False)
    assert [job.payload for job in await every_job(broker)] == [b"1"]
    assert await broker.kv_get(b"k") == b"1"
    assert await broker.queues() == ["q"], "a job that was not stored does not create its queue"


async def test_enqueue_creates_the_queue(broker: Broker) -> None:
    assert await broker.queues() == []
    await broker.enqueue("b")
    await broker.enqueue_many([NewJob("a"), NewJob("c", delay=60)])
    assert await broker.queues() == ["a", "b", "c"]
