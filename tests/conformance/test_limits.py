"""Limits on running jobs: the claim takes room, and every end of the run gives it back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dayjob import Broker, Job, JobState, Limit, QueueConfig
from dayjob.testing import ManualClock
from tests.support.arrange import OpenBroker, quiet
from tests.support.flow import add, claim_jobs, claimed, limited_broker, states, use
from tests.support.waiting import LONG, with_timeout

PENDING, LIMITED, RUNNING = JobState.PENDING, JobState.LIMITED, JobState.RUNNING


async def test_no_more_jobs_than_running_are_claimed(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=2))
    ids = await add(broker, "api", count=5)
    assert await claimed(broker) == ids[:2]
    assert await claimed(broker) == []
    assert await states(broker, ids) == [RUNNING, RUNNING, LIMITED, LIMITED, LIMITED]
    assert await use(broker, "api") == (2, 3)
    stats = await broker.stats("q")
    assert (stats.pending, stats.limited, stats.running) == (0, 3, 2)


async def test_a_job_without_room_does_not_count_an_attempt(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    _, second = await add(broker, "api", count=2)
    await claimed(broker)
    job = await broker.get(second)
    assert job is not None
    assert (job.state, job.attempts, job.limited_by, job.limits) == (LIMITED, 0, "api", (("api", 1),))


async def test_jobs_without_limits_pass_those_that_wait(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    first, _ = await add(broker, "api", count=2)
    free = (await broker.enqueue("q")).id
    assert await claimed(broker) == [first, free]


async def test_an_ack_wakes_the_first_of_the_line(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    ids = await add(broker, "api", count=3)
    for id in ids:
        (job,) = await claim_jobs(broker)
        assert job.id == id
        await broker.ack(job)
    assert await use(broker, "api") == (0, 0)


Settle = Callable[[Broker, Job], Awaitable[object]]


@pytest.mark.parametrize(
    "settle",
    [
        lambda broker, job: broker.ack(job),
        lambda broker, job: broker.nack(job, "boom"),
        lambda broker, job: broker.nack(job, "boom", delay=0),
        lambda broker, job: broker.dead_letter(job, "hopeless"),
        lambda broker, job: broker.release(job),
        lambda broker, job: broker.snooze(job, 5),
        lambda broker, job: broker.mark_cancelled(job),
        lambda broker, job: broker.reclaim_from(["w"]),
    ],
    ids=["ack", "nack", "nack-now", "dead-letter", "release", "snooze", "mark-cancelled", "reclaim"],
)
async def test_every_end_of_a_run_gives_room_back(open_broker: OpenBroker, settle: Settle) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    ids = await add(broker, "api", count=2)
    (job,) = await claim_jobs(broker)
    await settle(broker, job)
    assert (await use(broker, "api"))[0] == 0
    assert len(await claimed(broker)) == 1
    assert (await use(broker, "api"))[0] == 1
    assert RUNNING in await states(broker, ids)


async def test_an_expired_lease_gives_room_back(open_broker: OpenBroker, clock: ManualClock) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    await add(broker, "api", count=2)
    await claim_jobs(broker)
    clock.advance(60)
    assert await broker.reap() == 1
    assert (await use(broker, "api"))[0] == 0
    assert len(await claimed(broker)) == 1


async def test_a_stale_settlement_gives_no_room_back(open_broker: OpenBroker, clock: ManualClock) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    await add(broker, "api")
    (stale,) = await claim_jobs(broker)
    clock.advance(60)
    await broker.reap()
    assert len(await claimed(broker)) == 1
    with pytest.raises(Exception, match="no longer current"):
        await broker.ack(stale)
    assert await use(broker, "api") == (1, 0)


async def test_a_cancelled_wake_up_is_passed_on(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    ids = await add(broker, "api", count=3)
    (job,) = await claim_jobs(broker)
    await broker.ack(job)
    assert await states(broker, ids[1:]) == [PENDING, LIMITED]
    await broker.cancel(ids[1])
    assert await claimed(broker) == [ids[2]]


async def test_an_expired_wake_up_is_passed_on(open_broker: OpenBroker, clock: ManualClock) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    (job,) = await claim_after(broker, await add(broker, "api"))
    await add(broker, "api", expires=10)
    (last,) = await add(broker, "api")
    assert await claimed(broker) == []
    await broker.ack(job)
    clock.advance(20)
    await broker.promote()
    assert await claimed(broker) == [last]


async def claim_after(broker: Broker, ids: list[str]) -> list[Job]:
    jobs = await claim_jobs(broker)
    assert [job.id for job in jobs] == ids
    return jobs


async def test_a_limited_job_can_be_cancelled(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    ids = await add(broker, "api", count=3)
    (job,) = await claim_jobs(broker)
    await claimed(broker)
    assert (await broker.cancel(ids[1])).acted
    await broker.ack(job)
    assert await claimed(broker) == [ids[2]]


async def test_a_new_job_joins_a_line(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    await add(broker, "api", count=2)
    await claimed(broker)
    (new,) = await add(broker, "api")
    assert await states(broker, [new]) == [LIMITED]


async def test_a_job_of_higher_priority_precedes_the_line(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    (job,) = await claim_after(broker, await add(broker, "api"))
    (low,) = await add(broker, "api")
    assert await claimed(broker) == []
    (high,) = await add(broker, "api", priority=1)
    assert await claimed(broker) == []
    assert await states(broker, [low, high]) == [LIMITED, LIMITED]
    await broker.ack(job)
    assert await claimed(broker) == [high]


async def test_each_key_has_its_own_room(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, customer=Limit(running=1))
    first = await add(broker, "customer:a", count=2)
    second = await add(broker, "customer:b", count=2)
    assert await claimed(broker) == [first[0], second[0]]
    assert await use(broker, "customer") == (2, 2)


async def test_a_key_may_have_its_own_settings(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, customer=Limit(running=1))
    await broker.set_limit("customer:big", Limit(running=2))
    small, big = await add(broker, "customer:a", count=2), await add(broker, "customer:big", count=3)
    assert await claimed(broker) == [small[0], *big[:2]]
    assert (await use(broker, "customer"), await use(broker, "customer:big")) == ((1, 1), (2, 1))


async def test_a_job_that_waits_holds_no_room(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, one=Limit(running=1), two=Limit(running=1))
    (holder,) = await add(broker, "two")
    (both,) = await add(broker, "one", "two")
    (other,) = await add(broker, "one")
    assert await claimed(broker) == [holder, other]
    assert await states(broker, [both]) == [LIMITED]


async def test_a_woken_job_that_another_limit_blocks_passes_its_room_on(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, one=Limit(running=1), two=Limit(running=1))
    await add(broker, "one")
    await add(broker, "two")
    holder, _ = await claim_jobs(broker)
    (both,) = await add(broker, "one", "two")
    (last,) = await add(broker, "one")
    assert await claimed(broker) == []
    await broker.ack(holder)
    assert [*await claimed(broker), *await claimed(broker)] == [last]
    assert await states(broker, [both]) == [LIMITED]


async def test_two_limits_in_both_orders_neither_deadlock_nor_leak(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, one=Limit(running=1), two=Limit(running=2))
    ids = []
    for number in range(20):
        names = ("one", "two") if number % 2 else ("two", "one")
        ids += await add(broker, *names[: 1 + number % 3])
    done: list[str] = []
    while jobs := await claim_jobs(broker):
        running = [name for job in jobs for name, _ in job.limits]
        assert running.count("one") <= 1
        assert running.count("two") <= 2
        for job in jobs:
            await broker.ack(job)
            done.append(job.id)
    assert sorted(done) == sorted(ids)
    assert (await use(broker, "one"), await use(broker, "two")) == ((0, 0), (0, 0))


async def test_room_that_the_first_of_a_line_could_not_use_is_for_those_behind_it(
    open_broker: OpenBroker,
) -> None:
    """One of three units is free, and the first job needs two. When it starts, a third unit is free again."""
    broker = await limited_broker(open_broker, memory=Limit(running=3))
    (job,) = await claim_after(broker, await add(broker, "memory", units={"memory": 2}))
    large = await add(broker, "memory", units={"memory": 2})
    assert await claimed(broker) == []
    small = await add(broker, "memory")
    assert await states(broker, large + small) == [LIMITED, LIMITED]
    await broker.ack(job)
    assert await states(broker, large + small) == [PENDING, PENDING]
    assert await claimed(broker) == large + small


async def test_units_take_more_room_and_keep_the_order(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, memory=Limit(running=4))
    await add(broker, "memory", units={"memory": 3})
    (large,) = await add(broker, "memory", units={"memory": 2})
    (small,) = await add(broker, "memory")
    (job,) = await claim_jobs(broker)
    assert await states(broker, [large, small]) == [LIMITED, LIMITED], "a small job does not overtake"
    await broker.ack(job)
    assert await claimed(broker) == [large, small]
    assert await use(broker, "memory") == (3, 0)


async def test_a_small_job_that_comes_due_does_not_overtake_the_line(
    open_broker: OpenBroker, clock: ManualClock
) -> None:
    broker = await limited_broker(open_broker, memory=Limit(running=4))
    (job,) = await claim_after(broker, await add(broker, "memory", units={"memory": 3}))
    (large,) = await add(broker, "memory", units={"memory": 2})
    assert await claimed(broker) == []
    (small,) = await add(broker, "memory", delay=1)
    clock.advance(2)
    await broker.promote()
    assert await states(broker, [large, small]) == [LIMITED, PENDING]
    assert await claimed(broker) == []
    await broker.ack(job)
    assert await claimed(broker) == [large, small]


async def test_a_job_above_a_lowered_limit_runs_alone(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, memory=Limit(running=4))
    (large,) = await add(broker, "memory", units={"memory": 4})
    await broker.set_limit("memory", Limit(running=2))
    assert await claimed(broker) == [large]


async def test_a_queue_has_a_limit_as_a_whole(open_broker: OpenBroker) -> None:
    config = quiet(queues={"email": QueueConfig(limit=Limit(running=2))})
    broker = await limited_broker(open_broker, config)
    await broker.declare_limits("shop", [])
    ids = [(await broker.enqueue("email")).id for _ in range(3)]
    assert await claimed(broker, "email") == ids[:2]
    assert await use(broker, "queue:email") == (2, 1)


async def test_lines_of_queues_do_not_block_each_other(open_broker: OpenBroker) -> None:
    """The head of a paused queue gets a wake-up that it can't use."""
    broker = await limited_broker(open_broker, api=Limit(running=1))
    (job,) = await claim_after(broker, await add(broker, "api"))
    await add(broker, "api", queue="paused")
    (other,) = await add(broker, "api")
    assert await claimed(broker, "paused") == []
    assert await claimed(broker) == []
    await broker.pause("paused")
    await broker.ack(job)
    assert await claimed(broker) == [other]


async def test_a_higher_limit_takes_effect_at_once(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    ids = await add(broker, "api", count=4)
    assert await claimed(broker) == ids[:1]
    await broker.set_limit("api", Limit(running=3))
    assert await claimed(broker) == ids[1:3]


async def test_a_lower_limit_takes_effect_as_jobs_end(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=3))
    ids = await add(broker, "api", count=4)
    jobs = await claim_jobs(broker)
    await broker.set_limit("api", Limit(running=1))
    for job in jobs:
        assert await claimed(broker) == []
        await broker.ack(job)
    assert await claimed(broker) == ids[3:]


async def test_a_removed_limit_frees_its_jobs(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    ids = await add(broker, "api", count=3)
    await claimed(broker)
    assert await broker.remove_limit("api")
    assert not await broker.remove_limit("api")
    assert await claimed(broker) == ids[1:]


async def test_a_waiting_claim_wakes_when_room_appears(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    _, second = await add(broker, "api", count=2)
    (job,) = await claim_jobs(broker)
    waiting = asyncio.ensure_future(broker.claim("q", wait=LONG, worker="w"))
    await broker.ack(job)
    (woken,) = await with_timeout(waiting)
    assert woken.id == second


async def test_a_limited_job_can_be_rescheduled(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    ids = await add(broker, "api", count=3)
    (job,) = await claim_jobs(broker)
    assert await broker.reschedule(ids[2], priority=1)
    assert await claimed(broker) == []
    await broker.ack(job)
    assert await claimed(broker) == [ids[2]]


async def test_the_place_of_a_limited_job_is_that_in_its_line(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    ids = await add(broker, "api", count=4)
    await broker.enqueue("q")
    await claimed(broker)
    assert [await broker._engine.position(bytes.fromhex(id.replace("-", "")), 10) for id in ids[1:]] == [
        0,
        1,
        2,
    ]


async def test_limits_survive_a_reopening(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=2))
    if not broker.capabilities.persistent:
        pytest.skip("this engine declares that it keeps nothing")
    ids = await add(broker, "api", count=3)
    assert len(await claimed(broker)) == 2
    await broker.close()
    again = await open_broker()
    assert await use(again, "api") == (2, 1)
    assert await claimed(again) == []
    assert await states(again, ids) == [RUNNING, RUNNING, LIMITED]


async def test_a_rerun_keeps_its_limits(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=9))
    await add(broker, "api", units={"api": 3})
    (job,) = await claim_jobs(broker)
    await broker.dead_letter(job, "hopeless")
    copy = await broker.get((await broker.rerun(job.id)).id)
    assert copy is not None
    assert copy.limits == (("api", 3),)


# Arguments.


@pytest.mark.parametrize(
    ("limits", "units", "text"),
    [
        (["a:"] * 2 + [f"n{number}" for number in range(8)], None, "8 at most"),
        ([""], None, "empty"),
        (["queue:q"], None, "reserved"),
        (["nul\0"], None, "NUL"),
        (["api"], {"api": 0}, "whole number"),
        (["api"], {"other": 1}, "no limit of this job"),
    ],
)
async def test_bad_limits_are_refused(
    open_broker: OpenBroker, limits: list[str], units: dict[str, int] | None, text: str
) -> None:
    broker = await limited_broker(open_broker)
    with pytest.raises(ValueError, match=text):
        await broker.enqueue("q", limits=limits, units=units)


async def test_units_above_the_size_of_the_queue_are_refused(open_broker: OpenBroker) -> None:
    config = quiet(queues={"email": QueueConfig(limit=Limit(running=2))})
    broker = await limited_broker(open_broker, config)
    with pytest.raises(ValueError, match="2 at most"):
        await broker.enqueue("email", units={"queue": 3})


async def test_a_claim_behind_blocked_jobs_returns_no_more_than_it_asked_for(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    await add(broker, "api", queue="other")
    assert len(await claimed(broker, "other")) == 1
    blocked = await add(broker, "api", count=3)
    plain = await add(broker, count=10)
    assert await claimed(broker, limit=4) == plain[:4]
    assert await states(broker, blocked) == [JobState.LIMITED] * 3


# Explanations.


async def test_explain_names_the_limit_and_the_place(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(running=1))
    ids = await add(broker, "api", count=3)
    await claimed(broker)
    reason = (await broker.explain(ids[2])).reasons[0]
    assert (reason.code, reason.data["limit"], reason.data["ahead"]) == ("limited", "api", 1)
    assert reason.text == (
        "Limit 'api' has no room for it: it is behind 1 job in its line. "
        "It waits for the end of a run: 1 may run at once."
    )


async def test_explain_has_the_time_of_a_rate(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, api=Limit(rate=1, per=60))
    ids = await add(broker, "api:key", count=3)
    await claimed(broker)
    reason = (await broker.explain(ids[2])).reasons[0]
    assert reason.text.endswith("Its rate admits it in 2.0 minutes.")
