"""Reopening: every stored detail is unchanged after close and open, for persistent engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import pytest
from msgspec.structs import replace

from dayjob import Broker, JobState, LeaseLost, NewJob, Retention, Settlement
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
)
from tests.support.observe import everything, ids
from tests.support.waiting import WatchedClock

Reopen = Callable[[], Awaitable[Broker]]


@pytest.fixture
async def first(open_broker: OpenBroker) -> Broker:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    if not broker.capabilities.persistent:
        pytest.skip("the engine is not persistent")
    return broker


@pytest.fixture
def reopen(first: Broker, open_broker: OpenBroker) -> Reopen:
    """Close the first broker and open another on the same storage."""

    async def close_and_open() -> Broker:
        await first.close()
        return await open_broker(quiet(retention=KEEP_ALL))

    return close_and_open


async def test_every_record_is_unchanged(first: Broker, reopen: Reopen, clock: WatchedClock) -> None:
    await first.enqueue(
        "q", b"\x00\xff", task="t", priority=3, delay=60, expires=90, max_attempts=5, dedup_key="k",
        dedup_until="settled", headers={"h": "v", "é": "\n"}, tenant="acme", kv={b"k": b"v"}, id=UUID(int=5),
    )  # fmt: skip
    await done(first, payload=b"done")
    await dead(first, "a:b")
    await cancelled(first, "🦫")
    claim = await running(first, "r")
    await first.cancel(claim.id)
    retried = await running(first, "s")
    await first.nack(retried, ValueError("boom"), delay=30)
    longer = await running(first, "t", max_attempts=1)
    await first.settle_many([replace(Settlement.nack(longer, "x"), max_attempts=4)])
    await first.ack(await running(first), result=b"result")
    await first.pause("paused")
    await first.enqueue("paused")
    await first.kv_put(b"empty", b"")
    before = await everything(first)
    second = await reopen()
    assert await everything(second) == before
    assert (await second.kv_get(b"k"), await second.kv_get(b"empty")) == (b"v", b"")
    assert await second.paused() == {"paused"}
    assert await second.claim("paused") == []


async def test_the_claim_order_is_unchanged(first: Broker, reopen: Reopen) -> None:
    places = [(2, 5), (1, 9), (2, 1), (0, 7), (1, 3)]
    await first.enqueue_many([NewJob("q", priority=p, id=UUID(int=n)) for p, n in places])
    second = await reopen()
    claims = await second.claim("q", limit=9)
    assert [(job.priority, UUID(job.id).int) for job in claims] == sorted(places)


async def test_claims_stay_current(first: Broker, reopen: Reopen, clock: WatchedClock) -> None:
    await first.enqueue_many([NewJob("q", max_attempts=5) for _ in range(4)])
    acked, nacked, renewed, stale = await first.claim("q", limit=4)
    await first.release(stale)
    second = await reopen()
    assert await second.reap() == 0
    await second.ack(acked, result=b"r")
    assert await second.nack(nacked, "x", delay=5) is JobState.SCHEDULED
    await second.renew(renewed, 100)
    assert (await record(second, renewed.id)).lease_expires_at == clock.time + timedelta(seconds=100)
    with pytest.raises(LeaseLost):
        await second.ack(stale)


async def test_a_renewed_lease_is_stored(first: Broker, reopen: Reopen, clock: WatchedClock) -> None:
    claim = await running(first)
    await first.renew(claim, 1000)
    second = await reopen()
    assert (await record(second, claim.id)).lease_expires_at == clock.time + timedelta(seconds=1000)


async def test_leases_continue(first: Broker, reopen: Reopen, clock: WatchedClock) -> None:
    claim = await running(first)
    clock.advance(20)
    second = await reopen()
    clock.advance(10)
    assert await second.reap() == 1
    again = await claim_one(second)
    assert (again.id, again.attempts, again.epoch) == (claim.id, 2, clock.now())


async def test_a_cancel_request_is_kept(first: Broker, reopen: Reopen, clock: WatchedClock) -> None:
    claim = await running(first)
    await first.cancel(claim.id)
    clock.advance(30)
    second = await reopen()
    await second.reap()
    assert (await claim_one(second)).cancel_token.cancelled


async def test_due_times_expiries_and_retention_continue(
    first: Broker, reopen: Reopen, clock: WatchedClock
) -> None:
    due = await first.enqueue("q", delay=10)
    expiring = await first.enqueue("q", expires=10)
    finished = await done(first, priority=1)
    second = await reopen()
    clock.advance(10)
    assert await second.promote() == 1
    assert (await record(second, due.id)).state is JobState.PENDING
    assert (await record(second, expiring.id)).state is JobState.CANCELLED
    clock.advance(timedelta(days=1))
    assert await second.sweep() == 2
    assert await second.get(finished) is None


async def test_retention_was_stamped_when_the_job_ended(
    first: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    id = await done(first)
    await first.close()
    second = await open_broker(quiet(retention=Retention(done=1)))
    clock.advance(timedelta(days=1) - timedelta(microseconds=1))
    assert await second.sweep() == 0
    clock.advance(timedelta(microseconds=1))
    assert await second.sweep() == 1
    assert await second.get(id) is None


async def test_dedup_keys_are_held(first: Broker, reopen: Reopen) -> None:
    waiting = await first.enqueue("q", dedup_key="waiting")
    await first.enqueue("r", dedup_key="running", dedup_until="settled")
    await first.claim("r")
    await first.enqueue("s", dedup_key="let go")
    await first.claim("s")
    second = await reopen()
    assert (await second.enqueue("q", dedup_key="waiting")).id == waiting.id
    assert not (await second.enqueue("r", dedup_key="running")).created
    assert (await second.enqueue("s", dedup_key="let go")).created


async def test_new_ids_follow_the_old(first: Broker, reopen: Reopen) -> None:
    old = [(await first.enqueue("q")).id for _ in range(3)]
    second = await reopen()
    new = [(await second.enqueue("q")).id for _ in range(3)]
    assert ids(await second.claim("q", limit=9)) == old + new


async def test_the_same_broker_may_be_opened_again(first: Broker) -> None:
    await first.enqueue("q", kv={b"k": b"v"})
    before = await everything(first)
    for _ in range(3):
        await first.close()
        await first.open()
        assert await everything(first) == before
    await first.ack(await claim_one(first))


async def test_the_done_counter_continues(first: Broker, reopen: Reopen) -> None:
    await done(first)
    second = await reopen()
    await done(second)
    assert (await second.stats("q")).done == 2
