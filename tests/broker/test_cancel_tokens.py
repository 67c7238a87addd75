"""A cancel request reaches the token of its claim, in whichever order the two arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

import pytest

from dayjob import Broker, BrokerConfig, CancelOutcome, EngineUnavailable, Job
from dayjob.engines.base import ClaimRequest
from dayjob.testing import ManualClock
from tests.support.bound import BOUND
from tests.support.staging import Gate, Stage, turns


async def fired(job: Job) -> None:
    async with asyncio.timeout(BOUND):
        await job.cancel_token.wait()
    assert job.cancel_token.cancelled
    assert job.cancel_requested


@pytest.mark.parametrize("checked", [True, False], ids=["checked before", "not checked yet"])
async def test_a_cancel_between_the_claims_commit_and_its_return_is_not_lost(
    broker: Broker, checked: bool
) -> None:
    """The check after the cancel signal may end before the broker holds the claim."""
    enqueued = await broker.enqueue("q")
    claim = Stage(broker, "claim")
    claim.after = Gate()
    claiming = asyncio.create_task(broker.claim("q"))
    await claim.after.reached()
    assert await broker.cancel(enqueued.id) is CancelOutcome.REQUESTED
    if checked:
        await turns()
    claim.after.open()
    [job] = await claiming
    await fired(job)


async def test_a_cancel_before_the_claims_return_fires_only_that_claims_token(broker: Broker) -> None:
    await broker.enqueue("held")
    [held] = await broker.claim("held")
    enqueued = await broker.enqueue("q")
    claim = Stage(broker, "claim")
    claim.after = Gate()
    claiming = asyncio.create_task(broker.claim("q"))
    await claim.after.reached()
    await broker.cancel(enqueued.id)
    await turns()
    claim.after.open()
    [job] = await claiming
    await fired(job)
    assert not held.cancel_token.cancelled


async def test_a_cancel_before_a_local_handoff_returns_is_not_lost(broker: Broker) -> None:
    both = Stage(broker, "insert_and_claim")
    both.after = Gate()
    claiming = asyncio.create_task(broker.claim("q", wait=60))
    await turns()
    id = str(UUID(int=7))
    adding = asyncio.create_task(broker.enqueue("q", id=id))
    await both.after.reached()
    assert await broker.cancel(id) is CancelOutcome.REQUESTED
    await turns()
    both.after.open()
    await adding
    [job] = await claiming
    await fired(job)


async def test_a_cancel_by_another_broker_before_the_claims_return_is_not_lost(clock: ManualClock) -> None:
    config = BrokerConfig(duties=False)
    async with (
        Broker("memory://tokens", config=config, clock=clock) as broker,
        Broker("memory://tokens", config=config, clock=clock) as other,
    ):
        enqueued = await broker.enqueue("q")
        claim = Stage(broker, "claim")
        claim.after = Gate()
        claiming = asyncio.create_task(broker.claim("q"))
        await claim.after.reached()
        assert await other.cancel(enqueued.id) is CancelOutcome.REQUESTED
        await turns()
        claim.after.open()
        [job] = await claiming
        await fired(job)


async def test_a_check_that_fails_is_repeated(
    broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueued = await broker.enqueue("q")
    cancel_requests = broker._engine.cancel_requests
    failures = [EngineUnavailable("no reply")] * 2

    async def flaky() -> Iterable[tuple[bytes, bytes]]:
        if failures:
            raise failures.pop()
        return await cancel_requests()

    claim = Stage(broker, "claim")
    claim.after = Gate()
    claiming = asyncio.create_task(broker.claim("q"))
    await claim.after.reached()
    await broker.cancel(enqueued.id)
    await turns()
    monkeypatch.setattr(broker._engine, "cancel_requests", flaky)
    claim.after.open()
    [job] = await claiming
    for _ in range(5):
        await turns()
        clock.advance(1)
    await fired(job)
    assert failures == []


async def test_a_token_that_is_made_after_the_request_has_fired(broker: Broker) -> None:
    await broker.enqueue("q")
    [job] = await broker.claim("q")
    await broker.cancel(job.id)
    await turns()
    assert job.cancel_token.cancelled


async def test_a_request_found_by_a_renewal_fires_the_token(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def blind() -> Iterable[tuple[bytes, bytes]]:
        return []

    monkeypatch.setattr(broker._engine, "cancel_requests", blind)
    await broker.enqueue("q")
    [job] = await broker.claim("q")
    await broker.cancel(job.id)
    await turns()
    assert not job.cancel_token.cancelled
    await broker.renew(job)
    await fired(job)


async def test_cancel_requests_are_not_read_while_there_are_none(
    broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0

    async def counted() -> Iterable[tuple[bytes, bytes]]:
        nonlocal reads
        reads += 1
        return []

    await broker.claim("other")
    await turns()  # The first claim starts the watch.
    monkeypatch.setattr(broker._engine, "cancel_requests", counted)
    await broker.enqueue("q")
    [job] = await broker.claim("q")
    await broker.enqueue("q")
    for _ in range(5):
        clock.advance(60)
        await turns()
    await broker.ack(job)
    assert reads == 0


async def test_a_reply_that_arrives_late_does_not_hide_the_later_claim_of_its_job(
    broker: Broker, clock: ManualClock
) -> None:
    """The first claim expires while its reply is under way, and the job is claimed again."""
    enqueued = await broker.enqueue("q")
    claim = Stage(broker, "claim")
    claim.after = gate = Gate()
    late = asyncio.create_task(broker.claim("q"))
    await gate.reached()
    claim.after = None
    clock.advance(30)
    assert await broker.reap() == 1
    [[current]] = await broker._engine.claim([ClaimRequest((("q", 30_000_000),), 1, None)])
    broker._claims.hold([current])
    gate.open()
    [lost] = await late
    assert await broker.cancel(enqueued.id) is CancelOutcome.REQUESTED
    await fired(current)
    assert not lost.cancel_token.cancelled
