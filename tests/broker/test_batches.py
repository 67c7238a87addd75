"""How calls form batches: calls that arrive while one batch is under way are in the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from dayjob import Broker, BrokerConfig, EngineUnavailable, JobState, NewJob, Retention, Settlement
from dayjob.broker.batcher import Batcher, Weight, insertions_weight, ops_weight, settlements_weight
from dayjob.engines.base import BATCH, BATCH_BYTES, Contended, Insertion, RetentionTimes, SettleOp
from dayjob.model.lifecycle import Transition
from dayjob.model.names import KV_VALUE_BYTES
from tests.support.bound import BOUND
from tests.support.processes import pause
from tests.support.staging import Gate, Stage, turns


def with_timeout(seconds: float, config: BrokerConfig | None = None) -> Broker:
    """Return a broker in memory whose calls have a timeout, as those of an engine with outages."""
    broker = Broker("memory://", config=config or BrokerConfig(duties=False))
    broker._engine.timeout = seconds
    return broker


def gather(calls: list[Coroutine[Any, Any, Any]]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(call) for call in calls]


async def enqueues(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    return [broker.enqueue("q") for _ in range(100)]


async def claims(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    await broker.enqueue_many([NewJob("q")] * 100)
    return [broker.claim("q") for _ in range(100)]


async def acks(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    await broker.enqueue_many([NewJob("q")] * 100)
    return [broker.ack(job) for job in await broker.claim("q", limit=100)]


async def renewals(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    await broker.enqueue_many([NewJob("q")] * 100)
    return [broker.renew(job) for job in await broker.claim("q", limit=100)]


async def cancels(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    return [broker.cancel(one.id) for one in await broker.enqueue_many([NewJob("q")] * 100)]


async def gets(broker: Broker) -> list[Coroutine[Any, Any, Any]]:
    return [broker.get(one.id) for one in await broker.enqueue_many([NewJob("q")] * 100)]


@pytest.mark.parametrize(
    ("verb", "make"),
    [
        ("insert", enqueues),
        ("claim", claims),
        ("settle", acks),
        ("renew", renewals),
        ("cancel", cancels),
        ("get", gets),
    ],
)
async def test_calls_that_arrive_during_a_commit_share_the_next(
    broker: Broker, verb: str, make: Callable[[Broker], Awaitable[list[Coroutine[Any, Any, Any]]]]
) -> None:
    first, *rest = await make(broker)
    stage = Stage(broker, verb)
    stage.before = Gate()
    tasks = gather([first])
    await stage.before.reached()
    assert stage.sizes == [1], "a lone call is sent at once"
    for call in rest:
        tasks += gather([call])
        await turns(1)
    assert stage.sizes == [1]
    stage.before.open()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*tasks)
    assert stage.sizes == [1, 99]


async def test_a_batch_has_no_more_jobs_than_the_limit(broker: Broker) -> None:
    insert = Stage(broker, "insert")
    insert.before = Gate()
    tasks = gather([broker.enqueue("q")])
    await insert.before.reached()
    tasks += gather([broker.enqueue_many([NewJob("q")] * 4000) for _ in range(5)])
    await turns()
    insert.before.open()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*tasks)
    assert insert.sizes == [1, 8000, 8000, 4000]
    assert max(insert.sizes) <= BATCH


async def test_an_outage_fails_all_callers_of_its_batch_and_no_other() -> None:
    async with with_timeout(BOUND) as broker:
        insert = Stage(broker, "insert")
        insert.before = Gate()
        insert.failures.append(EngineUnavailable("no reply"))
        doomed = gather([broker.enqueue("q") for _ in range(10)])
        await insert.before.reached()
        lucky = gather([broker.enqueue("q") for _ in range(10)])
        await turns()
        insert.before.open()
        async with asyncio.timeout(BOUND):
            replies = await asyncio.gather(*doomed, return_exceptions=True)
            assert all(isinstance(reply, EngineUnavailable) for reply in replies)
            assert all(reply.created for reply in await asyncio.gather(*lucky))
        assert insert.sizes == [10, 10], "the callers decide about a retry"
        assert (await broker.stats("q")).pending == 10
        assert (await broker.enqueue("q")).created


@pytest.mark.parametrize("verb", ["claim", "settle", "renew", "cancel", "get"])
async def test_later_calls_work_after_an_outage(broker: Broker, verb: str) -> None:
    make = {"claim": claims, "settle": acks, "renew": renewals, "cancel": cancels, "get": gets}[verb]
    first, second, *rest = await make(broker)
    for call in rest:
        call.close()
    Stage(broker, verb).failures.append(EngineUnavailable("no reply"))
    with pytest.raises(EngineUnavailable):
        await first
    await second


async def test_an_outage_of_a_settlement_leaves_the_claim_to_be_settled_again(broker: Broker) -> None:
    await broker.enqueue("q")
    [job] = await broker.claim("q")
    token = job.cancel_token
    Stage(broker, "settle").failures.append(EngineUnavailable("no reply"))
    with pytest.raises(EngineUnavailable):
        await broker.ack(job)
    await broker.cancel(job.id)
    await turns()
    assert token.cancelled, "the claim is still held"
    await broker.ack(job)
    assert (await broker.stats("q")).done == 1


async def test_an_item_that_can_not_be_stored_fails_alone(broker: Broker) -> None:
    """An error that validation did not find."""
    insert = Stage(broker, "insert")
    poison = ValueError("this one is bad")

    def check() -> None:
        if any(job.payload == b"poison" for job in insert.calls[-1][0]):
            raise poison

    insert.last = check
    payloads = [b"good", b"poison", b"good"]
    replies = await asyncio.gather(*(broker.enqueue("q", p) for p in payloads), return_exceptions=True)
    assert replies[1] is poison
    assert len([reply for reply in replies if reply is not poison]) == 2
    assert not any(isinstance(replies[index], BaseException) for index in (0, 2))


async def test_a_cancelled_caller_cancels_no_other_call_of_the_batch(broker: Broker) -> None:
    insert = Stage(broker, "insert")
    insert.before = Gate()
    tasks = gather([broker.enqueue("q") for _ in range(3)])
    await insert.before.reached()
    tasks[1].cancel()
    await turns()
    insert.before.open()
    async with asyncio.timeout(BOUND):
        replies = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(replies[1], asyncio.CancelledError)
    assert not isinstance(replies[0], BaseException)
    assert not isinstance(replies[2], BaseException)
    assert (await broker.stats("q")).pending == 3, "the batch was already sent"


MEGABYTE = 1_000_000


def payload_bytes(stage: Stage) -> list[int]:
    """Return the payload bytes of each call."""
    return [sum(len(job.payload) for job in arguments[0]) for arguments in stage.calls]


async def behind_a_gate(
    broker: Broker, verb: str, first: Coroutine[Any, Any, Any], rest: list[Coroutine[Any, Any, Any]]
) -> tuple[Stage, list[Any]]:
    """Send the first call, submit the rest while it is under way. Return the stage and all replies."""
    stage = Stage(broker, verb)
    stage.before = Gate()
    tasks = gather([first])
    await stage.before.reached()
    tasks += gather(rest)
    await turns(2)
    stage.before.open()
    async with asyncio.timeout(BOUND):
        return stage, await asyncio.gather(*tasks)


async def test_large_enqueues_go_out_in_batches_of_at_most_eight_mebibytes(broker: Broker) -> None:
    payloads = [number.to_bytes(1) * MEGABYTE for number in range(60)]
    insert, replies = await behind_a_gate(
        broker, "insert", broker.enqueue("q"), [broker.enqueue("q", payload) for payload in payloads]
    )
    assert insert.sizes == [1, *[8] * 7, 4]
    assert max(payload_bytes(insert)) <= BATCH_BYTES
    stored = [job.payload for arguments in insert.calls[1:] for job in arguments[0]]
    assert stored == payloads, "in the order of the calls"
    assert len({reply.id for reply in replies}) == 61


async def test_headers_and_kv_count_as_bytes(broker: Broker) -> None:
    value = b"v" * KV_VALUE_BYTES
    calls = [broker.enqueue("q", kv={b"%d-%d" % (n, m): value for m in range(20)}) for n in range(3)]
    insert, _ = await behind_a_gate(broker, "insert", broker.enqueue("q"), calls)
    assert 20 * len(value) > BATCH_BYTES / 2
    assert insert.sizes == [1, 1, 1, 1]
    assert insertions_weight([Insertion(b"", "q", "", b"12", 0, 1, {"ab": "c"}, kv={b"d": b"ef"})]) == (1, 8)


async def test_a_batch_above_the_byte_limit_is_one_commit_and_goes_alone() -> None:
    """Atomicity is worth more than the limit."""
    async with Broker("memory://", config=BrokerConfig(duties=False, max_payload=2 * BATCH_BYTES)) as broker:
        huge = [NewJob("q", b"x" * MEGABYTE)] * 12
        insert, replies = await behind_a_gate(
            broker,
            "insert",
            broker.enqueue("q"),
            [broker.enqueue("q"), broker.enqueue_many(huge), broker.enqueue("q", b"y"), broker.enqueue("q")],
        )
    assert insert.sizes == [1, 1, 12, 2]
    assert len(replies[2]) == 12


async def test_a_huge_settlement_goes_alone_and_its_neighbours_keep_their_order() -> None:
    config = BrokerConfig(duties=False, max_payload=2 * BATCH_BYTES, retention=Retention(done=60))
    async with Broker("memory://", config=config) as broker:
        await broker.enqueue_many([NewJob("q")] * 7)
        first, *jobs = await broker.claim("q", limit=7)
        results = [b"", b"", b"x" * (BATCH_BYTES + 1), b"", b"", b""]
        acks = [broker.ack(job, result=result) for job, result in zip(jobs, results, strict=True)]
        settle, _ = await behind_a_gate(broker, "settle", broker.ack(first), acks)
        assert settle.sizes == [1, 2, 1, 3]
        sent = [op.key for arguments in settle.calls for op in arguments[0]]
        assert sent == [job.key for job in (first, *jobs)]


async def test_settlements_above_the_byte_limit_are_split_into_several_commits() -> None:
    async with Broker("memory://", config=BrokerConfig(duties=False, retention=Retention(done=60))) as broker:
        await broker.enqueue_many([NewJob("q")] * 20)
        jobs = await broker.claim("q", limit=20)
        settle = Stage(broker, "settle")
        acks = [Settlement.ack(job, result=bytes(MEGABYTE)) for job in jobs]
        results = await broker.settle_many(acks)
        assert [result.state for result in results] == [JobState.DONE] * 20
        assert settle.sizes == [8, 8, 4]


@pytest.mark.parametrize("failure", [EngineUnavailable, RuntimeError, asyncio.CancelledError])
async def test_a_split_settlement_that_fails_midway_gets_its_replies_when_it_is_repeated(
    monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    async with Broker("memory://", config=BrokerConfig(duties=False, retention=Retention(done=60))) as broker:
        await broker.enqueue_many([NewJob("q")] * 20)
        jobs = await broker.claim("q", limit=20)
        engine: Any = broker._engine
        settle, sent = engine.settle, []

        async def fail_second(ops: Sequence[SettleOp], *rest: Any, **named: Any) -> Any:
            sent.append(len(ops))
            if len(sent) == 2:
                raise failure("no room")
            return await settle(ops, *rest, **named)

        monkeypatch.setattr(engine, "settle", fail_second)
        acks = [Settlement.ack(job, result=bytes(MEGABYTE)) for job in jobs]
        with pytest.raises(failure):
            await broker.settle_many(acks)
        results = await broker.settle_many(acks)
        assert [result.applied for result in results] == [True] * 20
        assert (await broker.stats("q")).done == 20
        assert sent == [8, 8, 8, 4], "the first part is not sent again"


async def test_a_batch_that_fits_is_weighed_once_and_a_larger_one_item_by_item() -> None:
    weighed: list[int] = []
    batches: list[list[int]] = []

    def weigh(items: Sequence[int]) -> Weight:
        weighed.append(len(items))
        return len(items), sum(items)

    async def commit(items: list[int]) -> list[int]:
        batches.append(items)
        return items

    def fail(items: list[int], error: BaseException) -> None:
        raise error

    batcher = Batcher(commit, lambda items, replies: None, fail, weigh=weigh)
    for size in (1, 2, 3):
        batcher.put(size)
    await batcher.drain()
    assert (batches, weighed) == ([[1, 2, 3]], [3])
    batches.clear()
    weighed.clear()
    for size in (1, BATCH_BYTES, 2):
        batcher.put(size)
    await batcher.drain()
    assert batches == [[1], [BATCH_BYTES], [2]]
    assert weighed == [3, 1, 1, 2, 1, 1], "the last item is alone"


async def test_a_huge_item_that_fails_fails_no_neighbour() -> None:
    config = BrokerConfig(duties=False, max_payload=2 * BATCH_BYTES)
    async with with_timeout(BOUND, config) as broker:
        insert = Stage(broker, "insert")

        def refuse_huge() -> None:
            if payload_bytes(insert)[-1] > BATCH_BYTES:
                raise EngineUnavailable("too slow")

        insert.last = refuse_huge
        calls = gather([broker.enqueue("q", b"x" * size) for size in (1, BATCH_BYTES + 1, 1)])
        async with asyncio.timeout(BOUND):
            replies = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(reply, EngineUnavailable) for reply in replies] == [False, True, False]


async def test_follow_up_jobs_errors_and_kv_count_in_a_settlement(broker: Broker) -> None:
    retention = RetentionTimes()
    insertion = Insertion(b"", "q", "", b"1234", 0, 1, {})
    ops = (
        SettleOp(b"", b"", Transition.ACK, retention, result=b"12", insert=(insertion,), kv={b"a": b"bc"}),
        SettleOp(b"", b"", Transition.NACK, retention, error="12345"),
    )
    assert ops_weight(ops) == (3, 14)
    await broker.enqueue("q")
    [job] = await broker.claim("q")
    new = NewJob("q", b"1234")
    assert settlements_weight([Settlement.ack(job, result=b"12", enqueue=[new], kv={b"a": b"bc"})]) == (2, 9)
    assert settlements_weight([Settlement.nack(job, "12345")]) == (1, 5)


@pytest.mark.parametrize("wrong", [{"result": 5}, {"enqueue": [7, None]}, {"kv": {1: 2}}, {"kv": 5}])
async def test_the_weight_of_an_invalid_settlement_raises_nothing(broker: Broker, wrong: Any) -> None:
    """It is refused by validation, with its reason."""
    await broker.enqueue("q")
    [job] = await broker.claim("q")
    assert settlements_weight([Settlement.ack(job, **wrong)])[1] == 0


async def test_a_contended_item_is_tried_alone_and_delays_no_other(broker: Broker) -> None:
    insert = Stage(broker, "insert")
    locked = True

    def lock() -> None:
        if locked and any(job.payload == b"locked" for job in insert.calls[-1][0]):
            raise Contended("locked by another client")

    insert.last = lock
    one = asyncio.create_task(broker.enqueue("q", b"locked"))
    rest = gather([broker.enqueue("q") for _ in range(3)])
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*rest)
        assert not one.done()
        locked = False
        assert (await one).id


async def test_few_contended_items_are_tried_at_a_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each occupies a connection while it waits for its lock."""
    engine: Any = broker._engine
    insert, under_way, most, tries = engine.insert, 0, 0, 0
    locked = True

    async def lock(jobs: Sequence[Insertion], *rest: Any, **named: Any) -> Any:
        nonlocal under_way, most, tries
        if not locked or all(job.payload != b"locked" for job in jobs):
            return await insert(jobs, *rest, **named)
        under_way += 1
        tries += 1
        most = max(most, under_way)
        await turns()
        under_way -= 1
        raise Contended("locked by another client")

    monkeypatch.setattr(engine, "insert", lock)
    waiting = gather([broker.enqueue("q", b"locked") for _ in range(50)])
    async with asyncio.timeout(BOUND):
        while tries < 100:
            assert (await broker.enqueue("q")).created
            await turns()
        locked = False
        await asyncio.gather(*waiting)
    assert most == 2


SHORT = 0.05
"""Seconds: the timeout of calls in an outage."""


@pytest.fixture
async def impatient() -> AsyncIterator[Broker]:
    """A broker whose calls have a short timeout."""
    async with with_timeout(SHORT) as broker:
        yield broker


async def test_a_call_that_is_overdue_in_an_outage_fails_without_a_try(impatient: Broker) -> None:
    insert = Stage(impatient, "insert")
    insert.before = Gate()
    insert.failures.append(EngineUnavailable("no reply"))
    calls = gather([impatient.enqueue("q")])
    await insert.before.reached()
    calls += gather([impatient.enqueue("q", bytes(MEGABYTE)) for _ in range(60)])
    await pause(2 * SHORT)
    insert.before.open()
    async with asyncio.timeout(BOUND):
        replies = await asyncio.gather(*calls, return_exceptions=True)
    assert all(str(reply) == "no reply" for reply in replies)
    assert insert.sizes == [1], "one try for all of them"
    assert (await impatient.enqueue("q")).created


async def test_a_slow_storage_fails_no_call_that_waits(impatient: Broker) -> None:
    """Eight batches take longer than the timeout of one call, and each succeeds."""
    insert = Stage(impatient, "insert")
    insert.before = Gate()
    calls = gather([impatient.enqueue("q", bytes(MEGABYTE)) for _ in range(60)])
    await insert.before.reached()
    await pause(2 * SHORT)
    insert.before.open()
    async with asyncio.timeout(BOUND):
        assert all(reply.created for reply in await asyncio.gather(*calls))


async def test_the_items_of_a_refused_batch_are_overdue_too(impatient: Broker) -> None:
    insert = Stage(impatient, "insert")
    insert.failures += [ValueError("one of them is bad"), EngineUnavailable("no reply")]
    insert.before = Gate()
    calls = gather([impatient.enqueue("q") for _ in range(10)])
    await insert.before.reached()
    await pause(2 * SHORT)
    insert.before.open()
    async with asyncio.timeout(BOUND):
        replies = await asyncio.gather(*calls, return_exceptions=True)
    assert all(str(reply) == "no reply" for reply in replies)
    assert insert.sizes == [10, 1]


async def test_contended_calls_that_are_overdue_in_an_outage_fail_without_a_try(impatient: Broker) -> None:
    """Two of them are tried at a time. Without a limit, the last of 50 would wait for 25 timeouts."""
    insert = Stage(impatient, "insert")
    insert.failures += [Contended("locked by another client"), *[EngineUnavailable("no reply")] * 50]
    insert.before = together = Gate()
    calls = gather([impatient.enqueue("q") for _ in range(50)])
    await together.reached()
    insert.before = alone = Gate()
    together.open()
    await alone.reached()
    await pause(2 * SHORT)
    alone.open()
    async with asyncio.timeout(BOUND):
        replies = await asyncio.gather(*calls, return_exceptions=True)
    assert all(str(reply) == "no reply" for reply in replies)
    assert insert.sizes == [50, 1, 1]


async def test_contended_calls_do_not_fail_after_the_end_of_an_outage(impatient: Broker) -> None:
    insert = Stage(impatient, "insert")
    insert.failures += [Contended("locked by another client"), EngineUnavailable("no reply")]
    with pytest.raises(EngineUnavailable):
        await impatient.enqueue("q")
    insert.failures += [Contended("locked by another client")] * 50
    calls = gather([impatient.enqueue("q") for _ in range(20)])
    async with asyncio.timeout(BOUND):
        assert all(reply.created for reply in await asyncio.gather(*calls))


async def test_a_close_in_an_outage_waits_for_one_try_of_each_verb(impatient: Broker) -> None:
    insert = Stage(impatient, "insert")
    insert.before = Gate()
    insert.failures += [EngineUnavailable("no reply")] * 10
    calls = gather([impatient.enqueue("q")])
    await insert.before.reached()
    calls += gather([impatient.enqueue("q", bytes(MEGABYTE)) for _ in range(60)])
    await turns()
    closing = asyncio.create_task(impatient.close())
    await pause(2 * SHORT)
    insert.before.open()
    async with asyncio.timeout(BOUND):
        await closing
    assert insert.sizes == [1]
    assert all(isinstance(call.exception(), EngineUnavailable) for call in calls)
