"""Get, jobs and dead_jobs: order, cursors, filters and limits."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from dayjob import Broker, Job, JobState, NewJob
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
from tests.support.observe import every_job, fields, ids

MALFORMED = ["", "nonsense", "123", "0" * 31, "☃", "a\0b", "\ud800", "' OR 1=1 --"]


def numbers(jobs: list[Job]) -> list[int]:
    return [UUID(job.id).int for job in jobs]


def id_of(number: int) -> str:
    return str(UUID(int=number))


@pytest.fixture
async def twenty(broker: Broker) -> Broker:
    """Enqueue jobs with the ids 0, 10, ... 190, in another order."""
    order = sorted(range(20), key=lambda number: number * 7 % 20)
    for number in order:
        await broker.enqueue("q", priority=number % 4, id=UUID(int=number * 10))
    return broker


def pages(all_numbers: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(all_numbers), size):
        yield all_numbers[start : start + size]


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("size", [1, 3, 20, 100])
async def test_pages_are_in_id_order(twenty: Broker, newest_first: bool, size: int) -> None:
    expected = sorted(range(0, 200, 10), reverse=newest_first)
    after = None
    for page in pages(expected, size):
        jobs = await twenty.jobs(after=after, limit=size, newest_first=newest_first)
        assert numbers(jobs) == page
        after = jobs[-1].id
    assert await twenty.jobs(after=after, limit=size, newest_first=newest_first) == []


async def test_a_cursor_need_not_name_a_job(twenty: Broker) -> None:
    assert numbers(await twenty.jobs(after=id_of(55), limit=2)) == [60, 70]
    assert numbers(await twenty.jobs(after=id_of(55), limit=2, newest_first=True)) == [50, 40]
    assert await twenty.jobs(after=id_of(10**30)) == []
    assert numbers(await twenty.jobs(after=id_of(10**30), limit=1, newest_first=True)) == [190]


@pytest.mark.parametrize("after", MALFORMED)
async def test_a_malformed_cursor_returns_nothing(twenty: Broker, after: str) -> None:
    assert await twenty.jobs(after=after) == []
    assert await twenty.jobs(after=after, newest_first=True) == []
    assert await twenty.dead_jobs(after=after) == []


async def test_a_state_may_be_given_as_text(twenty: Broker) -> None:
    assert len(await twenty.jobs(state="pending")) == 20
    assert await twenty.jobs(state="dead") == []


async def test_a_cursor_in_any_spelling_is_accepted(twenty: Broker) -> None:
    spelled = f"{{{id_of(0xA0).upper()}}}"
    assert numbers(await twenty.jobs(after=spelled, limit=1)) == [170]


async def test_a_cursor_whose_job_was_removed_still_works(twenty: Broker) -> None:
    first_page = await twenty.jobs(limit=5)
    for job in first_page:
        await twenty.cancel(job.id)
    assert numbers(await twenty.jobs(after=first_page[-1].id, limit=2)) == [50, 60]


async def test_the_limit_is_a_hundred_by_default(broker: Broker) -> None:
    await broker.enqueue_many([NewJob("q", max_attempts=1) for _ in range(120)])
    assert len(await broker.jobs()) == 100
    assert len(await broker.jobs(newest_first=True)) == 100
    for claim in await broker.claim("q", limit=120):
        await broker.dead_letter(claim, "x")
    assert len(await broker.dead_jobs()) == 100


async def test_a_limit_of_zero_returns_nothing(twenty: Broker) -> None:
    await twenty.dead_letter(await claim_one(twenty), "x")
    assert await twenty.jobs(limit=0) == []
    assert await twenty.dead_jobs(limit=0) == []


@pytest.mark.parametrize("limit", [10**6, 2**63, 2**70])
async def test_a_huge_limit_returns_all(twenty: Broker, limit: int) -> None:
    await twenty.dead_letter(await claim_one(twenty), "x")
    assert len(await twenty.jobs(limit=limit)) == 20
    assert len(await twenty.jobs(limit=limit, newest_first=True)) == 20
    assert len(await twenty.dead_jobs(limit=limit)) == 1


@pytest.mark.parametrize("limit", [-1, -(2**70)])
async def test_a_negative_limit_is_refused(broker: Broker, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        await broker.jobs(limit=limit)
    with pytest.raises(ValueError, match="limit"):
        await broker.dead_jobs(limit=limit)


async def test_filters_combine(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    for queue in ("a", "b"):
        for task in ("x", "y"):
            await done(broker, queue, task=task)
            await dead(broker, queue, task=task)
            await cancelled(broker, queue, task=task)
            await running(broker, queue, task=task)
            await broker.enqueue(queue, task=task, delay=60)
    for queue in ("a", "b"):
        for task in ("x", "y"):
            await broker.enqueue(queue, task=task)
    everything = await every_job(broker)
    assert len(everything) == 24
    for queue_filter in (None, "a", "b", "c"):
        for state_filter in (None, *JobState):
            for task_filter in (None, "x", "y", "z", ""):
                expected = [
                    job.id
                    for job in everything
                    if queue_filter in (None, job.queue)
                    and state_filter in (None, job.state)
                    and task_filter in (None, job.task)
                ]
                found = await broker.jobs(queue_filter, state_filter, task_filter)
                assert ids(found) == expected
                found = await broker.jobs(
                    queue=queue_filter, state=state_filter, task=task_filter, newest_first=True, limit=3
                )
                assert ids(found) == expected[::-1][:3]
                if len(expected) > 2:
                    found = await broker.jobs(
                        queue_filter, state_filter, task_filter, after=expected[1], limit=2
                    )
                    assert ids(found) == expected[2:4]


async def test_get_and_listing_return_the_same_record(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    await done(broker, headers={"h": "v"}, tenant="t")
    await dead(broker, dedup_key="d")
    await broker.enqueue("q", b"data", task="t", delay=60, expires=90)
    listed = await every_job(broker)
    assert [fields(job) for job in listed] == [fields(await record(broker, job.id)) for job in listed]


async def test_dead_jobs_lists_dead_jobs_only(broker: Broker) -> None:
    first, second, third = await dead(broker, "a"), await dead(broker, "b"), await dead(broker, "a")
    await broker.enqueue("a")
    await running(broker, "b")
    assert ids(await broker.dead_jobs()) == [first, second, third]
    assert ids(await broker.dead_jobs("a")) == [first, third]
    assert ids(await broker.dead_jobs(after=first, limit=1)) == [second]
    assert ids(await broker.dead_jobs("a", after=first)) == [third]
    assert await broker.dead_jobs("c") == []
    assert [job.last_error for job in await broker.dead_jobs("b")] == ["no good"]


async def test_get_returns_none_for_a_job_that_does_not_exist(broker: Broker) -> None:
    assert await broker.get("00000000-0000-0000-0000-000000000001") is None
    assert await broker.jobs() == []
    assert await broker.jobs("unknown") == []
    assert await broker.dead_jobs() == []
    assert await broker.queues() == []


@pytest.mark.parametrize("id", MALFORMED)
async def test_get_treats_a_malformed_id_as_unknown(broker: Broker, id: str) -> None:
    await broker.enqueue("q")
    assert await broker.get(id) is None
    assert await broker.requeue(id) is False
    assert await broker.reschedule(id, priority=1) is False


async def test_changing_a_returned_record_changes_no_job(broker: Broker) -> None:
    enqueued = await broker.enqueue("q", headers={"h": "v"})
    job = await record(broker, enqueued.id)
    job.headers["h"] = "changed"
    job.priority = 1
    again = await record(broker, enqueued.id)
    assert (again.headers, again.priority) == ({"h": "v"}, 1000)


async def test_changing_the_callers_headers_later_changes_no_job(broker: Broker) -> None:
    headers, kv = {"h": "v"}, {b"k": b"v"}
    enqueued = await broker.enqueue("q", headers=headers, kv=kv)
    headers["h"] = "changed"
    kv[b"k"] = b"changed"
    assert (await record(broker, enqueued.id)).headers == {"h": "v"}
    assert await broker.kv_get(b"k") == b"v"
