"""One process at a time does the fleet's duties, and another one soon after it goes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dayjob import Broker, BrokerConfig, InvalidState
from dayjob.broker.leader_election import KIND, RENEWAL, TERM, Holder
from dayjob.engines.base import Document, DocumentWrite
from dayjob.model.durations import SECOND
from dayjob.model.job import JobState
from dayjob.runtime.process import this_process
from tests.support.arrange import OpenBroker, running, state
from tests.support.waiting import WatchedClock, until, within

BUSY = BrokerConfig(duties=True)


@pytest.fixture(autouse=True)
async def shared(broker: Broker) -> None:
    if not broker.capabilities.multi_process:
        pytest.skip("no other process can have the storage: whoever has it leads")


async def held_by(broker: Broker, holder: Holder | bytes, now: int) -> None:
    value = holder if isinstance(holder, bytes) else msgspec.msgpack.encode(holder)
    _, documents = await broker._engine.documents(KIND, now)
    expected = documents[0].value if documents else None
    assert await broker._engine.compare_and_set([DocumentWrite(KIND, "leader", expected, value)], now=now)


def somebody(machine: str = "another machine", started: str = "0") -> Holder:
    return Holder("somebody", machine, this_process().pid, started)


async def test_the_first_to_ask_leads_and_renews(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    other = await open_broker()
    assert not broker.leads
    assert await broker.lead() == RENEWAL
    for _ in range(10):
        assert (broker.leads, other.leads) == (True, False)
        assert 0 < await other.lead() <= 1
        clock.advance(RENEWAL)
        await broker.lead()


async def test_racing_brokers_find_one(open_broker: OpenBroker) -> None:
    brokers = [await open_broker() for _ in range(6)]
    await within(asyncio.gather(*(each.lead() for each in brokers)))
    assert sum(each.leads for each in brokers) == 1


async def test_a_leader_that_falls_silent_is_replaced_after_its_term(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    other = await open_broker()
    await broker.lead()
    clock.advance(TERM - 0.1)
    wait = await other.lead()
    assert wait == pytest.approx(0.1)
    assert (broker.leads, other.leads) == (True, False)
    clock.advance(0.1)
    assert not broker.leads, "it knows by itself that its term is over"
    await other.lead()
    assert other.leads
    await broker.lead()
    assert (broker.leads, other.leads) == (False, True)


async def test_one_of_another_machine_is_waited_for_until_its_term_is_over(
    broker: Broker, clock: WatchedClock
) -> None:
    await held_by(broker, somebody(), clock.now() - 2 * SECOND)
    assert await broker.lead() == TERM - 2
    assert not broker.leads
    clock.advance(TERM - 2)
    await broker.lead()
    assert broker.leads


async def test_one_whose_process_is_gone_here_is_replaced_at_once(
    broker: Broker, clock: WatchedClock
) -> None:
    await held_by(broker, somebody(this_process().host), clock.now())
    await broker.lead()
    assert broker.leads


async def test_a_note_that_cannot_be_read_is_written_over(broker: Broker, clock: WatchedClock) -> None:
    await held_by(broker, b"\xc1", clock.now())
    await broker.lead()
    assert broker.leads


async def test_an_engines_clock_that_was_put_back_holds_nobody_up(
    broker: Broker, clock: WatchedClock
) -> None:
    await held_by(broker, somebody(), clock.now() + 3600 * SECOND)
    for _ in range(5):
        assert await broker.lead() <= TERM
        assert not broker.leads
        clock.advance(1)
    await broker.lead()
    assert broker.leads


async def test_one_that_renews_is_not_replaced_though_its_clock_looks_odd(
    broker: Broker, clock: WatchedClock
) -> None:
    for number in range(10):
        holder = msgspec.structs.replace(somebody(), renewed=number)
        await held_by(broker, holder, clock.now() + 3600 * SECOND)
        await broker.lead()
        assert not broker.leads
        clock.advance(1)


@pytest.mark.parametrize("led", [False, True], ids=["at first", "when it renews"])
async def test_a_lead_whose_answer_was_lost_is_given_up_all_the_same(
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


async def test_giving_up_takes_the_lead_from_nobody_else(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    other = await open_broker()
    await broker.lead()
    clock.advance(TERM)
    await other.lead()
    await broker.stop_duties()
    assert await broker.lead() > 0
    assert (broker.leads, other.leads) == (False, True)


# By themselves.


async def test_when_the_leader_closes_another_one_leads_at_once(open_broker: OpenBroker) -> None:
    """The clock stands still: it does not wait for the term."""
    brokers = [await open_broker(BUSY) for _ in range(3)]

    def leaders() -> list[Broker]:
        return [each for each in brokers if each.is_open and each.leads]

    async def one_leads() -> bool:
        return len(leaders()) == 1

    for _ in range(3):
        await until(one_leads)
        [leader] = leaders()
        brokers.remove(leader)
        await within(leader.close())
        if not brokers:
            break


async def test_the_duties_rest_in_all_but_one(
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
        await clock.until_waiting_for(RENEWAL)  # The leader keeps pace.
        clock.advance(RENEWAL)
        return await state(broker, claim.id) is JobState.PENDING

    await until(back)
    await clock.until_waiting_for(RENEWAL)
    assert (await broker.stats("q")).scheduled == 0
    assert called == []
    assert (leader.leads, follower.leads) == (True, False)


async def test_a_renewal_under_way_does_not_keep_the_lead(
    open_broker: OpenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await open_broker(), await open_broker()
    await leader.lead()
    engine = leader._engine
    read = engine.documents

    async def read_then_renew(kind: str, now: int | None = None) -> tuple[int, list[Document]]:
        """What a renewal does that was cancelled too late."""
        found = await read(kind, now)
        monkeypatch.undo()
        await leader.lead()
        return found

    monkeypatch.setattr(engine, "documents", read_then_renew)
    await leader.stop_duties()
    await follower.lead()
    assert follower.leads
