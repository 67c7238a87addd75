"""Leader election: one process at a time runs the fleet-wide duties, and another takes over soon."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from dayjob import Broker, BrokerConfig, InvalidState
from dayjob.broker.leader_election import KIND, LONGEST_TERM, SPREAD, Holder, renewal_of, term_of
from dayjob.engines.base import Document, DocumentWrite
from dayjob.model.job import JobState
from dayjob.runtime.process import this_process
from tests.support.arrange import OpenBroker, running, state
from tests.support.staging import Stage
from tests.support.waiting import WatchedClock, until, with_timeout

BUSY = BrokerConfig(duties=True)
TERM = LONGEST_TERM
RENEWAL = renewal_of(TERM)
EXACT = 0.001


def test_the_term_follows_dead_after_within_bounds() -> None:
    assert [term_of(seconds) for seconds in (0.5, 3, 6, 15, 600)] == [5, 5, 8, 20, 20]
    assert renewal_of(5) == 1.25


async def test_a_follower_waits_for_the_term_of_its_leader(broker: Broker, clock: WatchedClock) -> None:
    """The leader may have another ``dead_after``."""
    await held_by(broker, msgspec.structs.replace(other_holder(), term=60.0), clock)
    assert 60 - EXACT <= await broker.lead() <= 60 + SPREAD
    assert not broker.leads


@pytest.fixture(autouse=True)
async def shared(broker: Broker) -> None:
    if not broker.capabilities.multi_process:
        pytest.skip("the engine allows one process only, which always leads")


async def held_by(broker: Broker, holder: Holder | bytes, clock: WatchedClock, ahead: int = 0) -> None:
    """Store the holder, with a clock that is that many seconds ahead."""
    time = clock.time
    clock.set(time + timedelta(seconds=ahead))
    value = holder if isinstance(holder, bytes) else msgspec.msgpack.encode(holder)
    _, documents = await broker._engine.documents(KIND)
    expected = documents[0].value if documents else None
    assert await broker._engine.compare_and_set([DocumentWrite(KIND, "leader", expected, value)])
    clock.set(time)


def other_holder(machine: str = "another machine", started: str = "0") -> Holder:
    return Holder("other", machine, this_process().pid, started)


async def test_the_first_to_ask_leads_and_renews(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    other = await open_broker()
    assert not broker.leads
    assert await broker.lead() == RENEWAL
    for _ in range(10):
        assert (broker.leads, other.leads) == (True, False)
        assert 0 < await other.lead() <= 1 + EXACT
        clock.advance(RENEWAL)
        await broker.lead()


async def test_a_leader_reads_its_document_only_if_another_process_has_changed_it(
    broker: Broker, clock: WatchedClock
) -> None:
    await broker.lead()
    reads = Stage(broker, "documents")
    for _ in range(3):
        clock.advance(RENEWAL)
        assert await broker.lead() == RENEWAL
    assert reads.calls == []
    await held_by(broker, other_holder(), clock)
    del reads.calls[:]
    clock.advance(RENEWAL)
    assert await broker.lead() > RENEWAL
    assert (len(reads.calls), broker.leads) == (1, False)


async def test_of_concurrent_brokers_one_leads(open_broker: OpenBroker) -> None:
    brokers = [await open_broker() for _ in range(6)]
    await with_timeout(asyncio.gather(*(each.lead() for each in brokers)))
    assert sum(each.leads for each in brokers) == 1


async def test_a_leader_that_falls_silent_is_replaced_after_its_term(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    other = await open_broker()
    await broker.lead()
    clock.advance(TERM - 0.1)
    wait = await other.lead()
    assert 0.1 - EXACT <= wait <= 1 + EXACT
    assert (broker.leads, other.leads) == (True, False)
    clock.advance(0.1)
    assert not broker.leads, "the leader stops by itself when its term is over"
    clock.advance(SPREAD)
    await other.lead()
    assert other.leads
    await broker.lead()
    assert (broker.leads, other.leads) == (False, True)


async def test_a_leader_on_another_machine_is_replaced_after_its_term(
    broker: Broker, clock: WatchedClock
) -> None:
    await held_by(broker, other_holder(), clock, ahead=-2)
    wait = await broker.lead()
    assert TERM - 2 - EXACT <= wait <= TERM - 2 + SPREAD
    assert not broker.leads
    clock.advance(wait)
    await broker.lead()
    assert broker.leads


async def test_a_leader_that_died_on_this_machine_is_replaced_at_once(
    broker: Broker, clock: WatchedClock
) -> None:
    await held_by(broker, other_holder(this_process().host), clock)
    await broker.lead()
    assert broker.leads


@pytest.mark.parametrize("early", [0.0, 0.005])
async def test_a_follower_looks_at_the_leaders_process_and_seldom_at_the_storage(
    broker: Broker,
    open_broker: OpenBroker,
    clock: WatchedClock,
    monkeypatch: pytest.MonkeyPatch,
    early: float,
) -> None:
    """Also if the timers of its event loop end too early."""
    other = await open_broker()
    await broker.lead()
    reads = Stage(other, "documents")
    for _ in range(round(4 * TERM)):
        wait = await other.lead()
        assert 0 < wait <= 1 + EXACT
        clock.advance(max(wait - early, 0))
        await broker.lead()
    assert not other.leads
    assert 3 <= len(reads.calls) <= 5, "once in a term"
    monkeypatch.setattr("dayjob.broker.leader_election.is_gone", lambda pid, started: True)
    await other.lead()
    assert other.leads, "its process has ended"


async def test_a_follower_that_takes_a_released_lead_renews_it(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    """The process of the former leader lives on."""
    other = await open_broker()
    await broker.lead()
    await other.lead()
    clock.advance(0.5)
    await broker.stop_duties()
    for _ in range(4):
        assert await other.lead() == RENEWAL
        _, [document] = await other._engine.documents(KIND)
        assert document.written_us == clock.now()
        clock.advance(RENEWAL)


async def test_an_undecodable_document_is_overwritten(broker: Broker, clock: WatchedClock) -> None:
    await held_by(broker, b"\xc1", clock)
    await broker.lead()
    assert broker.leads


async def test_after_the_engine_clock_was_set_back_the_lead_is_taken_after_one_term(
    broker: Broker, clock: WatchedClock
) -> None:
    await held_by(broker, other_holder(), clock, ahead=3600)
    for _ in range(round(TERM)):
        assert await broker.lead() <= TERM + SPREAD
        assert not broker.leads
        clock.advance(1)
    await broker.lead()
    assert broker.leads


async def test_a_leader_that_renews_is_not_replaced_while_its_clock_is_ahead(
    broker: Broker, clock: WatchedClock
) -> None:
    for number in range(10):
        holder = msgspec.structs.replace(other_holder(), renewed=number)
        await held_by(broker, holder, clock, ahead=3600)
        await broker.lead()
        assert not broker.leads
        clock.advance(1)


@pytest.mark.parametrize("led", [False, True], ids=["at first", "when it renews"])
async def test_a_lead_whose_reply_was_lost_is_released_on_stop(
    broker: Broker, open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch, led: bool
) -> None:
    other = await open_broker()
    if led:
        await broker.lead()
    compare_and_set = broker._engine.compare_and_set

    async def lost(*args: Any, **options: Any) -> bool:
        await compare_and_set(*args, **options)
        raise InvalidState("no answer")

    monkeypatch.setattr(broker._engine, "compare_and_set", lost)
    with pytest.raises(InvalidState):
        await broker.lead()
    monkeypatch.undo()
    await broker.stop_duties()
    await other.lead()
    assert other.leads


async def test_releasing_a_lost_lead_does_not_affect_the_new_leader(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    other = await open_broker()
    await broker.lead()
    clock.advance(TERM)
    await other.lead()
    await broker.stop_duties()
    assert await broker.lead() > 0
    assert (broker.leads, other.leads) == (False, True)


# With duties.


async def test_when_the_leader_closes_another_one_leads_at_once(open_broker: OpenBroker) -> None:
    """The clock stands still, so the next leader does not wait for the term."""
    brokers = [await open_broker(BUSY) for _ in range(3)]

    def leaders() -> list[Broker]:
        return [each for each in brokers if each.is_open and each.leads]

    async def one_leads() -> bool:
        return len(leaders()) == 1

    for _ in range(3):
        await until(one_leads)
        [leader] = leaders()
        brokers.remove(leader)
        await with_timeout(leader.close())
        if not brokers:
            break


async def test_followers_run_no_duties(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await open_broker(BUSY)

    async def leads() -> bool:
        return leader.leads

    await until(leads)
    follower = await open_broker(BUSY)
    called: list[str] = []
    for verb in ("promote", "next_due", "reap", "reclaim", "sweep"):
        monkeypatch.setattr(follower._engine, verb, lambda *_, verb=verb, **__: called.append(verb))
    claim = await running(broker)
    await broker.enqueue("q", delay=1)

    async def back() -> bool:
        await clock.until_waiting_for(RENEWAL)  # The leader renews in time.
        clock.advance(RENEWAL)
        return await state(broker, claim.id) is JobState.PENDING

    await until(back)
    await clock.until_waiting_for(RENEWAL)
    assert (await broker.stats("q")).scheduled == 0
    assert called == []
    assert (leader.leads, follower.leads) == (True, False)


async def test_a_renewal_under_way_during_stop_does_not_keep_the_lead(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await open_broker(), await open_broker()
    await leader.lead()
    engine = leader._engine
    read = engine.documents

    async def read_then_renew(kind: str) -> tuple[int, list[Document]]:
        """Simulate a renewal that was cancelled too late."""
        found = await read(kind)
        monkeypatch.undo()
        await leader.lead()
        return found

    monkeypatch.setattr(engine, "documents", read_then_renew)
    await leader.stop_duties()
    await follower.lead()
    assert follower.leads
