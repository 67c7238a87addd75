"""Claims where much is dead, as under somebody's snapshot: they step over it once, and overlook nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest

from dayjob import Broker, BrokerConfig, Job, JobState, NewJob
from dayjob.engines.postgres import cursors
from dayjob.engines.postgres.cursors import START, Cursors, Position
from dayjob.testing import ManualClock
from tests.support.arrange import KEEP_ALL, claim_one
from tests.support.servers.postgres import with_options
from tests.support.servers.private import PrivateServer, private_server
from tests.support.workers import until, within

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)
HOUR = 3600.0
AS_IT_IS = cursors.WASTEFUL

BATCH = 100
WASTEFUL = 6
JOBS = 4000


class Watched(Cursors):
    """Tells how many blocks of the index each claim read, and from where the claims looked."""

    def __init__(self) -> None:
        super().__init__()
        watched.append(self)
        self.reads: list[int] = []
        self.positions: list[Position] = []
        self.arrival = asyncio.Event()

    def of(self, queues: Sequence[str]) -> list[Position]:
        found = super().of(queues)
        self.positions += found
        return found

    def note(self, rows: Sequence[Any], seconds: float) -> None:
        if rows:
            self.reads.append(rows[-1][-1])
        super().note(rows, seconds)

    def arrived(self, queue: str, position: Position) -> None:
        super().arrived(queue, position)
        self.arrival.set()

    @property
    def engaged(self) -> bool:
        return any(position != START for position in self.positions[-1:])


watched: list[Watched] = []


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor pays early, and time alone never drops it."""
    monkeypatch.setattr(cursors, "WASTEFUL", WASTEFUL)
    monkeypatch.setattr(cursors, "SHORTEST", HOUR)
    monkeypatch.setattr("dayjob.engines.postgres.engine.Cursors", Watched)
    watched.clear()


@pytest.fixture
async def server() -> AsyncIterator[PrivateServer]:
    """Where nobody holds a snapshot but who is told to."""
    async with private_server(autovacuum="off") as server:
        yield server


@pytest.fixture
async def broker(server: PrivateServer) -> AsyncIterator[Broker]:
    async with Broker(with_options(server.url, poll="1000"), config=QUIET) as broker:
        yield broker


@pytest.fixture
def its(broker: Broker) -> Watched:
    """The cursors of the broker."""
    return watched[0]


@pytest.fixture
async def snapshot(server: PrivateServer, broker: Broker) -> AsyncIterator[None]:
    """Somebody's long transaction."""
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await connection.execute("SELECT 1")
        yield


async def fill(broker: Broker, count: int = JOBS) -> list[str]:
    return [answer.id for answer in await broker.enqueue_many([NewJob("q")] * count)]


async def drain(broker: Broker, count: int) -> list[Job]:
    """Claim that many, batch by batch, and settle none."""
    jobs: list[Job] = []
    while len(jobs) < count:
        jobs += await broker.claim("q", limit=min(BATCH, count - len(jobs)))
    return jobs


async def test_what_is_dead_is_stepped_over_once(broker: Broker, its: Watched, snapshot: None) -> None:
    enqueued = await fill(broker)
    jobs = await drain(broker, JOBS)
    assert [job.id for job in jobs] == enqueued
    assert its.engaged
    assert max(its.reads) <= 2 * WASTEFUL, "each look but a few begins behind the dead"
    assert await broker.claim("q") == []


async def test_while_little_is_dead_there_is_no_cursor(
    broker: Broker, its: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "WASTEFUL", AS_IT_IS)
    enqueued = await fill(broker)
    jobs = await drain(broker, JOBS)
    assert [job.id for job in jobs] == enqueued
    assert set(its.positions) == {START}


async def test_without_cursors_it_would_read_the_dead_again_and_again(
    broker: Broker, its: Watched, snapshot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the others are measured against."""
    monkeypatch.setattr(cursors, "WASTEFUL", JOBS)
    await fill(broker)
    await drain(broker, JOBS - BATCH)
    assert set(its.positions) == {START}
    assert max(its.reads) > 3 * WASTEFUL


async def engage(broker: Broker, its: Watched) -> list[Job]:
    """Claim half of many jobs, so that there is a cursor."""
    await fill(broker)
    jobs = await drain(broker, JOBS // 2)
    assert its.engaged
    return jobs


async def next_ids(broker: Broker, count: int) -> list[str]:
    return [job.id for job in await broker.claim("q", limit=count)]


async def test_a_retry_keeps_its_place(broker: Broker, its: Watched, snapshot: None) -> None:
    jobs = await engage(broker, its)
    assert await broker.nack(jobs[7], "no good", delay=0) is JobState.PENDING
    await broker.release(jobs[3])
    first, second, third = await next_ids(broker, 3)
    assert [first, second] == [jobs[3].id, jobs[7].id]
    assert third > jobs[-1].id


async def test_a_requeued_job_keeps_its_place(broker: Broker, its: Watched, snapshot: None) -> None:
    jobs = await engage(broker, its)
    await broker.dead_letter(jobs[5], "no good")
    assert (await next_ids(broker, 1))[0] > jobs[-1].id
    assert its.engaged
    assert await broker.requeue(jobs[5].id)
    assert await next_ids(broker, 1) == [jobs[5].id]


async def test_a_job_that_falls_due_keeps_its_place(broker: Broker, its: Watched, snapshot: None) -> None:
    jobs = await engage(broker, its)
    await broker.snooze(jobs[5], HOUR)
    await broker.reschedule(jobs[5].id, run_at=jobs[5].enqueued_at)
    assert await next_ids(broker, 1) == [jobs[5].id]


async def test_a_job_that_goes_before_the_others_is_found_first(
    broker: Broker, its: Watched, snapshot: None
) -> None:
    await engage(broker, its)
    urgent = await broker.enqueue("q", priority=1)
    assert await next_ids(broker, 1) == [urgent.id]


async def test_a_job_that_another_process_puts_first_is_found_first(
    broker: Broker, its: Watched, snapshot: None, server: PrivateServer
) -> None:
    jobs = await engage(broker, its)
    listening = "SELECT FROM pg_stat_activity WHERE state = 'idle' AND query ~ '^LISTEN'"

    async def listens() -> bool:
        return len(await server.fetch(listening)) == 1

    await until(listens)
    async with Broker(server.url, config=QUIET) as other:
        its.arrival.clear()
        urgent = await other.enqueue("q", priority=1)
        await within(its.arrival.wait())
        assert await next_ids(broker, 1) == [urgent.id]
        await drain(broker, BATCH)
        await broker.dead_letter(jobs[5], "no good")
        its.arrival.clear()
        await other.requeue(jobs[5].id)
        await within(its.arrival.wait())
        assert await next_ids(broker, 1) == [jobs[5].id]


async def test_a_claim_that_would_find_too_little_looks_from_the_start(
    broker: Broker, its: Watched, snapshot: None, server: PrivateServer
) -> None:
    """A job that came back behind the cursor, and nobody told."""
    jobs = await engage(broker, its)
    await server.fetch(
        "UPDATE dayjob.jobs SET state = 'pending', lease_expires_at = NULL WHERE id = %s", jobs[5].id
    )
    assert jobs[5].id not in await next_ids(broker, BATCH)
    left = JOBS // 2 - BATCH
    found = await next_ids(broker, left + 1)
    assert len(found) == left + 1
    assert found[-1] == jobs[5].id
    assert await broker.claim("q") == []


async def test_each_queue_has_a_cursor_of_its_own(broker: Broker, its: Watched, snapshot: None) -> None:
    await engage(broker, its)
    others = [answer.id for answer in await broker.enqueue_many([NewJob("r")] * 10)]
    claimed = await broker.claim(["r", "q"], limit=12)
    assert [job.queue for job in claimed] == ["r"] * 10 + ["q"] * 2
    assert [job.id for job in claimed[:10]] == others


async def test_a_resumed_queue_is_looked_at_from_its_start(
    broker: Broker, its: Watched, snapshot: None
) -> None:
    jobs = await engage(broker, its)
    await broker.pause("q")
    await broker.resume("q")
    its.positions.clear()
    assert (await claim_one(broker)).id > jobs[-1].id
    assert its.positions == [START]


# The cursors themselves.


def row(queue: str, priority: int, id: int, read: int) -> tuple[Any, ...]:
    """A row of ``claim.sql``, as far as it matters here."""
    return (id.to_bytes(16, "big"), queue, None, None, None, None, priority, read)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(cursors, "SYSTEM", clock)
    monkeypatch.setattr(cursors, "SHORTEST", 1.0)
    return clock


@pytest.mark.parametrize(("seconds", "held"), [(0.001, 1.0), (0.5, 10.0)])
def test_a_cursor_is_dropped_after_a_while(clock: ManualClock, seconds: float, held: float) -> None:
    known = Cursors()
    known.note([row("q", 5, 7, WASTEFUL + 2)], seconds)
    position = (5, (7).to_bytes(16, "big"))
    clock.advance(held - 0.1)
    assert known.of(["q"]) == [position]
    known.note([row("q", 5, 8, 1)], seconds)
    clock.advance(0.1)
    assert known.of(["q"]) == [START], "going on does not make it last longer"


def test_it_takes_waste_to_make_a_cursor(clock: ManualClock) -> None:
    known = Cursors()
    known.note([row("q", 5, 7, WASTEFUL)], 0.001)
    known.note([], 0.001)
    assert known.of(["q", "r"]) == [START, START]
    assert not known.drop(["q", "r"])


def test_only_what_goes_before_the_cursor_drops_it(clock: ManualClock) -> None:
    known = Cursors()
    known.note([row("q", 5, 7, WASTEFUL + 2)], 0.001)
    known.arrived("q", (5, (8).to_bytes(16, "big")))
    known.arrived("r", START)
    assert known.of(["q"]) != [START]
    known.arrived("q", (4, (9).to_bytes(16, "big")))
    assert known.of(["q"]) == [START]
    known.note([row("q", 5, 7, WASTEFUL + 2)], 0.001)
    assert known.drop(["r", "q"])
    known.note([row("q", 5, 7, WASTEFUL + 2)], 0.001)
    known.drop_all()
    assert known.of(["q"]) == [START]
