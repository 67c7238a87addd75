"""The worker registry: live workers, workers declared dead, and the fate of a dead worker's jobs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from signal import SIGSTOP
from subprocess import Popen
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import Broker, BrokerConfig, Closed, InvalidState, JobState, LeaseLost, NewJob
from dayjob.broker.worker_registry import KIND, Member, next_beat
from dayjob.engines.base import DocumentWrite
from dayjob.runtime.process import started
from tests.support.arrange import OpenBroker, claim_one, record
from tests.support.observe import ids
from tests.support.registered_workers import MEMBER, elsewhere
from tests.support.staging import Gate, Stage
from tests.support.waiting import WatchedClock, with_timeout

GONE = replace(MEMBER, id="gone", process_started="0")
"""A worker whose pid now belongs to another process."""


async def names(broker: Broker) -> list[str]:
    return [worker.id for worker in await broker.workers()]


async def documents(broker: Broker) -> list[str]:
    return [document.name for document in (await broker._engine.documents(KIND))[1]]


# Register, heartbeat, deregister.


async def test_a_worker_is_listed_with_its_registered_fields(
    broker: Broker, open_broker: OpenBroker, clock: WatchedClock
) -> None:
    begun = clock.time
    member = await broker.register(replace(MEMBER, id="w-1", queues=("a", "b"), tasks=("t", "u")))
    clock.advance(4)
    await broker.beat(member, running=7)
    [worker] = await (await open_broker()).workers()
    assert (worker.id, worker.name, worker.app, worker.host, worker.version) == (
        "w-1",
        "w",
        "app",
        "host",
        "1.0",
    )
    assert (worker.pid, worker.slots, worker.running) == (MEMBER.pid, 10, 7)
    assert (worker.queues, worker.tasks) == (("a", "b"), ("t", "u"))
    assert (worker.started, worker.seen) == (begun, begun + timedelta(seconds=4))


async def test_workers_register_and_deregister(broker: Broker) -> None:
    first = await broker.register(replace(MEMBER, id="1"))
    await broker.register(replace(MEMBER, id="2"))
    assert await names(broker) == ["1", "2"]
    await broker.deregister(first)
    await broker.deregister(first)
    assert await names(broker) == ["2"]


async def test_a_worker_with_heartbeats_stays_listed(broker: Broker, clock: WatchedClock) -> None:
    member: Member | None = await broker.register(MEMBER)
    for number in range(20):
        clock.advance(14)
        assert await broker.reclaim() == 0
        assert member is not None
        member = await broker.beat(member, number)
    assert (await broker.workers())[0].running == 19


async def test_a_silent_worker_is_not_listed(broker: Broker, clock: WatchedClock) -> None:
    await broker.register(MEMBER)
    clock.advance(15)
    assert await names(broker) == ["w-1"]
    clock.advance(0.001)
    assert await names(broker) == []


async def test_a_heartbeat_whose_reply_was_lost_does_no_harm(broker: Broker, clock: WatchedClock) -> None:
    member = await broker.register(MEMBER)
    assert await broker.beat(member, 1) is not None  # Written, but the reply was lost.
    clock.advance(5)
    again = await broker.beat(member, 2)
    assert again is not None
    assert (await broker.workers())[0].running == 2
    assert await broker.beat(again, 3) is not None


async def test_the_heartbeats_of_several_workers_are_stored_in_one_commit(
    broker: Broker, clock: WatchedClock
) -> None:
    members = [await broker.register(replace(MEMBER, id=id)) for id in ("1", "2", "3")]
    clock.advance(5)
    beats = [next_beat(member, running) for running, member in enumerate(members)]
    writes = Stage(broker, "compare_and_set")
    assert await broker.store_beats([beat for _, beat in beats])
    assert len(writes.calls) == 1
    workers = await broker.workers()
    assert [(worker.id, worker.running) for worker in workers] == [("1", 0), ("2", 1), ("3", 2)]
    assert {worker.seen for worker in workers} == {clock.time}
    assert await broker.beat(beats[0][0], 7) is not None, "each worker continues from its own document"


async def test_no_heartbeat_of_a_batch_is_stored_if_one_of_the_workers_was_declared_dead(
    broker: Broker, clock: WatchedClock
) -> None:
    alive, dead = [await broker.register(replace(MEMBER, id=id)) for id in ("alive", "dead")]
    clock.advance(16)
    assert await broker.beat(alive, 1) is not None
    await broker.reclaim()
    fresh, beat = next_beat(replace(alive, running=1, beat=1), 2)
    assert not await broker.store_beats([beat, next_beat(dead, 2)[1]])
    assert [(worker.id, worker.running) for worker in await broker.workers()] == [("alive", 1)]
    assert await broker.beat(replace(alive, running=1, beat=1), 2) == fresh
    assert await broker.beat(dead, 2) is None


async def test_a_worker_is_deregistered_though_its_last_heartbeat_is_stored_meanwhile(
    broker: Broker, open_broker: OpenBroker
) -> None:
    """Another process stores the heartbeats of a tree."""
    member = await broker.register(MEMBER)
    other = await open_broker()
    removal = Stage(broker, "compare_and_set")
    removal.before = Gate()
    leaving = asyncio.ensure_future(broker.deregister(member))
    await removal.before.reached()
    assert await other.store_beats([next_beat(member, 0)[1]])
    removal.before.open()
    await with_timeout(leaving)
    assert await documents(broker) == []


# Declared dead.


@pytest.fixture
async def silent(broker: Broker, clock: WatchedClock) -> Member:
    """A worker with two jobs, one on its last attempt, without a heartbeat for too long."""
    member = await broker.register(MEMBER)
    await broker.enqueue("q", b"again", max_attempts=3)
    await broker.enqueue("q", b"last", max_attempts=1)
    await broker.enqueue("other", b"not its own")
    assert len(await broker.claim("q", limit=2, lease=3600, worker=member.id)) == 2
    await broker.claim("other", lease=3600, worker="w-2")
    clock.advance(16)
    return member


async def test_the_jobs_of_a_silent_worker_are_reclaimed_and_counted(
    broker: Broker, silent: Member, clock: WatchedClock
) -> None:
    jobs = await broker.jobs("q")
    assert await broker.reclaim() == 2
    again, last = [await record(broker, job.id) for job in jobs]
    assert (again.state, again.attempts, again.last_error) == (JobState.PENDING, 1, "worker gone")
    assert (last.state, last.attempts, last.last_error) == (JobState.DEAD, 1, "worker gone")
    assert again.errors[0].worker == silent.id
    assert (await broker.stats("other")).running == 1
    assert (await documents(broker), await broker.reclaim()) == ([], 0)
    for job in jobs:
        with pytest.raises(LeaseLost):
            await broker.ack(job)
    assert (await claim_one(broker)).attempts == 2


async def test_a_heartbeat_after_the_removal_returns_none(broker: Broker, silent: Member) -> None:
    await broker.reclaim()
    assert await broker.beat(silent, 2) is None
    assert await names(broker) == []
    await broker.register(replace(silent, id="w-1-again", beat=0))
    assert await names(broker) == ["w-1-again"]


async def test_a_heartbeat_between_mark_and_removal_returns_none(broker: Broker, silent: Member) -> None:
    await broker._session.worker_registry.mark_dead(True)
    assert await broker.beat(silent, 2) is None
    assert await names(broker) == []
    assert await broker.reclaim() == 2


async def test_after_a_crash_between_mark_and_removal_another_broker_reclaims(
    broker: Broker, open_broker: OpenBroker, silent: Member, clock: WatchedClock
) -> None:
    await broker._session.worker_registry.mark_dead(True)
    assert (await documents(broker), await names(broker)) == ([silent.id], [])
    other = await open_broker()
    assert await other.reclaim(trust_silence=False) == 2
    assert await documents(broker) == []


async def test_after_a_failed_reclaim_the_next_one_reclaims(
    broker: Broker, silent: Member, clock: WatchedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> int:
        raise InvalidState("crashed")

    monkeypatch.setattr(broker._engine, "reclaim", fails)
    with pytest.raises(InvalidState):
        await broker.reclaim()
    monkeypatch.undo()
    assert await documents(broker) == [silent.id]
    assert await broker.reclaim() == 2


async def test_a_heartbeat_just_before_the_mark_wins(
    broker: Broker, silent: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_and_set = broker._engine.compare_and_set

    async def overtaken(writes: Any, *rest: Any, **options: Any) -> bool:
        monkeypatch.undo()
        assert await broker.beat(silent, 2) is not None
        return await compare_and_set(writes, *rest, **options)

    monkeypatch.setattr(broker._engine, "compare_and_set", overtaken)
    assert await broker.reclaim() == 0
    assert await names(broker) == [silent.id]


async def test_silence_during_an_outage_does_not_declare_a_worker_dead(
    broker: Broker, silent: Member
) -> None:
    assert await broker.reclaim(trust_silence=False) == 0
    assert await broker.beat(silent, 2) is not None


async def test_a_slow_read_of_the_registry_declares_no_worker_dead(
    broker: Broker, silent: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage was away during the read: the time of the read does not count as silence."""
    registry = broker._session.worker_registry
    monkeypatch.setattr(registry, "_clock", _Elapsed(count(0, 2)))
    assert await broker.reclaim() == 0, "the worker was not silent two seconds ago"
    monkeypatch.setattr(registry, "_clock", _Elapsed(count(0, 0.5)))
    assert await broker.reclaim() == 2


class _Elapsed:
    def __init__(self, seconds: Any) -> None:
        self.elapsed = lambda: next(seconds)


async def test_concurrent_brokers_reclaim_each_job_once(
    open_broker: OpenBroker, broker: Broker, silent: Member
) -> None:
    brokers = [await open_broker() for _ in range(4)]
    totals = await with_timeout(asyncio.gather(*(each.reclaim() for each in brokers)))
    assert sum(totals) == 2
    assert [len(job.errors) for job in await broker.jobs("q")] == [1, 1]


async def test_a_process_that_died_on_this_machine_is_declared_dead_at_once(broker: Broker) -> None:
    await broker.register(GONE)
    await broker.register(MEMBER)
    await broker.enqueue("q")
    job = await claim_one(broker, worker="gone")
    assert await broker.reclaim(trust_silence=False) == 1
    assert (await record(broker, job.id)).state is JobState.PENDING
    assert await names(broker) == ["w-1"]


@pytest.fixture
def child(broker: Broker) -> Iterator[Popen[bytes]]:
    """Another process of this machine."""
    if not broker.capabilities.multi_process:
        pytest.skip("only one process can open the storage")
    with Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def worker_in(child: Popen[bytes]) -> Member:
    return replace(MEMBER, id="busy", pid=child.pid, process_started=started(child.pid))


async def test_a_silent_worker_whose_process_lives_on_this_machine_has_more_time(
    broker: Broker, clock: WatchedClock, child: Popen[bytes]
) -> None:
    """Its handlers may use all of the CPU."""
    await broker.register(worker_in(child))
    await broker.enqueue("q")
    job = await claim_one(broker, worker="busy", lease=3600)
    for trust_silence in (False, True):
        clock.advance(20)
        assert await broker.reclaim(trust_silence=trust_silence) == 0
        assert await names(broker) == ["busy"]
    clock.advance(100)
    assert await names(broker) == []
    assert await broker.reclaim() == 1, "it hangs"
    assert (await record(broker, job.id)).state is JobState.PENDING


async def test_a_silent_worker_whose_process_is_stopped_is_declared_dead(
    broker: Broker, clock: WatchedClock, child: Popen[bytes]
) -> None:
    await broker.register(worker_in(child))
    child.send_signal(SIGSTOP)
    await asyncio.to_thread(os.waitpid, child.pid, os.WUNTRACED)
    clock.advance(16)
    await broker.reclaim()
    assert await documents(broker) == []


async def test_a_worker_on_another_machine_is_declared_dead_only_by_its_silence(
    broker: Broker, clock: WatchedClock
) -> None:
    await broker.register(elsewhere("far", process_started="0"))
    if broker.capabilities.multi_process:
        await broker.reclaim()
        assert await names(broker) == ["far"]
        clock.advance(16)
    await broker.reclaim()  # Without ``multi_process`` no other worker can be alive.
    assert await documents(broker) == []


async def test_a_worker_may_have_its_own_dead_after(broker: Broker, clock: WatchedClock) -> None:
    await broker.register(replace(MEMBER, id="slow", dead_after=60_000_000))
    await broker.register(MEMBER)
    clock.advance(30)
    await broker.reclaim()
    assert await names(broker) == ["slow"]


async def test_more_jobs_than_one_batch_are_reclaimed(broker: Broker, clock: WatchedClock) -> None:
    member = await broker.register(MEMBER)
    for _ in range(3):
        await broker.enqueue_many([NewJob("q")] * 500)
    claimed = await broker.claim("q", limit=1500, worker=member.id, lease=3600)
    assert len(claimed) == 1500
    clock.advance(20)
    assert await with_timeout(broker.reclaim()) == 1500
    assert (await broker.stats("q")).pending == 1500


async def test_claims_are_reclaimed_by_exact_worker_id(broker: Broker) -> None:
    await broker.enqueue("q")
    job = await claim_one(broker, worker="w-1")
    assert await broker.reclaim_from([]) == 0
    assert await broker.reclaim_from(["w", "w-", "w-11", "W-1"]) == 0
    assert await broker.reclaim_from(["w-1"]) == 1
    assert ids(await broker.jobs(state=JobState.PENDING)) == [job.id]


async def test_an_undecodable_document_is_ignored_and_removed(
    broker: Broker, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.register(MEMBER)
    await broker._engine.compare_and_set([DocumentWrite(KIND, "bad", None, b"\xc1")])
    assert await names(broker) == ["w-1"]
    assert "worker 'bad' can't be decoded" in caplog.text
    assert await documents(broker) == ["w-1"]


async def test_a_closed_broker_raises_closed(broker: Broker) -> None:
    await broker.close()
    for call in (
        broker.workers(), broker.register(MEMBER), broker.beat(MEMBER, 0), broker.deregister(MEMBER),
        broker.reclaim(), broker.reclaim_from(["w"]), broker.lead(), broker.explain("x"),
    ):  # fmt: skip
        with pytest.raises(Closed):
            await call


# With duties.


async def test_the_reclaim_duty_takes_the_jobs_of_a_silent_worker(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    config = BrokerConfig(dead_after=2.4, promote_interval=7, reap_interval=7, sweep_interval=7, duties=True)
    busy = await open_broker(config)
    await busy.register(replace(MEMBER, dead_after=2_400_000))
    await busy.enqueue("q")
    job = await claim_one(busy, worker=MEMBER.id, lease=3600)
    for _ in range(4):
        await clock.until_waiting_for(0.8)
        assert (await record(busy, job.id)).state is JobState.RUNNING
        clock.advance(0.8)
    await clock.until_waiting_for(0.8)
    assert (await record(busy, job.id)).state is JobState.PENDING
