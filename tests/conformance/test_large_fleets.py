"""In a large fleet a new job wakes few waiting claims. No job is left: they wake further ones."""

from __future__ import annotations

import asyncio

import pytest

from dayjob import Broker, NewJob
from dayjob.broker.worker_registry import Member
from dayjob.duties.duties import Rewake
from dayjob.runtime.signals import FEW
from tests.support.arrange import OpenBroker
from tests.support.engines import EngineUnderTest
from tests.support.staging import Stage
from tests.support.workers import until, with_timeout

HOUR = 3600.0
FLEET = 100


@pytest.fixture(autouse=True)
async def shared(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    if not broker.capabilities.multi_process:
        pytest.skip("the engine allows one process only")
    monkeypatch.setattr("dayjob.engines.postgres.notifier.CHECK", HOUR)


def member(number: int, running: int = 0, queues: tuple[str, ...] = ("q",)) -> Member:
    return Member(
        id=f"w{number}", name="w", app="a", host="h", machine="another machine", pid=1, process_started="0",
        version="1", queues=queues, tasks=(), schedules=(), slots=2, dead_after=15_000_000, running=running,
    )  # fmt: skip


async def fleet_of(broker: Broker, *members: Member) -> None:
    """Register the members, and let the leader count them."""
    for each in members:
        await broker.register(each)
    await broker.lead()
    await broker.reclaim(trust_silence=False)
    await broker.lead()


async def test_followers_read_the_number_of_waiting_workers_from_the_lead(
    broker: Broker, open_broker: OpenBroker
) -> None:
    waiting = [member(number) for number in range(FEW)]
    busy = [member(number + 100, running=2) for number in range(FEW)]
    await fleet_of(broker, *waiting, *busy, member(200, queues=("r",)))
    other = await open_broker()
    await other.lead()
    assert other._engine.signals.waiting("q") == 0, "not many"
    await fleet_of(broker, member(300, queues=("q", "r")))
    for each in (broker, other):
        await each.lead()
        assert each._engine.signals.waiting("q") == FEW + 1
        assert each._engine.signals.waiting("r") == 0, "not many"


async def test_workers_of_all_queues_wait_for_each_queue(broker: Broker) -> None:
    await fleet_of(broker, *(member(number, queues=()) for number in range(FEW + 1)))
    assert broker._engine.signals.waiting("any") == FEW + 1


def in_a_large_fleet(broker: Broker) -> None:
    broker._session.election._waiting = {"q": FLEET}


@pytest.mark.parametrize("each", [1, 3])
async def test_every_job_of_a_burst_is_claimed_though_few_claims_are_woken_at_a_time(
    broker: Broker, open_broker: OpenBroker, each: int
) -> None:
    claimers = [await open_broker() for _ in range(6)]
    for claimer in (broker, *claimers):
        in_a_large_fleet(claimer)
    claiming = [asyncio.create_task(claimer.claim("q", limit=each, wait=HOUR)) for claimer in claimers]
    await until(lambda: all(claimer._session.waiting_claims.by_queue for claimer in claimers))
    await broker.enqueue_many([NewJob("q")] * (each * len(claimers)))
    rewake = Rewake(broker._session.storage, broker._session.election)

    async def all_claimed() -> bool:
        await rewake.run_once()  # The leader does so each second.
        return all(task.done() for task in claiming)

    await until(all_claimed)
    assert [len(await task) for task in claiming] == [each] * len(claimers)


async def test_a_woken_claim_that_is_full_wakes_others(
    broker: Broker, open_broker: OpenBroker, engine: EngineUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.name == "sqlite":
        pytest.skip("a commit wakes every process")
    claimer = await open_broker()
    monkeypatch.setattr("dayjob.runtime.entropy.fraction", lambda: 0.0)
    woken: list[list[str]] = []
    monkeypatch.setattr(claimer._engine, "wake_others", woken.append)
    for waiting, expected in ((0, []), (FLEET, [["q"]])):
        claimer._session.election._waiting = {"q": waiting}
        claiming = asyncio.create_task(claimer.claim("q", limit=2, wait=HOUR))
        await until(lambda: claimer._session.waiting_claims.by_queue)
        await broker.enqueue_many([NewJob("q")] * 2)
        assert len(await with_timeout(claiming)) == 2
        assert woken == expected, "a small fleet was woken as a whole"
    await broker.enqueue_many([NewJob("q")] * 2)
    assert len(await claimer.claim("q", limit=2, wait=HOUR)) == 2
    assert woken == [["q"]], "this claim did not wait"


async def test_the_leader_repeats_the_signal_of_jobs_that_stay_pending(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewake = Rewake(broker._session.storage, broker._session.election)
    woken: list[list[str]] = []
    monkeypatch.setattr(broker._engine, "wake_others", woken.append)
    reads = Stage(broker, "pending_queues")
    await broker.enqueue_many([NewJob("q"), NewJob("r")])
    assert await rewake.run_once() == 5.0
    assert reads.calls == [], "a small fleet needs no look"
    in_a_large_fleet(broker)
    assert await rewake.run_once() == 1.0
    assert woken == [], "the jobs may be new"
    await rewake.run_once()
    assert woken == [["q"]], "few workers wait for the other queue"
