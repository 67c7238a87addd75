"""Debounce and windows: the effect of a later call with the same dedup key, and how long a key is held."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import App, Broker, Enqueued, Job, JobState, Limit, NewJob, Recurring
from dayjob.model.settlement import Settlement
from tests.support.arrange import KEEP_ALL, OpenBroker, claim_one, quiet, record, running
from tests.support.flow import add, claimed, limited_broker, states, use
from tests.support.observe import everything, fields
from tests.support.repeated_writes import new_token
from tests.support.waiting import LONG, WatchedClock, turns, with_timeout


async def latest(broker: Broker, payload: bytes = b"", queue: str = "q", **options: Any) -> tuple[str, bool]:
    enqueued = await broker.enqueue(queue, payload, **{"dedup_key": "k", "dedup": "latest", **options})
    return enqueued.id, enqueued.created


def seconds(job: Job) -> float:
    """Return the seconds from the enqueue to the due time."""
    return (job.run_at - job.enqueued_at).total_seconds()


# The latest call.


async def test_the_latest_call_replaces_the_call_of_a_scheduled_holder(
    broker: Broker, clock: WatchedClock
) -> None:
    first, created = await latest(
        broker, b"1", delay=10, priority=7, max_attempts=3, headers={"a": "1"}, tenant="t1", task="one"
    )
    assert created
    before = await record(broker, first)
    clock.advance(4)
    again = await latest(
        broker, b"2", delay=10, priority=9, max_attempts=8, headers={"b": "2"}, tenant="t2", task="two",
        kv={b"k": b"v"},
    )  # fmt: skip
    assert again == (first, False)
    after = await record(broker, first)
    assert (after.task, after.payload, after.headers, after.tenant) == ("two", b"2", {"b": "2"}, "t2")
    assert after.run_at - before.run_at == timedelta(seconds=4)
    changed = {"task", "payload", "headers", "tenant", "run_at"}
    assert {key: value for key, value in fields(after).items() if key not in changed} == {
        key: value for key, value in fields(before).items() if key not in changed
    }
    assert await broker.kv_get(b"k") is None, "a replacement writes no kv"
    clock.advance(9)
    assert await broker.promote() == 0
    clock.advance(1)
    assert await broker.promote() == 1
    job = await claim_one(broker)
    assert (job.id, job.payload, job.headers, job.task) == (first, b"2", {"b": "2"}, "two")


async def test_payloads_of_any_size_replace_each_other(broker: Broker) -> None:
    sizes = (0, 10, 5000)
    for before, size in product(sizes, sizes):
        id, _ = await latest(broker, bytes(before))
        assert await latest(broker, b"x" * size) == (id, False)
        assert (await record(broker, id)).payload == b"x" * size
        assert (await claim_one(broker)).payload == b"x" * size


async def test_without_a_delay_the_holder_becomes_pending(broker: Broker) -> None:
    id, _ = await latest(broker, delay=60)
    assert await latest(broker) == (id, False)
    assert (await record(broker, id)).state is JobState.PENDING
    assert (await claim_one(broker)).id == id


async def test_a_pending_holder_is_scheduled_again(broker: Broker, clock: WatchedClock) -> None:
    id, _ = await latest(broker)
    assert await latest(broker, delay=5) == (id, False)
    assert (await record(broker, id)).state is JobState.SCHEDULED
    assert await broker.claim("q") == []
    clock.advance(5)
    assert await broker.promote() == 1
    assert (await claim_one(broker)).id == id


async def test_a_run_time_replaces_the_one_before(broker: Broker, clock: WatchedClock) -> None:
    id, _ = await latest(broker, delay=60)
    at = (await record(broker, id)).enqueued_at + timedelta(seconds=7)
    await latest(broker, run_at=at)
    assert (await record(broker, id)).run_at == at


async def test_the_run_time_stays_within_the_longest_delay(broker: Broker, clock: WatchedClock) -> None:
    id, _ = await latest(broker, delay=10, dedup_max_delay=25)
    for moved in (18, 25, 25):
        clock.advance(8)
        await latest(broker, delay=10, dedup_max_delay=25)
        assert seconds(await record(broker, id)) == moved
    clock.advance(8)
    assert await latest(broker, b"last", delay=10, dedup_max_delay=25) == (id, False)
    job = await record(broker, id)
    assert (job.state, job.payload, seconds(job)) == (JobState.PENDING, b"last", 25)


async def test_a_job_that_is_stored_has_its_own_delay(broker: Broker) -> None:
    id, _ = await latest(broker, delay=60, dedup_max_delay=5)
    assert seconds(await record(broker, id)) == 60


async def test_a_running_holder_keeps_its_call(broker: Broker) -> None:
    id, _ = await latest(broker, b"1", dedup_until="settled")
    claim = await claim_one(broker)
    before = await everything(broker)
    assert await latest(broker, b"2", dedup_until="settled", delay=5) == (id, False)
    assert await everything(broker) == before
    await broker.ack(claim)
    assert (await latest(broker, b"3"))[1]


async def test_a_holder_that_waits_for_its_retry_gets_the_call_and_keeps_its_attempts(
    broker: Broker, clock: WatchedClock
) -> None:
    id, _ = await latest(broker, b"1", dedup_until="settled", max_attempts=9)
    await broker.nack(await claim_one(broker), "again", delay=60)
    assert await latest(broker, b"2", delay=5) == (id, False)
    clock.advance(5)
    await broker.promote()
    job = await claim_one(broker)
    assert (job.id, job.payload, job.attempts, job.last_error) == (id, b"2", 2, "again")


async def test_until_claimed_a_running_job_does_not_hold_its_key(broker: Broker) -> None:
    first, _ = await latest(broker, b"1")
    await claim_one(broker)
    second, created = await latest(broker, b"2")
    assert created
    assert second != first
    assert (await record(broker, first)).payload == b"1"


async def test_an_existing_id_changes_nothing(broker: Broker) -> None:
    first, _ = await latest(broker, b"1", delay=60)
    before = await everything(broker)
    assert await latest(broker, b"2", id=first) == (first, False)
    assert await everything(broker) == before


async def test_the_last_call_of_a_batch_wins(broker: Broker) -> None:
    def call(payload: bytes, delay: int, key: str = "k", **options: Any) -> NewJob:
        return NewJob("q", payload, dedup_key=key, dedup="latest", delay=delay, **options)

    calls = [call(b"1", 5), call(b"2", 0), call(b"other", 3, "o"), call(b"3", 9), call(b"last", 7)]
    for _ in range(2):
        enqueued = await broker.enqueue_many([*calls, NewJob("q", b"dropped", dedup_key="k")])
        first, other = enqueued[0].id, enqueued[2].id
        assert [each.id for each in enqueued] == [first, first, other, first, first, first]
        job = await record(broker, first)
        assert (job.payload, seconds(job), job.state) == (b"last", 7, JobState.SCHEDULED)
        assert (await record(broker, other)).payload == b"other"


async def test_concurrent_calls_leave_one_job_with_one_of_their_payloads(open_broker: OpenBroker) -> None:
    brokers = [await open_broker() for _ in range(3)]
    replies = await asyncio.gather(*(latest(brokers[n % 3], str(n).encode(), delay=n % 2) for n in range(60)))
    assert len({id for id, _ in replies}) == 1
    assert sum(created for _, created in replies) == 1
    [job] = await brokers[0].jobs()
    assert job.payload in {str(n).encode() for n in range(60)}


async def test_concurrent_claims_lose_no_call(open_broker: OpenBroker) -> None:
    """Each call is in a job that runs after it, or was replaced by a later one: the last is never lost."""
    first, second = await open_broker(), await open_broker()
    ran: list[bytes] = []

    async def work() -> None:
        while b"29" not in ran:
            for job in await second.claim("q", limit=10, worker="w"):
                ran.append(job.payload)
                await second.ack(job)
            await turns(1)

    async def call() -> None:
        for n in range(30):
            await latest(first, str(n).encode())

    await with_timeout(asyncio.gather(work(), call()))
    assert ran == sorted(ran, key=int), "a replaced call never runs after the one that replaced it"
    assert await first.jobs() == []


async def test_a_limited_holder_leaves_its_line(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await limited_broker(open_broker, one=Limit(running=1))
    options: dict[str, Any] = {"dedup_key": "k", "dedup": "latest"}
    [running, held, other] = [
        *await add(broker, "one"), *await add(broker, "one", **options), *await add(broker, "one")
    ]  # fmt: skip
    assert await claimed(broker) == [running]
    assert await states(broker, [held, other]) == [JobState.LIMITED] * 2
    assert await add(broker, "one", delay=5, **options) == [held]
    assert await states(broker, [held, other]) == [JobState.SCHEDULED, JobState.LIMITED]
    assert await use(broker, "one") == (1, 1)
    assert await add(broker, "one", **options) == [held]
    assert await states(broker, [held, other]) == [JobState.PENDING, JobState.LIMITED]
    assert await claimed(broker) == []
    assert await use(broker, "one") == (1, 2)
    await broker.ack(await record(broker, running))
    assert await claimed(broker) == [held]


async def test_a_pending_holder_that_is_scheduled_again_gives_its_place_to_the_line(
    open_broker: OpenBroker,
) -> None:
    broker = await limited_broker(open_broker, one=Limit(running=1))
    options: dict[str, Any] = {"dedup_key": "k", "dedup": "latest"}
    [first, held, last] = [
        *await add(broker, "one"), *await add(broker, "one", **options), *await add(broker, "one")
    ]  # fmt: skip
    assert await claimed(broker) == [first]
    await broker.ack(await record(broker, first))
    assert await states(broker, [held, last]) == [JobState.PENDING, JobState.LIMITED]
    assert await add(broker, "one", delay=60, **options) == [held]
    assert await states(broker, [held, last]) == [JobState.SCHEDULED, JobState.PENDING]


async def test_the_follow_up_job_of_a_settlement_replaces_the_call(broker: Broker) -> None:
    id, _ = await latest(broker, b"1", delay=60)
    await broker.enqueue("other")
    new = NewJob("q", b"2", dedup_key="k", dedup="latest")
    await broker.ack(await claim_one(broker, "other"), enqueue=[new])
    job = await claim_one(broker)
    assert (job.id, job.payload) == (id, b"2")


async def test_the_follow_up_job_of_a_lost_settlement_replaces_nothing(broker: Broker) -> None:
    id, _ = await latest(broker, b"1", delay=60)
    lost, current = await running(broker, "other"), await running(broker, "other")
    await broker.ack(lost)
    new = NewJob("q", b"2", dedup_key="k", dedup="latest", dedup_for=60)
    window = NewJob("q", dedup_key="window", dedup_for=60)
    results = await broker.settle_many(
        [
            Settlement.ack(lost, enqueue=[new, window]),
            Settlement.ack(current, enqueue=[window], kv={b"k": b"v"}),
        ]
    )
    assert [result.applied for result in results] == [False, True]
    assert (await record(broker, id)).payload == b"1"
    assert await broker.kv_get(b"k") == b"v"
    assert not (await broker.enqueue("q", dedup_key="window")).created


async def test_a_recurring_job_replaces_the_call(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await open_broker()
    app = App("memory://", name="shop")

    @app.task(queue="q", dedup="latest", dedup_for=500, dedup_max_delay=timedelta(minutes=1))
    async def report(day: int = 1) -> None: ...

    await broker.schedule(Recurring("r", every=30, task=report, args=(1,)))
    clock.advance(30)
    await broker.recur()
    [job] = await broker.jobs()
    assert job.run_at == job.enqueued_at
    clock.advance(30)
    await broker.recur()
    [again] = await broker.jobs()
    assert again.id == job.id
    assert again.headers != job.headers, "it has the due time of the latest one"
    assert again.run_at - job.run_at == timedelta(seconds=30)


async def test_the_latest_call_survives_a_reopen(open_broker: OpenBroker) -> None:
    broker = await open_broker()
    if not broker.capabilities.persistent:
        pytest.skip("jobs do not outlive the process")
    id, _ = await latest(broker, b"1", delay=60)
    await latest(broker, b"2", dedup_for=1000)
    await broker.close()
    broker = await open_broker()
    job = await claim_one(broker)
    assert (job.id, job.payload) == (id, b"2")


# Windows.


async def test_a_window_outlives_its_job(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await open_broker()
    first = await broker.enqueue("q", dedup_key="k", dedup_for=60)
    await broker.ack(await claim_one(broker))
    assert await broker.get(first.id) is None
    before = await everything(broker)
    clock.advance(59)
    for options in ({}, {"dedup_for": 60}, {"dedup": "latest"}, {"dedup_until": "settled"}):
        again = await broker.enqueue("q", b"x", dedup_key="k", kv={b"k": b"v"}, **options)
        assert (again.id, again.created) == (first.id, False)
        assert await everything(broker) == before
    assert await broker.kv_get(b"k") is None
    assert (await broker.enqueue("q", dedup_key="K")).created
    assert (await broker.enqueue("other", dedup_key="k")).created, "the window is one of its queue"
    clock.advance(1)
    assert (await broker.enqueue("q", dedup_key="k")).created


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
async def test_a_window_holds_the_key_even_if_the_job_has_ended(
    open_broker: OpenBroker, clock: WatchedClock, kept: bool
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL if kept else None))
    ends = ("cancelled", "dead", "running")
    first = {end: await broker.enqueue(end, dedup_key="k", dedup_for=60) for end in ends}
    await broker.cancel(first["cancelled"].id)
    await broker.dead_letter(await claim_one(broker, "dead"), "x")
    await broker.purge_dead("dead")
    await claim_one(broker, "running", lease=1000)
    for end in ends:
        again = await broker.enqueue(end, dedup_key="k")
        assert (again.id, again.created) == (first[end].id, False)
    clock.advance(60)
    for end in ends:
        assert (await broker.enqueue(end, dedup_key="k")).created


async def test_a_key_is_free_when_its_window_and_its_holder_are_over(
    broker: Broker, clock: WatchedClock
) -> None:
    first = await broker.enqueue("q", dedup_key="k", dedup_until="settled", dedup_for=60)
    claim = await claim_one(broker, lease=1000)
    clock.advance(100)
    assert (await broker.enqueue("q", dedup_key="k")).id == first.id
    await broker.ack(claim)
    second = await broker.enqueue("q", dedup_key="k", dedup_for=60)
    assert second.created
    clock.advance(59)
    await broker.cancel(second.id)
    assert (await broker.enqueue("q", dedup_key="k")).id == second.id
    clock.advance(1)
    assert (await broker.enqueue("q", dedup_key="k")).created


async def test_a_job_that_is_not_stored_opens_no_window(broker: Broker, clock: WatchedClock) -> None:
    first = await broker.enqueue("q", dedup_key="k")
    assert not (await broker.enqueue("q", dedup_key="k", dedup_for=60)).created
    assert not (await broker.enqueue("q", dedup_key="K", dedup_for=60, id=first.id)).created
    assert (await broker.enqueue("q", dedup_key="K")).created
    await broker.cancel(first.id)
    assert (await broker.enqueue("q", dedup_key="k")).created


async def test_a_replacement_does_not_extend_the_window(broker: Broker, clock: WatchedClock) -> None:
    id, _ = await latest(broker, b"1", dedup_for=60, delay=10)
    clock.advance(5)
    assert await latest(broker, b"2", dedup_for=60, delay=10) == (id, False)
    assert (await record(broker, id)).payload == b"2"
    await broker.cancel(id)
    clock.advance(54)
    assert await latest(broker, dedup_for=60) == (id, False)
    clock.advance(1)
    assert (await latest(broker, dedup_for=60))[1]


async def test_windows_count_within_a_batch(broker: Broker) -> None:
    job = NewJob("q", dedup_key="k", dedup_for=60)
    first, *others, last = await broker.enqueue_many([job, job, job, NewJob("q", dedup_key="k")])
    assert first.created
    assert {(each.id, each.created) for each in [*others, last]} == {(first.id, False)}


async def test_of_one_key_in_a_batch_the_first_job_wins_though_a_later_one_has_a_window(
    broker: Broker,
) -> None:
    jobs = [NewJob("q", b"1", dedup_key="k"), NewJob("q", b"2", dedup_key="k", dedup_for=60)]
    first, second = await broker.enqueue_many(jobs)
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert [job.payload for job in await broker.jobs("q")] == [b"1"]


async def test_of_concurrent_calls_with_windows_one_is_stored(open_broker: OpenBroker) -> None:
    brokers = [await open_broker() for _ in range(3)]

    async def call(number: int) -> list[str]:
        broker = brokers[number % 3]
        enqueued = await broker.enqueue("q", dedup_key="k", dedup_for=60)
        if enqueued.created:
            await broker.ack(await claim_one(broker))
        return [enqueued.id, *([""] if enqueued.created else [])]

    replies = await asyncio.gather(*(call(number) for number in range(30)))
    assert len({reply[0] for reply in replies}) == 1
    assert sum(len(reply) - 1 for reply in replies) == 1
    assert await brokers[0].jobs() == []


async def test_sweep_removes_windows_that_are_over(broker: Broker, clock: WatchedClock) -> None:
    sweep = broker._engine.sweep
    for number in range(3):
        await broker.enqueue("q", dedup_key=str(number), dedup_for=10 * (number + 1))
    assert await sweep(10) == (0, 0)
    clock.advance(20)
    assert await sweep(1) == (0, 1)
    assert await sweep(10) == (0, 1)
    assert await sweep(10) == (0, 0)
    assert not (await broker.enqueue("q", dedup_key="2")).created


async def test_windows_survive_a_reopen(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await open_broker()
    if not broker.capabilities.persistent:
        pytest.skip("jobs do not outlive the process")
    first = await broker.enqueue("q", dedup_key="k", dedup_for=60)
    await broker.cancel(first.id)
    await broker.close()
    broker = await open_broker()
    assert (await broker.enqueue("q", dedup_key="k")).id == first.id
    clock.advance(60)
    assert (await broker.enqueue("q", dedup_key="k")).created


# Keys over all queues.


async def test_a_global_key_is_held_on_all_queues(broker: Broker, clock: WatchedClock) -> None:
    first = await broker.enqueue("a", dedup_key="k", dedup_scope="global", dedup_until="settled")
    for queue in ("a", "b"):
        again = await broker.enqueue(queue, dedup_key="k", dedup_scope="global")
        assert (again.id, again.created) == (first.id, False)
        assert (await broker.enqueue(queue, dedup_key="k")).created, "a queue's own keys are others"
    assert await broker.queues() == ["a", "b"]
    again = await broker.enqueue("new", dedup_key="k", dedup_scope="global")
    assert (again.id, again.created) == (first.id, False)
    assert await broker.queues() == ["a", "b"], "a job that is not stored adds no queue"
    await broker.ack(await claim_one(broker, "a"))
    assert (await broker.enqueue("b", dedup_key="k", dedup_scope="global")).created


async def test_a_claim_releases_a_global_key(broker: Broker) -> None:
    await broker.enqueue("a", dedup_key="k", dedup_scope="global")
    await claim_one(broker, "a")
    assert (await broker.enqueue("b", dedup_key="k", dedup_scope="global")).created


async def test_a_global_window_holds_the_key_on_all_queues(broker: Broker, clock: WatchedClock) -> None:
    first = await broker.enqueue("a", dedup_key="k", dedup_scope="global", dedup_for=60)
    await broker.cancel(first.id)
    again = await broker.enqueue("b", dedup_key="k", dedup_scope="global")
    assert (again.id, again.created) == (first.id, False)
    assert (await broker.enqueue("a", dedup_key="k")).created
    clock.advance(60)
    assert (await broker.enqueue("b", dedup_key="k", dedup_scope="global")).created


@pytest.mark.parametrize(("here", "queue"), [(True, "a"), (True, "b"), (False, "b")])
async def test_the_latest_call_wakes_a_claim_of_the_queue_of_the_holder(
    open_broker: OpenBroker, clock: WatchedClock, here: bool, queue: str
) -> None:
    broker = await open_broker()
    waiting = broker if here else await open_broker()
    id, _ = await latest(broker, b"1", "a", dedup_scope="global", delay=60)
    claims = asyncio.create_task(waiting.claim("a", wait=LONG, worker="w"))
    await clock.until_waiting()
    assert await latest(broker, b"2", queue, dedup_scope="global") == (id, False)
    [job] = await with_timeout(claims)
    assert (job.id, job.queue, job.payload) == (id, "a", b"2")


async def test_a_global_key_survives_a_reopen(open_broker: OpenBroker) -> None:
    broker = await open_broker()
    if not broker.capabilities.persistent:
        pytest.skip("jobs do not outlive the process")
    first = await broker.enqueue("a", dedup_key="k", dedup_scope="global")
    await broker.close()
    broker = await open_broker()
    again = await broker.enqueue("b", dedup_key="k", dedup_scope="global")
    assert (again.id, again.created) == (first.id, False)
    assert (await record(broker, first.id)).dedup_key == "k"


# Lost replies.


@pytest.mark.parametrize("with_window", [False, True])
async def test_a_repeated_call_replaces_nothing(broker: Broker, with_window: bool) -> None:
    if not broker.capabilities.stores_replies:
        pytest.skip("the engine has no network that could lose a reply")
    id, _ = await latest(broker, b"1", delay=60)
    new = NewJob("q", b"2", dedup_key="k", dedup="latest", dedup_for=60 if with_window else None)
    job, token = broker._validator.insertion(new), new_token()
    for reply in (token, replace(token, repeated=True)):
        assert await broker._engine.insert([job], reply) == [Enqueued(id, False)]
        await latest(broker, b"3", delay=60)
        assert (await record(broker, id)).payload == b"3"


async def test_a_repeated_call_with_a_window_gets_its_first_reply(broker: Broker) -> None:
    if not broker.capabilities.stores_replies:
        pytest.skip("the engine has no network that could lose a reply")
    job = broker._validator.insertion(NewJob("q", dedup_key="k", dedup_for=60))
    token = new_token()
    [first] = await broker._engine.insert([job], token)
    await broker.ack(await claim_one(broker))
    assert await broker._engine.insert([job], replace(token, repeated=True)) == [first]
    assert first.created
    assert await broker.jobs() == []
