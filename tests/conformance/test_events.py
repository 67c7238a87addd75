"""Every change of a job's state has the events of the table in ``docs/tasks.md``, on every engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dayjob import (
    App,
    BrokerConfig,
    Context,
    DeadLetter,
    JobCancelled,
    JobState,
    Limit,
    NewJob,
    Recurring,
    RetryLater,
    Snooze,
    Worker,
)
from dayjob.events import NAMES, Event
from dayjob.model.lifecycle import RULES
from tests.support.arrange import KEEP_ALL
from tests.support.waiting import WatchedClock
from tests.support.workers import until, with_timeout

DOCS = Path(__file__).parents[2] / "docs" / "tasks.md"
CALL, LATER, SCHEDULE, FOLLOW_UP = (
    "enqueued by a call", "enqueued with a due time", "enqueued by a schedule", "enqueued as a follow-up",
)  # fmt: skip
STARTS, EXPIRES, LAST = (
    "a run starts", "the lease expires, or the worker is gone", "the same at the last attempt",
)  # fmt: skip

Change = tuple[str, JobState | None, JobState | None]


def documented() -> dict[str, list[Change]]:
    """Return the events of each change, from the table in the docs."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (\w*) ?\| (\w*) ?\|$", DOCS.read_text(), re.M)
    return {
        change: [(name, to_state(old), to_state(new)) for name in re.findall(r"`(job\.\w+)`", before(events))]
        for change, events, old, new in rows
        if change not in ("change", "---")
    }


def before(events: str) -> str:
    return events.partition(":")[0]


def to_state(text: str) -> JobState | None:
    return JobState(text) if text else None


TABLE = documented()

OF_RUNS = {
    "succeed": ("a run succeeds",),
    "again": ("a run fails, the next may start at once", STARTS, "a run succeeds"),
    "later": ("a run fails, the next is due later",),
    "dead": ("a run fails finally",),
    "snooze": ("a run is snoozed",),
    "then": ("a run succeeds",),
}
"""The changes of a run, by the kind of its job."""

OF_WORKERS = (
    CALL, FOLLOW_UP, STARTS, EXPIRES, "a run ends after a cancel request", "a run is released",
    "a run has lost its claim", *(change for changes in OF_RUNS.values() for change in changes),
)  # fmt: skip
OF_BROKERS = (
    CALL, LATER, SCHEDULE, "due", "limited", "woken", EXPIRES, LAST, "cancelled while pending",
    "cancelled while scheduled", "cancelled while limited", "expired while pending",
    "expired while scheduled", "expired while limited", "requeued",
)  # fmt: skip


class Observed:
    """An app, the events of its jobs, and those that are expected by the table."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.events: list[Event] = []
        self.expected: dict[str, list[Change]] = {}
        app.on("job.*")(self.events.append)

    def expect(self, id: str, *changes: str) -> str:
        self.expected.setdefault(id, []).extend(event for change in changes for event in TABLE[change])
        return id

    async def check(self) -> None:
        """Compare the events. A job may start before the reply to its enqueue has arrived."""
        await self.app.events.flush(20)
        seen: dict[str, list[Change]] = {}
        for event in self.events:
            seen.setdefault(event.id, []).append((event.name, event.old_state, event.new_state))
        for changes in seen.values():
            changes.sort(key=lambda change: change[0] != "job.enqueued")
        assert seen == self.expected


@pytest.fixture
async def observed(url: str) -> AsyncIterator[Observed]:
    app = App(url, config=BrokerConfig(duties=False, retention=KEEP_ALL))
    yield Observed(app)
    await app.close()


def test_the_table_has_every_transition_and_every_event() -> None:
    assert {*OF_WORKERS, *OF_BROKERS} == TABLE.keys()
    changes = {(old, new) for line in TABLE.values() for _, old, new in line}
    silent = {
        (JobState.SCHEDULED, JobState.PENDING), (JobState.PENDING, JobState.LIMITED),
        (JobState.LIMITED, JobState.PENDING),
    }  # fmt: skip
    assert changes >= {(rule.source, rule.target) for rule in RULES} - silent
    jobs = {name for name in NAMES if name.startswith("job.")}
    assert {name for line in TABLE.values() for name, _, _ in line} == jobs


async def test_the_changes_by_a_worker_have_the_events_of_the_table(observed: Observed) -> None:
    app = observed.app
    started, finish = asyncio.Event(), asyncio.Event()

    @app.task(name="follow", queue="unserved")
    async def follow() -> None:
        return

    @app.task(name="work")
    async def work(ctx: Context, kind: str) -> None:
        match kind:
            case "again" if ctx.attempt == 1:
                raise RetryLater(0)
            case "later":
                raise RetryLater(60)
            case "dead":
                raise DeadLetter("hopeless")
            case "snooze":
                raise Snooze(60)
            case "then":
                ctx.then(follow.bind(), follow.using(dedup_key="held").bind())
            case "cancel":
                started.set()
                await ctx.cancelled.wait()
                raise JobCancelled
            case "wait":
                started.set()
                await finish.wait()

    async def start(kind: str) -> str:
        started.clear()
        id = observed.expect((await work.aenqueue(kind)).id, CALL, STARTS)
        await with_timeout(started.wait())
        return id

    async with app:
        holder = await follow.using(dedup_key="held").aenqueue()
        observed.expect(holder.id, CALL)
        for kind, changes in OF_RUNS.items():
            observed.expect((await work.aenqueue(kind)).id, CALL, STARTS, *changes)
        await with_timeout(Worker(app, queues=("default",)).run_until_idle())
        [new] = [job.id for job in await app.broker.jobs("unserved") if job.id != holder.id]
        observed.expect(new, FOLLOW_UP)
        async with Worker(app, queues=("default",)) as worker:
            cancelled = await start("cancel")
            await app.broker.cancel(cancelled)
            await app.broker.wait(cancelled, 20)
            observed.expect(cancelled, "a run ends after a cancel request")
            lost = await start("wait")
            await app.broker.pause("default")
            assert await app.broker.reclaim_from([worker.id]) == 1
            observed.expect(lost, EXPIRES, "a run has lost its claim")
            finish.set()
            await until(lambda: any(event.name == "job.lost" for event in observed.events))
            assert (await app.broker.cancel(lost)).acted
            observed.expect(lost, "cancelled while pending")
            await app.broker.resume("default")
            finish.clear()
            observed.expect(await start("wait"), "a run is released")
            worker.stop_now()
            await with_timeout(worker.wait_stopped())
        await observed.check()
    ends = [
        event for event in observed.events if event.old_state is JobState.RUNNING and event.job is not None
    ]
    assert all(event.seconds is not None for event in ends if event.name != "job.lost")


async def test_the_changes_by_a_broker_have_the_events_of_the_table(
    observed: Observed, clock: WatchedClock
) -> None:
    app = observed.app
    app.clock = clock

    @app.task(name="tick", queue="ticks", dedup=True)
    async def tick() -> None:
        return

    async with app:
        broker = app.broker

        async def enqueue(*changes: str, **options: Any) -> str:
            new = NewJob("q", task="t", **options)
            return observed.expect((await broker.enqueue_job(new)).id, *changes)

        await broker.set_limit("one", Limit(running=1))
        await enqueue(CALL, limits=["one"])
        await enqueue(CALL, "limited", "expired while limited", limits=["one"], expires=5)
        unwanted = await enqueue(CALL, "limited", "cancelled while limited", limits=["one"])
        await enqueue(CALL, "limited", "woken", limits=["one"])
        [first] = await broker.claim("q", limit=4, worker="w")
        assert (await broker.cancel(unwanted)).acted
        clock.advance(5)
        assert await broker.promote() == 0
        await broker.ack(first)
        [woken] = await broker.claim("q", limit=4, worker="w")
        await broker.ack(woken)

        again, again_of_worker = await enqueue(CALL, EXPIRES), await enqueue(CALL, EXPIRES)
        last = await enqueue(CALL, LAST, "requeued", max_attempts=1)
        last_of_worker = await enqueue(CALL, LAST, "requeued", max_attempts=1)
        claimed = await broker.claim("q", limit=4, worker="w", lease=30)
        assert [job.id for job in claimed] == [again, again_of_worker, last, last_of_worker]
        await broker.renew_many([claimed[1], claimed[3]], lease=600)
        clock.advance(60)
        assert await broker.reap() == 2
        assert await broker.reclaim_from(["w"]) == 2
        assert await broker.requeue(last)
        assert await broker.requeue_dead("q") == 1

        ids = [
            await enqueue(CALL, "cancelled while pending"),
            await enqueue(LATER, "cancelled while scheduled", delay=60),
        ]
        assert (await broker.cancel(ids[0])).acted
        assert [outcome.acted for outcome in await broker.cancel_many([*ids, "unknown"])] == [
            False, True, False,
        ]  # fmt: skip
        await enqueue(CALL, "expired while pending", expires=5)
        await enqueue(LATER, "expired while scheduled", expires=5, delay=60)
        await enqueue(LATER, "due", delay=5)
        clock.advance(5)
        assert await broker.promote() == 1

        await broker.schedule(Recurring("often", every=10, task=tick))
        for _ in range(2):  # The second job has the dedup key of the first, which waits.
            clock.advance(10)
            await broker.recur()
        [fired] = await broker.jobs("ticks")
        observed.expect(fired.id, SCHEDULE)
        await observed.check()
    named = {(event.queue, event.task) for event in observed.events if event.id != fired.id}
    assert named == {("q", "t")}
