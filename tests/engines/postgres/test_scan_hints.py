"""Claims over many dead index entries, as under an old snapshot: they skip these and keep the order."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251  A seed makes a failure repeatable.
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest

from dayjob import Broker, BrokerConfig, Job, JobState, NewJob
from dayjob.engines.postgres import claim as claim_module
from dayjob.engines.postgres import scan_hints
from dayjob.engines.postgres.scan_hints import END, FIRST_ID, START, Position, QueueHints, ScanHints
from dayjob.model.settlement import Settlement
from tests.support.arrange import KEEP_ALL, claim_one
from tests.support.servers.postgres import with_options
from tests.support.servers.private_postgres import PrivateServer
from tests.support.workers import until, with_timeout

QUIET = BrokerConfig(duties=False, retention=KEEP_ALL)
HOUR = 3600.0

BATCH = 100
WASTEFUL = 6
JOBS = 4000

FLAT = 10
"""Blocks that a claim may read: some for each range, and for its jobs."""


class Watched(ScanHints):
    """Records how many index blocks each claim with jobs read."""

    def __init__(self) -> None:
        super().__init__()
        watched.append(self)
        self.reads: list[int] = []

    def detect_waste(self, queues: Sequence[str], found: Sequence[Sequence[Any]]) -> None:
        if found:
            self.reads.append(found[-1][-1])
        super().detect_waste(queues, found)

    @property
    def engaged(self) -> bool:
        """Whether claims of the queue leave out a part of it."""
        return any(id > FIRST_ID for hints in self.among(["q"]).values() for id in hints.hidden.values())


watched: list[Watched] = []


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints are given early, cover the present, and are not searched."""
    monkeypatch.setattr(scan_hints, "WASTED_BLOCKS", WASTEFUL)
    monkeypatch.setattr(scan_hints, "GRACE", 0)
    monkeypatch.setattr(claim_module, "SEARCH_INTERVAL", HOUR)
    monkeypatch.setattr("dayjob.engines.postgres.engine.ScanHints", Watched)
    watched.clear()


@pytest.fixture
async def broker(server: PrivateServer) -> AsyncIterator[Broker]:
    async with Broker(with_options(server.url, poll="1000"), config=QUIET) as broker:
        yield broker


@pytest.fixture
def hints(broker: Broker) -> Watched:
    """The scan hints of the broker."""
    return watched[0]


@pytest.fixture
async def other(server: PrivateServer, hints: Watched) -> AsyncIterator[Broker]:
    """Another process, as far as the first one can see. The first one does not listen."""
    async with Broker(server.url, config=QUIET) as other:
        yield other


async def fill(broker: Broker, count: int = JOBS) -> list[str]:
    return [each.id for each in await broker.enqueue_many([NewJob("q")] * count)]


async def drain(broker: Broker, count: int) -> list[Job]:
    """Claim that many, batch by batch, without settling."""
    jobs: list[Job] = []
    while len(jobs) < count:
        jobs += await broker.claim("q", limit=min(BATCH, count - len(jobs)))
    return jobs


async def engage(broker: Broker, hints: Watched) -> list[Job]:
    """Claim half of many jobs, so that there are hints."""
    await fill(broker)
    jobs = await drain(broker, JOBS // 2)
    assert hints.engaged
    hints.reads.clear()
    return jobs


async def next_ids(broker: Broker, count: int) -> list[str]:
    return [job.id for job in await broker.claim("q", limit=count)]


# The cost of a claim.


async def test_dead_entries_are_skipped(broker: Broker, hints: Watched, snapshot: None) -> None:
    enqueued = await fill(broker)
    jobs = await drain(broker, JOBS)
    assert [job.id for job in jobs] == enqueued
    assert hints.engaged
    assert max(hints.reads[-JOBS // BATCH // 2 :]) <= FLAT
    assert await broker.claim("q") == []


async def test_with_few_dead_entries_there_are_no_hints(
    broker: Broker, hints: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_hints, "WASTED_BLOCKS", JOBS)
    enqueued = await fill(broker)
    jobs = await drain(broker, JOBS)
    assert [job.id for job in jobs] == enqueued
    assert not hints


async def test_without_hints_every_claim_reads_the_dead_entries(
    broker: Broker, hints: Watched, snapshot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The baseline of the other tests."""
    monkeypatch.setattr(scan_hints, "WASTED_BLOCKS", JOBS)
    await fill(broker)
    await drain(broker, JOBS - BATCH)
    assert max(hints.reads) > 2 * FLAT


async def test_the_cost_stays_flat_with_retries_and_urgent_jobs(
    broker: Broker, hints: Watched, snapshot: None
) -> None:
    await retry_and_prefer(broker, hints)


async def retry_and_prefer(broker: Broker, hints: Watched) -> None:
    """Claims of a backlog with urgent jobs and retries in between."""
    await engage(broker, hints)
    for _ in range(15):
        urgent = await broker.enqueue("q", priority=1)
        jobs = await broker.claim("q", limit=BATCH)
        assert jobs[0].id == urgent.id
        retried = jobs[7]
        await broker.settle_many([Settlement.nack(retried, "no good", delay=0)])
        assert (await claim_one(broker)).id == retried.id
    assert max(hints.reads) <= FLAT


async def test_the_cost_stays_flat_for_a_worker_that_keeps_up(
    broker: Broker, hints: Watched, snapshot: None
) -> None:
    await engage(broker, hints)
    await drain(broker, JOBS // 2)
    hints.reads.clear()
    for _ in range(JOBS // 50):
        enqueued = await fill(broker, 25)
        assert await next_ids(broker, BATCH) == enqueued
        assert await next_ids(broker, BATCH) == []
    assert max(hints.reads) <= FLAT


async def test_the_cost_stays_flat_while_another_client_keeps_a_write_open(
    broker: Broker, hints: Watched, server: PrivateServer, snapshot: None
) -> None:
    """An open transaction with changes is looked for by its number, so later ones are not read again."""
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        await connection.execute("CREATE TABLE mine ()")
        await retry_and_prefer(broker, hints)


async def test_a_vacuum_ends_the_hints(
    broker: Broker, hints: Watched, server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engage(broker, hints)
    await server.fetch("VACUUM dayjob.jobs")
    monkeypatch.setattr(claim_module, "SEARCH_INTERVAL", 0.02)
    await broker._engine._claimer.close()  # type: ignore[attr-defined]  # The next claim starts a new search.
    await broker.claim("q")
    await until(lambda: not hints)
    assert len(await drain(broker, JOBS // 2 - 1)) == JOBS // 2 - 1


# The order of claims.


async def test_a_retry_is_claimed_in_its_order(broker: Broker, hints: Watched, snapshot: None) -> None:
    jobs = await engage(broker, hints)
    assert await broker.nack(jobs[7], "no good", delay=0) is JobState.PENDING
    await broker.release(jobs[3])
    first, second, third = await next_ids(broker, 3)
    assert [first, second] == [jobs[3].id, jobs[7].id]
    assert third > jobs[-1].id


async def test_a_requeued_job_is_claimed_in_its_order(
    broker: Broker, hints: Watched, other: Broker, snapshot: None
) -> None:
    jobs = await engage(broker, hints)
    await broker.dead_letter(jobs[5], "no good")
    assert (await next_ids(broker, 1))[0] > jobs[-1].id
    assert await other.requeue(jobs[5].id)
    assert await next_ids(broker, 1) == [jobs[5].id]


async def test_a_job_that_becomes_due_is_claimed_in_its_order(
    broker: Broker, hints: Watched, other: Broker, snapshot: None
) -> None:
    jobs = await engage(broker, hints)
    await broker.snooze(jobs[5], 0.05)
    await until(other.promote)
    assert await next_ids(broker, 1) == [jobs[5].id]


async def test_a_rescheduled_job_is_claimed_in_its_order(
    broker: Broker, hints: Watched, other: Broker, snapshot: None
) -> None:
    jobs = await engage(broker, hints)
    await broker.snooze(jobs[5], HOUR)
    await other.reschedule(jobs[5].id, run_at=jobs[5].enqueued_at)
    assert await next_ids(broker, 1) == [jobs[5].id]
    last = (await other.jobs("q", "pending", newest_first=True, limit=1))[0].id
    await other.reschedule(last, priority=1)
    assert await next_ids(broker, 1) == [last]


async def test_a_job_of_an_expired_claim_is_claimed_in_its_order(
    broker: Broker, hints: Watched, other: Broker, snapshot: None
) -> None:
    jobs = await engage(broker, hints)
    await broker.renew(jobs[5], 0.001)
    await until(other.reap)
    assert await next_ids(broker, 1) == [jobs[5].id]


async def test_an_urgent_job_of_another_process_is_claimed_first(
    broker: Broker, hints: Watched, other: Broker, snapshot: None
) -> None:
    await engage(broker, hints)
    for priority in (5, 3, 7):
        urgent = await other.enqueue("q", priority=priority)
        assert await next_ids(broker, 1) == [urgent.id]


async def test_a_job_with_an_old_id_of_another_process_is_claimed_in_its_order(
    broker: Broker, hints: Watched, other: Broker, snapshot: None
) -> None:
    """The clock of its host is late."""
    await engage(broker, hints)
    old = "00000000-0000-7000-8000-000000000001"
    await other.enqueue("q", id=old)
    assert await next_ids(broker, 1) == [old]


async def test_a_job_of_a_transaction_that_commits_late_is_claimed_in_its_order(
    broker: Broker, hints: Watched, server: PrivateServer, snapshot: None
) -> None:
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        enqueued = await broker.enqueue("q", connection=connection)
        await engage(broker, hints)
        assert enqueued.id not in await next_ids(broker, 1)
        await connection.commit()
    assert await next_ids(broker, 1) == [enqueued.id]


async def test_more_late_jobs_than_are_tracked_are_claimed_in_their_order(
    broker: Broker, hints: Watched, other: Broker, snapshot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await engage(broker, hints)
    monkeypatch.setattr(scan_hints, "MAX_LATE", 20)
    await other.settle_many([Settlement.release(job) for job in jobs])
    assert [job.id for job in await drain(broker, JOBS // 2)] == [job.id for job in jobs]


async def test_each_queue_has_its_own_hints(broker: Broker, hints: Watched, snapshot: None) -> None:
    await engage(broker, hints)
    others = [each.id for each in await broker.enqueue_many([NewJob("r")] * 10)]
    claimed = await broker.claim(["r", "q"], limit=12)
    assert [job.queue for job in claimed] == ["r"] * 10 + ["q"] * 2
    assert [job.id for job in claimed[:10]] == others


async def test_the_jobs_of_a_paused_queue_are_not_skipped(
    broker: Broker, hints: Watched, other: Broker, snapshot: None
) -> None:
    jobs = await engage(broker, hints)
    await other.pause("q")
    assert await broker.claim("q") == []
    await other.resume("q")
    assert jobs[-1].id < (await claim_one(broker)).id
    assert len(await drain(broker, JOBS // 2 - 1)) == JOBS // 2 - 1


@pytest.mark.parametrize("seed", range(3))
async def test_random_changes_by_two_processes_keep_the_order(
    broker: Broker, hints: Watched, other: Broker, snapshot: None, seed: int
) -> None:
    """After each change, the next claim gets the first pending job."""
    chance = random.Random(seed)
    held = [job for job in await engage(broker, hints) if chance.random() < 0.02]
    await drain(broker, JOBS // 2)
    pending: set[tuple[int, str]] = set()
    dead: list[Job] = []
    for _ in range(250):
        by = chance.choice([broker, other])
        match chance.randrange(7):
            case 0 | 1:
                for _ in range(chance.randrange(4)):
                    priority = chance.randrange(4) * 500
                    pending.add((priority, (await by.enqueue("q", priority=priority)).id))
            case 2 if held:
                job = held.pop(chance.randrange(len(held)))
                await broker.settle_many(
                    [chance.choice([Settlement.release(job), Settlement.nack(job, "", delay=0)])]
                )
                pending.add((job.priority, job.id))
            case 3 if held:
                dead.append(held.pop())
                await broker.dead_letter(dead[-1], "no good")
            case 4 if dead:
                job = dead.pop(chance.randrange(len(dead)))
                await by.requeue(job.id)
                pending.add((job.priority, job.id))
            case 5 if pending:
                priority, id = chance.choice(sorted(pending))
                await by.reschedule(id, priority=1500 - priority)
                pending.remove((priority, id))
                pending.add((1500 - priority, id))
            case _:
                claimed = await broker.claim("q", limit=chance.randrange(1, 5))
                expected = sorted(pending)[: len(claimed)]
                assert [(job.priority, job.id) for job in claimed] == expected
                assert claimed or not pending
                pending -= set(expected)
                held += claimed
    assert hints.engaged


# Jobs that are not found by a look.


async def test_a_hidden_job_is_found_by_a_search_and_wakes_a_waiting_claim(
    broker: Broker, hints: Watched, snapshot: None, server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await engage(broker, hints)
    await drain(broker, JOBS // 2)
    assert await broker.claim("q") == []
    await server.fetch(
        "UPDATE dayjob.jobs SET state = 'pending', lease_expires_at = NULL WHERE id = %s", jobs[5].id
    )
    assert await broker.claim("q") == [], "it is hidden"
    waiting = asyncio.ensure_future(broker.claim("q", wait=20))
    monkeypatch.setattr(claim_module, "SEARCH_INTERVAL", 0.02)
    claimer = broker._engine._claimer  # type: ignore[attr-defined]
    await claimer.close()
    assert await broker.claim("r") == [], "a claim starts the search"
    assert [job.id for job in await with_timeout(waiting)] == [jobs[5].id]


# The hints themselves.


def id_of(number: int) -> bytes:
    return number.to_bytes(16)


def hidden(**ids: int) -> QueueHints:
    hints = QueueHints()
    hints.snapshot = "1:1:"
    hints.scan_until = id_of(100)
    hints.hidden = {int(priority[1:]): id_of(id) for priority, id in ids.items()}
    return hints


def test_ranges_leave_out_the_hidden_parts_and_contain_late_jobs() -> None:
    hints = hidden(p5=50, p9=20)
    assert list(QueueHints().ranges()) == [(START, END)]
    late: list[Position] = [(9, id_of(7)), (5, id_of(50)), (5, id_of(3)), (5, id_of(51)), (6, id_of(1))]
    hints.add_late(late)
    assert hints.late == {(9, id_of(7)), (5, id_of(50)), (5, id_of(3))}, "others are not hidden"
    assert list(hints.ranges()) == [
        (START, (5, FIRST_ID)),
        ((5, id_of(2)), (5, id_of(3))),
        ((5, id_of(49)), (5, id_of(50))),
        ((5, id_of(50)), (9, FIRST_ID)),
        ((9, id_of(6)), (9, id_of(7))),
        ((9, id_of(20)), END),
    ]


def test_a_claim_raises_hints_up_to_its_last_job() -> None:
    hints = hidden(p5=50, p9=20)
    hints.late = {(5, id_of(3)), (9, id_of(7))}
    hints.claimed({7, 5}, (7, id_of(30)))
    assert hints.hidden == {5: id_of(100), 7: id_of(30), 9: id_of(20)}
    assert hints.late == {(9, id_of(7))}
    hints.claimed(set(), END)
    assert set(hints.hidden.values()) == {id_of(100)}, "a claim that found nothing has scanned everything"
    assert hints.late == set()


def test_hints_are_not_raised_before_the_first_look() -> None:
    hints = QueueHints()
    hints.claimed({5}, (5, id_of(5)))
    assert hints.hidden == {}


def test_priorities_with_hints_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_hints, "MAX_PRIORITIES", 2)
    hints = hidden(p5=50)
    hints.claimed({6, 7, 8}, END)
    assert len(hints.hidden) == 2
