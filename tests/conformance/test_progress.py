"""Progress belongs to a claim: only the current claim may report it, and a new claim starts without."""

from __future__ import annotations

from msgspec.structs import replace

from dayjob import Broker, BrokerConfig, Job, Retention, Settlement
from dayjob.engines.base import Progress
from dayjob.model.lifecycle import Transition
from tests.support.arrange import OpenBroker, claim_one, record
from tests.support.waiting import WatchedClock


def half(claim: Job, message: str = "half way") -> Progress:
    return Progress(claim.key, claim.claim, 0.5, message)


async def test_another_broker_sees_the_progress_of_a_running_job(open_broker: OpenBroker) -> None:
    broker, other = await open_broker(), await open_broker()
    enqueued = await broker.enqueue("q")
    claim = await claim_one(broker)
    assert (await record(other, enqueued.id)).progress is None
    await broker.record_progress([half(claim, "résumé 🎉")])
    assert (await record(other, enqueued.id)).progress == (0.5, "résumé 🎉")


async def test_progress_of_a_lost_claim_is_ignored(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q")
    lost = await claim_one(broker)
    clock.advance(30)
    assert await broker.reap() == 1
    current = await claim_one(broker)
    await broker.record_progress([half(lost), half(replace(current, key=bytes(16)))])
    assert (await record(broker, enqueued.id)).progress is None
    await broker.record_progress([half(current)])
    assert (await record(broker, enqueued.id)).progress == (0.5, "half way")


async def test_the_next_claim_starts_without_progress(broker: Broker) -> None:
    enqueued = await broker.enqueue("q")
    claim = await claim_one(broker)
    await broker.record_progress([half(claim)])
    await broker.nack(claim, "x", delay=0)
    assert (await record(broker, enqueued.id)).progress == (0.5, "half way")
    await claim_one(broker)
    assert (await record(broker, enqueued.id)).progress is None


async def test_a_done_job_keeps_its_progress(open_broker: OpenBroker) -> None:
    broker = await open_broker(BrokerConfig(duties=False, retention=Retention(done=60)))
    enqueued = await broker.enqueue("q")
    claim = await claim_one(broker)
    await broker.record_progress([half(claim)])
    await broker.ack(claim)
    assert (await record(broker, enqueued.id)).progress == (0.5, "half way")


async def test_a_settlement_may_carry_the_last_progress(open_broker: OpenBroker) -> None:
    broker = await open_broker(BrokerConfig(duties=False, retention=Retention(done=60)))
    enqueued = await broker.enqueue("q")
    claim = await claim_one(broker)
    await broker.record_progress([half(claim)])
    await broker.settle_many([Settlement(claim, Transition.ACK, progress=(1.0, "all of it"))])
    assert (await record(broker, enqueued.id)).progress == (1.0, "all of it")
