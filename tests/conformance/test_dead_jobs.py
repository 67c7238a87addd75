"""Operations on dead and waiting jobs: requeue, requeue_dead, purge_dead, reschedule, rerun."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dayjob import Broker, InvalidState, Job, JobState, NewJob
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
    state,
)
from tests.support.observe import every_job, everything, fields, ids
from tests.support.waiting import WatchedClock

UNKNOWN = "00000000-0000-0000-0000-000000000001"


# Requeue.


@pytest.mark.parametrize("verb", ["requeue", "requeue_dead"])
async def test_a_requeued_job_starts_over(broker: Broker, clock: WatchedClock, verb: str) -> None:
    claim = await running(broker, max_attempts=2, expires=500, priority=3, headers={"h": "v"})
    await broker.nack(claim, "first", delay=0)
    claim = await claim_one(broker)
    await broker.cancel(claim.id)
    await broker.dead_letter(claim, "second")
    dead_one = fields(await record(broker, claim.id))
    clock.advance(60)
    if verb == "requeue":
        assert await broker.requeue(claim.id) is True
    else:
        assert await broker.requeue_dead("q") == 1
    assert fields(await record(broker, claim.id)) == {
        **dead_one,
        "state": JobState.PENDING,
        "attempts": 0,
        "run_at": clock.time,
        "last_error": None,
        "finished_at": None,
        "cancel_requested": False,
        "expires_at": None,
        "worker": None,
        "claimed_at": None,
        "lease_expires_at": None,
    }
    assert [failure.message for failure in (await record(broker, claim.id)).errors] == ["first", "second"]
    again = await claim_one(broker)
    assert (again.id, again.attempts, again.epoch) == (claim.id, 1, clock.now())


async def test_a_requeued_job_is_not_swept_by_its_old_retention(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    id = await dead(broker)
    assert await broker.requeue(id)
    clock.advance(timedelta(days=30))
    assert await broker.sweep() == 0
    assert await state(broker, id) is JobState.PENDING


async def test_only_dead_jobs_are_requeued(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    others = [await done(broker), await cancelled(broker), (await running(broker)).id]
    others += [(await broker.enqueue("q")).id, (await broker.enqueue("q", delay=9)).id, UNKNOWN]
    before = await everything(broker)
    for id in others:
        assert await broker.requeue(id) is False
    assert await broker.requeue_dead("q") == 0
    assert await broker.requeue_dead("unknown") == 0
    assert await everything(broker) == before


async def test_requeue_dead_takes_all_dead_jobs_of_one_queue(broker: Broker) -> None:
    await broker.enqueue_many([NewJob(queue) for queue in ("a", "b") for _ in range(150)])
    for claim in await broker.claim(["a", "b"], limit=300):
        await broker.dead_letter(claim, "x")
    await broker.enqueue("a")
    assert await broker.requeue_dead("a") == 150
    assert await broker.requeue_dead("a") == 0
    assert (await broker.stats("a")).pending == 151
    assert ((await broker.stats("b")).dead, (await broker.stats("b")).pending) == (150, 0)


# Purge.


async def test_purge_dead_removes_the_dead_of_one_queue_or_of_all(open_broker: OpenBroker) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    for queue in ("a", "a", "b", "c"):
        await dead(broker, queue)
    kept = [await done(broker, "a"), await cancelled(broker, "a"), (await running(broker, "a")).id]
    kept += [(await broker.enqueue("a")).id]
    assert await broker.purge_dead("unknown") == 0
    assert await broker.purge_dead("a") == 2
    assert await broker.purge_dead("a") == 0
    assert await broker.purge_dead() == 2
    assert ids(await every_job(broker)) == kept
    assert await broker.queues() == ["a", "b", "c"]


# Reschedule.


async def test_reschedule_changes_the_due_time_of_a_waiting_job(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q")
    later = clock.time + timedelta(seconds=60)
    assert await broker.reschedule(enqueued.id, run_at=later) is True
    job = await record(broker, enqueued.id)
    assert (job.state, job.run_at) == (JobState.SCHEDULED, later)
    assert await broker.claim("q") == []
    sooner = clock.time + timedelta(seconds=5)
    assert await broker.reschedule(enqueued.id, run_at=sooner) is True
    clock.advance(5)
    assert await broker.promote() == 1
    assert (await claim_one(broker)).id == enqueued.id


async def test_a_later_due_time_replaces_the_earlier_one(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q", delay=5)
    await broker.reschedule(enqueued.id, run_at=clock.time + timedelta(seconds=60))
    clock.advance(59)
    assert await broker.promote() == 0
    clock.advance(1)
    assert await broker.promote() == 1
    assert await broker.promote() == 0


@pytest.mark.parametrize("ago", [0, 60], ids=["now", "past"])
async def test_a_due_time_in_the_past_makes_the_job_pending(
    broker: Broker, clock: WatchedClock, ago: int
) -> None:
    enqueued = await broker.enqueue("q", delay=60)
    moment = clock.time - timedelta(seconds=ago)
    assert await broker.reschedule(enqueued.id, run_at=moment)
    job = await record(broker, enqueued.id)
    assert (job.state, job.run_at) == (JobState.PENDING, moment)
    assert (await claim_one(broker)).id == enqueued.id


async def test_reschedule_changes_the_priority_of_a_waiting_job(broker: Broker, clock: WatchedClock) -> None:
    first, second, third = await broker.enqueue_many([NewJob("q"), NewJob("q"), NewJob("q", delay=5)])
    assert await broker.reschedule(second.id, priority=1)
    assert await broker.reschedule(third.id, priority=0)
    assert await state(broker, third.id) is JobState.SCHEDULED
    clock.advance(5)
    await broker.promote()
    claimed = await broker.claim("q", limit=5)
    assert [(job.id, job.priority) for job in claimed] == [(third.id, 0), (second.id, 1), (first.id, 1000)]


async def test_a_job_with_a_later_priority_leaves_its_old_place(broker: Broker) -> None:
    first, second = await broker.enqueue_many([NewJob("q"), NewJob("q")])
    assert await broker.reschedule(first.id, priority=5000)
    assert ids(await broker.claim("q", limit=5)) == [second.id, first.id]


async def test_a_priority_changed_and_changed_back_returns_the_job_once(broker: Broker) -> None:
    enqueued = await broker.enqueue("q")
    for priority in (1, 1000, 1, 1000, 1000):
        await broker.reschedule(enqueued.id, priority=priority)
    assert ids(await broker.claim("q", limit=5)) == [enqueued.id]


async def test_reschedule_changes_time_and_priority_together(broker: Broker, clock: WatchedClock) -> None:
    enqueued = await broker.enqueue("q")
    before = fields(await record(broker, enqueued.id))
    moment = clock.time + timedelta(seconds=9)
    assert await broker.reschedule(enqueued.id, run_at=moment, priority=2**32 - 1)
    changes = {"run_at": moment, "priority": 2**32 - 1, "state": JobState.SCHEDULED}
    assert fields(await record(broker, enqueued.id)) == {**before, **changes}


async def test_only_waiting_jobs_are_rescheduled(open_broker: OpenBroker, clock: WatchedClock) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    others = [await done(broker), await dead(broker), await cancelled(broker)]
    others += [(await running(broker)).id, UNKNOWN]
    before = await everything(broker)
    for id in others:
        assert await broker.reschedule(id, run_at=clock.time, priority=1) is False
    assert await everything(broker) == before


async def test_reschedule_without_a_change_is_refused(broker: Broker) -> None:
    enqueued = await broker.enqueue("q")
    with pytest.raises(ValueError, match="run_at"):
        await broker.reschedule(enqueued.id)


# Rerun.


async def test_rerun_enqueues_a_new_job_from_a_finished_one(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    broker = await open_broker(quiet(retention=KEEP_ALL))
    options: dict[str, Any] = {"task": "t", "priority": 7, "max_attempts": 4, "tenant": "acme"}
    options["headers"] = {"h": "v"}
    finished = [
        await make(broker, payload=b"data", dedup_key="k", **options) for make in (done, dead, cancelled)
    ]
    clock.advance(60)
    for id in finished:
        old = fields(await record(broker, id))
        again = await broker.rerun(id)
        assert again.created
        assert again.id not in finished
        job = await record(broker, again.id)
        assert fields(job, tuple(options)) == options
        assert (job.queue, job.payload, job.state) == ("q", b"data", JobState.PENDING)
        assert (job.attempts, job.epoch, job.dedup_key) == (0, 0, None)
        assert (job.enqueued_at, job.run_at) == (clock.time, clock.time)
        assert (job.last_error, job.errors, job.result, job.finished_at) == (None, (), None, None)
        assert fields(await record(broker, id)) == old, "the finished job stays as it is"


async def test_an_unfinished_job_is_not_rerun(broker: Broker) -> None:
    unfinished = [(await running(broker)).id, (await broker.enqueue("q")).id]
    unfinished += [(await broker.enqueue("q", delay=9)).id]
    gone = await done(broker, "other")
    before = await everything(broker)
    for id in [*unfinished, gone, UNKNOWN, "nonsense"]:
        with pytest.raises(InvalidState):
            await broker.rerun(id)
    assert await everything(broker) == before


# The latest failure first.


async def test_the_latest_failure_comes_first(broker: Broker, clock: WatchedClock) -> None:
    first, second, third = [await running(broker, queue) for queue in ("a", "b", "a")]
    for job in (second, third, first):
        clock.advance(1)
        await broker.dead_letter(job, "no good")
    assert [job.id for job in await broker.latest_dead()] == [first.id, third.id, second.id]
    assert [job.id for job in await broker.latest_dead("a")] == [first.id, third.id]
    assert await broker.latest_dead("unknown") == []
    assert await broker.latest_dead(limit=0) == []


async def test_dead_jobs_are_paged_by_latest_failure(broker: Broker, clock: WatchedClock) -> None:
    made = []
    for number in range(12):
        if number % 3 == 0:
            clock.advance(1)
        made.append(await dead(broker, "ab"[number % 2]))
    times = {job.id: job.finished_at for job in await broker.latest_dead()}
    wanted = sorted(made, key=lambda id: (str(times[id]), id), reverse=True)
    for queue in (None, "a", "b"):
        expected = [id for id in wanted if queue is None or made.index(id) % 2 == "ab".index(queue)]
        found: list[Job] = []
        while page := await broker.latest_dead(queue, before=found[-1] if found else None, limit=5):
            assert len(page) <= 5
            found += page
        assert [job.id for job in found] == expected


async def test_requeued_and_removed_jobs_leave_the_list_of_latest_failures(
    broker: Broker, clock: WatchedClock
) -> None:
    back, gone, kept, again = [await dead(broker) for _ in range(4)]
    await broker.requeue(back)
    assert await broker.requeue(again)
    clock.advance(1)
    assert [job.id for job in await broker.latest_dead()] == [kept, gone]
    for job in await broker.claim("q", limit=2):
        await broker.dead_letter(job, "worse")
    assert [job.id for job in await broker.latest_dead()] == [again, back, kept, gone]
    clock.advance(timedelta(days=8))
    await broker.sweep()
    assert await broker.latest_dead() == []


async def test_the_latest_failures_survive_reopening(broker: Broker, open_broker: OpenBroker) -> None:
    if not broker.capabilities.persistent:
        pytest.skip("the engine is not persistent")
    made = [await dead(broker) for _ in range(3)]
    await broker.close()
    assert [job.id for job in await (await open_broker()).latest_dead()] == made[::-1]
