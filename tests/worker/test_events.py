"""Observers are called after the change is stored, and affect no job."""

from __future__ import annotations

import asyncio
import logging
from threading import Event as ThreadEvent
from typing import Any

import pytest

from dayjob import (
    App,
    Broker,
    BrokerConfig,
    ConfigError,
    Context,
    DeadLetter,
    JobCancelled,
    JobState,
    Retry,
    Worker,
)
from dayjob.events import Event, Events
from dayjob.runtime.clock import SYSTEM
from tests.support.bound import BOUND
from tests.support.workers import MakeApp, OpenBroker, record, run_until_idle, until, with_timeout, working


def observing(app: App, pattern: str = "*") -> list[Event]:
    seen: list[Event] = []

    @app.on(pattern)
    async def observe(event: Event) -> None:
        seen.append(event)

    return seen


def events_of(events: list[Event], id: str) -> list[tuple[str, JobState | None, JobState | None]]:
    return [(event.name, event.old_state, event.new_state) for event in events if event.id == id]


async def test_a_success_without_observers_costs_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of outcomes observes failures, so the app always has an observer."""
    emitted: list[JobState] = []
    monkeypatch.setattr(Worker, "_emit_outcome", lambda self, run, settlement, state: emitted.append(state))

    @app.task(name="work")
    async def work(fail: bool) -> None:
        if fail:
            raise DeadLetter("hopeless")

    await work.aenqueue_many([(False,), (True,)])
    await run_until_idle(app)
    assert emitted == [JobState.DEAD]
    observing(app, "job.succeeded")
    await work.aenqueue(False)
    await run_until_idle(app)
    assert emitted == [JobState.DEAD, JobState.DONE]


async def test_each_outcome_of_a_run_has_its_events(app: App, outside: Broker) -> None:
    seen = observing(app)

    @app.task(name="work", retry=Retry.fixed(attempts=2, delay=0))
    async def work(kind: str) -> None:
        if kind == "fail":
            raise ValueError("failed")
        if kind == "dead":
            raise DeadLetter("hopeless")

    handles = {kind: await work.aenqueue(kind) for kind in ("return", "fail", "dead")}
    worker = Worker(app, name="wanda")
    await with_timeout(worker.run_until_idle())
    running, pending, dead, done = JobState.RUNNING, JobState.PENDING, JobState.DEAD, JobState.DONE
    started = ("job.started", pending, running)
    first_events = [("job.enqueued", None, pending), started]
    assert events_of(seen, handles["return"].id) == [*first_events, ("job.succeeded", running, done)]
    assert events_of(seen, handles["fail"].id) == [
        *first_events,
        ("job.failed", running, pending),
        ("job.retrying", running, pending),
        started,
        ("job.failed", running, dead),
        ("job.dead", running, dead),
    ]
    assert events_of(seen, handles["dead"].id) == [
        *first_events,
        ("job.failed", running, dead),
        ("job.dead", running, dead),
    ]
    assert events_of(seen, "wanda") == [("worker.started", None, None), ("worker.stopped", None, None)]
    failed = next(event for event in seen if event.name == "job.failed")
    assert (failed.queue, failed.task) == ("default", "work")
    assert str(failed.error).startswith("ValueError: failed")
    assert failed.job is not None


async def test_a_cancelled_run_has_an_event(app: App, outside: Broker) -> None:
    seen = observing(app, "job.cancelled")
    started = asyncio.Event()

    @app.task
    async def work(ctx: Context) -> None:
        started.set()
        await ctx.cancelled.wait()
        raise JobCancelled

    async with working(app):
        handle = await work.aenqueue()
        await with_timeout(started.wait())
        await outside.cancel(handle.id)
        await until(lambda: seen)
    assert events_of(seen, handle.id) == [("job.cancelled", JobState.RUNNING, JobState.CANCELLED)]


async def test_observers_are_called_after_the_change_is_stored(app: App, outside: Broker) -> None:
    found: list[tuple[str, JobState]] = []

    @app.on("job.*")
    async def look(event: Event) -> None:
        found.append((event.name, (await record(outside, event.id)).state))

    @app.task
    async def work(ctx: Context) -> None:
        await until(lambda: ("job.started", JobState.RUNNING) in found)

    await work.aenqueue()
    async with working(app):
        await until(lambda: len(found) == 3)
    assert found[1:] == [("job.started", JobState.RUNNING), ("job.succeeded", JobState.DONE)]
    assert found[0][0] == "job.enqueued"


async def test_each_observer_gets_the_events_of_its_pattern(app: App) -> None:
    everything, jobs, ends = observing(app), observing(app, "job.*"), observing(app, "job.succeeded")
    in_thread: list[Event] = []
    app.on("job.s*")(in_thread.append)

    @app.task
    async def work() -> None:
        return

    await work.aenqueue()
    await run_until_idle(app)
    assert [event.name for event in jobs] == ["job.enqueued", "job.started", "job.succeeded"]
    assert [event.name for event in ends] == ["job.succeeded"]
    assert [event.name for event in in_thread] == ["job.started", "job.succeeded"]
    assert len(everything) == 5
    with pytest.raises(ConfigError, match=r"job\.exploded"):
        app.on("job.exploded")(lambda event: None)


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_observer_that_raises_affects_neither_jobs_nor_other_observers(
    app: App, caplog: pytest.LogCaptureFixture, kind: str, error: type[BaseException]
) -> None:
    calls: list[str] = []

    if kind == "async":

        @app.on("job.*")
        async def bad(event: Event) -> None:
            calls.append(event.name)
            raise error

    else:

        @app.on("job.*")
        def bad_in_thread(event: Event) -> None:
            calls.append(event.name)
            raise error

    good = observing(app, "job.*")

    @app.task
    async def work() -> str:
        return "fine"

    handles = [await work.aenqueue() for _ in range(3)]
    with caplog.at_level(logging.ERROR, "dayjob.events"):
        await run_until_idle(app)
    assert len(good) == len(calls) == 9
    assert [await handle.aresult() for handle in handles] == ["fine"] * 3
    assert "failed on job.succeeded" in caplog.text


async def test_observers_that_block_or_are_slow_delay_neither_jobs_nor_other_observers(app: App) -> None:
    gate, slow_gate = ThreadEvent(), asyncio.Event()
    blocked: list[str] = []
    slow: list[str] = []

    @app.on("job.*")
    def block(event: Event) -> None:
        assert gate.wait(BOUND)
        blocked.append(event.name)

    @app.on("job.*")
    async def dawdle(event: Event) -> None:
        await slow_gate.wait()
        slow.append(event.name)

    quick = observing(app, "job.succeeded")

    @app.task
    async def work() -> None:
        return

    async with working(app):
        handles = await work.aenqueue_many([()] * 20)
        for handle in handles:
            await with_timeout(handle.await_end())
        await until(lambda: len(quick) == 20)
        assert blocked == slow == []
        gate.set()
        slow_gate.set()
    assert len(blocked) == len(slow) == 60


async def test_an_observer_that_never_ends_does_not_delay_the_exit(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dayjob.worker.worker._INTERRUPT_TIMEOUT", 0.2)
    gate = ThreadEvent()

    @app.on("worker.started")
    def never_ends(event: Event) -> None:
        gate.wait(BOUND)

    began = SYSTEM.elapsed()
    await run_until_idle(app)
    assert SYSTEM.elapsed() - began < 5
    gate.set()


async def test_events_without_observers_are_not_built(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Event:
        raise AssertionError(f"an event was built: {arguments}")

    for name in ("dayjob.app.Event", "dayjob.worker.worker.Event"):
        monkeypatch.setattr(name, refuse)
    app.on("job.lost")(lambda event: None)

    @app.task(retry=Retry.none())
    async def work(fails: bool) -> None:
        if fails:
            raise ValueError

    handles = [await work.aenqueue(fails) for fails in (True, False)]
    await run_until_idle(app)
    assert [await handle.astatus() for handle in handles] == [JobState.DEAD, JobState.DONE]


async def test_events_of_synchronous_enqueues_and_of_the_worker_all_arrive(app: App) -> None:
    seen: list[Event] = []
    app.on("job.*")(seen.append)

    @app.task
    async def work() -> None:
        return

    async with working(app):
        for _ in range(30):
            await asyncio.to_thread(work.enqueue)
        await until(lambda: len(seen) == 90)


async def test_a_slow_observer_loses_the_oldest_events_with_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dayjob.events.MAX_QUEUED", 5)
    events = Events()
    gate = asyncio.Event()
    seen: list[str] = []

    async def slow(event: Event) -> None:
        await gate.wait()
        seen.append(event.id)

    events.add("job.*", slow)
    with caplog.at_level(logging.WARNING, "dayjob.events"):
        for n in range(20):
            events.emit(Event("job.started", str(n)))
        gate.set()
        await with_timeout(events.flush(10))
    assert seen == ["15", "16", "17", "18", "19"]
    assert caplog.text.count("too slow") == 1


async def test_a_lost_run_emits_only_the_lost_event(make_app: MakeApp, open_broker: OpenBroker) -> None:
    app = make_app()
    seen = observing(app, "job.*")
    outside = await open_broker()
    started, finish = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        started.set()
        await finish.wait()

    handle = await work.aenqueue()
    async with working(app):
        await with_timeout(started.wait())
        await outside.dead_letter((await outside.jobs())[0], "taken away")
        finish.set()
        await until(lambda: len(seen) == 3)
    assert [event.name for event in seen] == ["job.enqueued", "job.started", "job.lost"]
    assert seen[-1].id == handle.id


async def test_jobs_that_end_without_a_worker_have_events(make_app: MakeApp) -> None:
    """The duties of a worker end them: the lease expired, the worker is gone, the job expired."""
    app = make_app(config=BrokerConfig(reap_interval=0.2))
    seen = observing(app, "job.*")

    @app.task(name="work", queue="other")
    async def work() -> None:
        return

    async with app:
        ids = [(await work.using(max_attempts=attempts).aenqueue()).id for attempts in (1, 2)]
        claimed = await app.broker.claim("other", limit=2, lease=0.2)
        assert [job.id for job in claimed] == ids
        late = await work.using(expires=0.2).aenqueue()
        async with working(app, queues=("default",)):
            await until(lambda: len(seen) == 3 + 5)
    running, pending, dead, cancelled = (
        JobState.RUNNING, JobState.PENDING, JobState.DEAD, JobState.CANCELLED,
    )  # fmt: skip
    assert events_of(seen, ids[0])[1:] == [("job.failed", running, dead), ("job.dead", running, dead)]
    assert events_of(seen, ids[1])[1:] == [
        ("job.failed", running, pending),
        ("job.retrying", running, pending),
    ]
    assert events_of(seen, late.id)[1:] == [("job.cancelled", pending, cancelled)]
    ended = [event for event in seen if event.name != "job.enqueued"]
    assert {(event.queue, event.task, event.job) for event in ended} == {("other", "work", None)}
    assert {event.error for event in ended} == {"lease expired", "expired: not started in time"}
