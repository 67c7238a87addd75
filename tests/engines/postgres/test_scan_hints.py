"""Claims over many dead index entries, as under an old snapshot: they skip these once and miss no job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest

from dayjob import Broker, BrokerConfig, Job, JobState, NewJob
from dayjob.engines.postgres import claim as claim_module
from dayjob.engines.postgres.claim import START, Position, ScanHints
from dayjob.testing import ManualClock
from tests.support.arrange import KEEP_ALL, claim_one
from tests.support.servers.postgres import with_options
from tests.support.servers.private_postgres import PrivateServer, private_server
from tests.support.workers import until, with_timeout

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)
HOUR = 3600.0
DEFAULT = claim_module.WASTED_BLOCKS

BATCH = 100
WASTEFUL = 6
JOBS = 4000


class Watched(ScanHints):
    """Records how many index blocks each claim read, and where each started."""

    def __init__(self) -> None:
        super().__init__()
        watched.append(self)
        self.reads: list[int] = []
        self.starts: list[Position] = []
        self.seen_pending = asyncio.Event()

    def positions(self, queues: Sequence[str]) -> list[Position]:
        found = super().positions(queues)
        self.starts += found
        return found

    def update(self, rows: Sequence[Any], seconds: float) -> None:
        if rows:
            self.reads.append(rows[-1][-1])
        super().update(rows, seconds)

    def job_pending(self, queue: str, position: Position) -> None:
        super().job_pending(queue, position)
        self.seen_pending.set()

    @property
    def engaged(self) -> bool:
        return any(position != START for position in self.starts[-1:])


watched: list[Watched] = []


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint is set early, and never expires."""
    monkeypatch.setattr(claim_module, "WASTED_BLOCKS", WASTEFUL)
    monkeypatch.setattr(claim_module, "SHORTEST", HOUR)
    monkeypatch.setattr("dayjob.engines.postgres.engine.ScanHints", Watched)
    watched.clear()


@pytest.fixture
async def server() -> AsyncIterator[PrivateServer]:
    """A server without other snapshots."""
    async with private_server(autovacuum="off") as server:
        yield server


@pytest.fixture
async def broker(server: PrivateServer) -> AsyncIterator[Broker]:
    async with Broker(with_options(server.url, poll="1000"), config=QUIET) as broker:
        yield broker


@pytest.fixture
def hints(broker: Broker) -> Watched:
    """The scan hints of the broker."""
    return watched[0]


@pytest.fixture
async def snapshot(server: PrivateServer, broker: Broker) -> AsyncIterator[None]:
    """A long transaction of another client."""
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await connection.execute("SELECT 1")
        yield


async def fill(broker: Broker, count: int = JOBS) -> list[str]:
    return [each.id for each in await broker.enqueue_many([NewJob("q")] * count)]


async def drain(broker: Broker, count: int) -> list[Job]:
    """Claim that many, batch by batch, without settling."""
    jobs: list[Job] = []
    while len(jobs) < count:
        jobs += await broker.claim("q", limit=min(BATCH, count - len(jobs)))
    return jobs


async def test_dead_entries_are_skipped_once(broker: Broker, hints: Watched, snapshot: None) -> None:
    enqueued = await fill(broker)
    jobs = await drain(broker, JOBS)
    assert [job.id for job in jobs] == enqueued
    assert hints.engaged
    assert max(hints.reads) <= 2 * WASTEFUL, "nearly every scan starts after the dead entries"
    assert await broker.claim("q") == []


async def test_with_few_dead_entries_there_is_no_hint(
    broker: Broker, hints: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_module, "WASTED_BLOCKS", DEFAULT)
    enqueued = await fill(broker)
    jobs = await drain(broker, JOBS)
    assert [job.id for job in jobs] == enqueued
    assert set(hints.starts) == {START}


async def test_without_hints_every_claim_reads_the_dead_entries(
    broker: Broker, hints: Watched, snapshot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The baseline of the other tests."""
    monkeypatch.setattr(claim_module, "WASTED_BLOCKS", JOBS)
    await fill(broker)
    await drain(broker, JOBS - BATCH)
    assert set(hints.starts) == {START}
    assert max(hints.reads) > 3 * WASTEFUL


async def engage(broker: Broker, hints: Watched) -> list[Job]:
    """Claim half of many jobs, so that there is a hint."""
    await fill(broker)
    jobs = await drain(broker, JOBS // 2)
    assert hints.engaged
    return jobs


async def next_ids(broker: Broker, count: int) -> list[str]:
    return [job.id for job in await broker.claim("q", limit=count)]


async def test_a_retry_is_claimed_in_its_order(broker: Broker, hints: Watched, snapshot: None) -> None:
    jobs = await engage(broker, hints)
    assert await broker.nack(jobs[7], "no good", delay=0) is JobState.PENDING
    await broker.release(jobs[3])
    first, second, third = await next_ids(broker, 3)
    assert [first, second] == [jobs[3].id, jobs[7].id]
    assert third > jobs[-1].id


async def test_a_requeued_job_is_claimed_in_its_order(broker: Broker, hints: Watched, snapshot: None) -> None:
    jobs = await engage(broker, hints)
    await broker.dead_letter(jobs[5], "no good")
    assert (await next_ids(broker, 1))[0] > jobs[-1].id
    assert hints.engaged
    assert await broker.requeue(jobs[5].id)
    assert await next_ids(broker, 1) == [jobs[5].id]


async def test_a_job_that_becomes_due_is_claimed_in_its_order(
    broker: Broker, hints: Watched, snapshot: None
) -> None:
    jobs = await engage(broker, hints)
    await broker.snooze(jobs[5], HOUR)
    await broker.reschedule(jobs[5].id, run_at=jobs[5].enqueued_at)
    assert await next_ids(broker, 1) == [jobs[5].id]


async def test_an_urgent_job_is_claimed_first(broker: Broker, hints: Watched, snapshot: None) -> None:
    await engage(broker, hints)
    urgent = await broker.enqueue("q", priority=1)
    assert await next_ids(broker, 1) == [urgent.id]


async def test_an_urgent_job_of_another_process_is_claimed_first(
    broker: Broker, hints: Watched, snapshot: None, server: PrivateServer
) -> None:
    jobs = await engage(broker, hints)
    listening = "SELECT FROM pg_stat_activity WHERE state = 'idle' AND query ~ '^LISTEN'"

    async def listens() -> bool:
        return len(await server.fetch(listening)) == 1

    await until(listens)
    async with Broker(server.url, config=QUIET) as other:
        hints.seen_pending.clear()
        urgent = await other.enqueue("q", priority=1)
        await with_timeout(hints.seen_pending.wait())
        assert await next_ids(broker, 1) == [urgent.id]
        await drain(broker, BATCH)
        await broker.dead_letter(jobs[5], "no good")
        hints.seen_pending.clear()
        await other.requeue(jobs[5].id)
        await with_timeout(hints.seen_pending.wait())
        assert await next_ids(broker, 1) == [jobs[5].id]


async def test_a_claim_that_finds_too_few_jobs_scans_from_the_start(
    broker: Broker, hints: Watched, snapshot: None, server: PrivateServer
) -> None:
    """A job returned before the hint, without a notification."""
    jobs = await engage(broker, hints)
    await server.fetch(
        "UPDATE dayjob.jobs SET state = 'pending', lease_expires_at = NULL WHERE id = %s", jobs[5].id
    )
    assert jobs[5].id not in await next_ids(broker, BATCH)
    left = JOBS // 2 - BATCH
    found = await next_ids(broker, left + 1)
    assert len(found) == left + 1
    assert found[-1] == jobs[5].id
    assert await broker.claim("q") == []


async def test_each_queue_has_its_own_hint(broker: Broker, hints: Watched, snapshot: None) -> None:
    await engage(broker, hints)
    others = [each.id for each in await broker.enqueue_many([NewJob("r")] * 10)]
    claimed = await broker.claim(["r", "q"], limit=12)
    assert [job.queue for job in claimed] == ["r"] * 10 + ["q"] * 2
    assert [job.id for job in claimed[:10]] == others


async def test_a_resumed_queue_is_scanned_from_the_start(
    broker: Broker, hints: Watched, snapshot: None
) -> None:
    jobs = await engage(broker, hints)
    await broker.pause("q")
    await broker.resume("q")
    hints.starts.clear()
    assert (await claim_one(broker)).id > jobs[-1].id
    assert hints.starts == [START]


# The hints themselves.


def row(queue: str, priority: int, id: int, read: int) -> tuple[Any, ...]:
    """The columns of a row of ``claim.sql`` that hints use."""
    return (id.to_bytes(16, "big"), queue, None, None, None, None, priority, read)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(claim_module, "SYSTEM", clock)
    monkeypatch.setattr(claim_module, "SHORTEST", 1.0)
    return clock


@pytest.mark.parametrize(("seconds", "held"), [(0.001, 1.0), (0.5, 10.0)])
def test_a_hint_expires(clock: ManualClock, seconds: float, held: float) -> None:
    known = ScanHints()
    known.update([row("q", 5, 7, WASTEFUL + 2)], seconds)
    position = (5, (7).to_bytes(16, "big"))
    clock.advance(held - 0.1)
    assert known.positions(["q"]) == [position]
    known.update([row("q", 5, 8, 1)], seconds)
    clock.advance(0.1)
    assert known.positions(["q"]) == [START], "moving it does not extend it"


def test_a_hint_is_set_only_after_a_wasteful_scan(clock: ManualClock) -> None:
    known = ScanHints()
    known.update([row("q", 5, 7, WASTEFUL)], 0.001)
    known.update([], 0.001)
    assert known.positions(["q", "r"]) == [START, START]
    assert not known.drop(["q", "r"])


def test_only_a_job_before_the_hint_drops_it(clock: ManualClock) -> None:
    known = ScanHints()
    known.update([row("q", 5, 7, WASTEFUL + 2)], 0.001)
    known.job_pending("q", (5, (8).to_bytes(16, "big")))
    known.job_pending("r", START)
    assert known.positions(["q"]) != [START]
    known.job_pending("q", (4, (9).to_bytes(16, "big")))
    assert known.positions(["q"]) == [START]
    known.update([row("q", 5, 7, WASTEFUL + 2)], 0.001)
    assert known.drop(["r", "q"])
    known.update([row("q", 5, 7, WASTEFUL + 2)], 0.001)
    known.drop_all()
    assert known.positions(["q"]) == [START]
