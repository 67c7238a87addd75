"""Leases are renewed while jobs run, though the event loop is blocked; a lost lease is detected."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from dayjob import App, Broker, BrokerConfig, Context, JobState
from dayjob.cli.worker.process import SWITCH_INTERVAL
from dayjob.duties.duties import WatchCancels
from dayjob.events import Event
from dayjob.runtime.clock import SYSTEM, block
from dayjob.runtime.threads import call_on
from dayjob.testing import ManualClock
from dayjob.worker import heartbeat as heartbeats
from tests.support.bound import BOUND
from tests.support.workers import (
    KEEP_ALL,
    MakeApp,
    OpenBroker,
    first_run_waits,
    pause,
    record,
    until,
    with_timeout,
    working,
)

LEASE = 0.5
BLOCKED = "the event loop has been blocked"


@pytest.mark.slow
async def test_a_handler_that_blocks_the_loop_keeps_its_lease(
    app: App, outside: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    renewed = threading.Event()

    @app.task
    async def busy(ctx: Context) -> int:
        holds_the_loop(lambda: renewed.is_set() and BLOCKED in caplog.text)
        return ctx.attempt

    leases: list[int] = []

    async def watch() -> None:
        async with Broker(app.url, config=outside.config) as broker:
            while not renewed.is_set():
                leases.extend(job.lease_us or 0 for job in await broker.jobs(state="running"))
                if len(set(leases)) > 3:
                    renewed.set()
                await pause(0.02)

    watching = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(watch())))
    with caplog.at_level(logging.WARNING, "dayjob.worker"):
        try:
            async with working(app, lease=LEASE):
                handle = await busy.aenqueue()
                assert await with_timeout(handle.aresult()) == 1, "the first attempt"
        finally:
            renewed.set()
            await with_timeout(watching)
    assert len(set(leases)) > 3, "the lease moved on three times while nothing else could"
    assert leases == sorted(leases)
    assert BLOCKED in caplog.text
    assert "holds_the_loop" in caplog.text


def holds_the_loop(until: Callable[[], bool]) -> None:
    deadline = SYSTEM.elapsed() + BOUND / 2
    while not until() and SYSTEM.elapsed() < deadline:
        block(0.05)


@pytest.mark.slow
async def test_jobs_that_have_not_begun_behind_a_blocked_loop_are_released_for_others(
    app: App, outside: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def call_late(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
        """Report the release to the worker after its loop runs again."""
        if callback.__name__ == "_released":
            threading.Timer(0.2, call_on, (loop, callback, *args)).start()
        else:
            call_on(loop, callback, *args)

    monkeypatch.setattr(heartbeats, "call_on", call_late)

    @app.task
    async def busy() -> None:
        holds_the_loop(released.is_set)

    @app.task
    async def behind(ctx: Context) -> int:
        return ctx.attempt

    first = await busy.using(priority=1).aenqueue()
    others = await behind.aenqueue_many([()] * 5)

    async def watch() -> None:
        async with Broker(app.url, config=outside.config) as broker:
            while not released.is_set():
                jobs = {job.id: job for job in await broker.jobs()}
                if jobs[first.id].state is JobState.RUNNING and all(
                    (job.state, job.attempts, job.epoch > 0) == (JobState.PENDING, 0, True)
                    for job in (jobs[each.id] for each in others)
                ):
                    released.set()
                await pause(0.02)

    watching = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(watch())))
    try:
        async with working(app, max_jobs=6):  # The released runs do not count.
            assert [await with_timeout(each.aresult()) for each in others] == [1] * 5
            assert released.is_set(), "while the loop was blocked"
            await with_timeout(first.aresult())
    finally:
        released.set()
        await with_timeout(watching)
    assert "5 jobs had not begun behind the blocked event loop and were released" in caplog.text


@pytest.mark.slow
async def test_leases_of_long_jobs_and_of_the_jobs_waiting_behind_them_are_renewed(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dayjob.worker.worker.MAX_WAIT", 60.0)
    started: list[int] = []
    finish = threading.Event()

    @app.task
    def work(number: int) -> None:
        started.append(number)
        finish.wait(BOUND)

    await work.aenqueue_many([(number,) for number in range(8)])
    async with working(app, threads=4, lease=LEASE) as worker:
        await until(lambda: len(started) == 4)
        held = await outside.jobs(state="running")
        assert len(held) == 8

        async def all_moved_on() -> bool:
            later = {job.id: job for job in await outside.jobs(state="running")}
            assert {job.attempts for job in later.values()} == {1}
            half = SYSTEM.elapsed() + LEASE / 2
            assert all(run.renew_at <= half for run in list(worker._runs.values())), "before they run out"
            return all(
                (later[job.id].lease_us or 0) > (job.lease_us or 0) + 3 * LEASE * 1_000_000 for job in held
            )

        await until(all_moved_on)
        finish.set()
        await until(lambda: worker.done == 8)
    assert (await outside.stats("default")).done == 8


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_run_that_lost_its_lease_is_signalled_and_its_outcome_refused(
    app: App, open_broker: OpenBroker, outside: Broker, kind: str
) -> None:
    contexts = first_run_waits(app, kind)
    events: list[str] = []

    @app.on("job.lost")
    async def lost(event: Event) -> None:
        events.append(event.id)

    later = await open_broker(ManualClock(ManualClock().time + timedelta(days=3650)))
    async with working(app, lease=1):
        handle = await app.tasks["work"].aenqueue()
        await until(lambda: contexts)
        assert await later.reap() == 1
        result = await with_timeout(handle.aresult())
        await until(lambda: contexts[0].cancelled)
        assert contexts[0].cancelled.reason == "lost"
        assert not contexts[1].cancelled
        await until(lambda: events == [handle.id])
    job = await record(outside, handle.id)
    assert (job.state, job.attempts, result) == (JobState.DONE, 2, f"epoch {job.epoch}")


@pytest.mark.slow
async def test_a_claim_lost_before_its_run_started_is_not_run(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dayjob.worker.worker.MAX_WAIT", 60.0)
    started, finish = threading.Event(), threading.Event()
    late: list[int] = []

    @app.task
    def work() -> None:
        started.set()
        finish.wait(BOUND)

    @app.task(queue="behind")
    def last(ctx: Context) -> None:
        late.append(ctx.epoch)

    await work.aenqueue()
    handle = await last.aenqueue()
    async with working(app, queues=("default", "behind"), threads=1, lease=1) as worker:
        await until(started.is_set)
        await until(lambda: _running(outside, handle.id))
        job = (await outside.jobs(queue="behind"))[0]
        await outside.dead_letter(job, "taken away")
        await until(lambda: worker._runs[job.key].lost)
        finish.set()
        await until(lambda: _done(outside, 1))
    assert late == []
    job = await record(outside, handle.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "taken away")


async def _running(broker: Broker, id: str) -> bool:
    return (await record(broker, id)).state is JobState.RUNNING


async def _done(broker: Broker, count: int) -> bool:
    return (await broker.stats("default")).done == count


async def test_a_renewal_reports_a_cancel_request(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(self: WatchCancels) -> None:
        return

    monkeypatch.setattr(WatchCancels, "run_once", deaf)
    started = asyncio.Event()

    @app.task(cancel="interrupt")
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async with working(app, lease=1):
        handle = await work.aenqueue()
        await with_timeout(started.wait())
        await outside.cancel(handle.id)
        await with_timeout(handle.await_end())
    assert await handle.astatus() is JobState.CANCELLED


@pytest.fixture
def short_switch_interval() -> Iterator[None]:
    """Threads take turns as often as in ``dayjob worker``."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("short_switch_interval")
async def test_heartbeats_continue_while_cpu_bound_handlers_use_all_threads(
    make_app: MakeApp, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dayjob.worker.registration.ALONE_INTERVAL", 0.3)
    app = make_app(config=BrokerConfig(dead_after=3, retention=KEEP_ALL))
    finish = threading.Event()
    running: set[int] = set()

    @app.task
    def burn(number: int) -> None:
        running.add(number)
        deadline = SYSTEM.elapsed() + BOUND
        while not finish.is_set() and SYSTEM.elapsed() < deadline:
            sum(range(1000))

    await burn.aenqueue_many([(number,) for number in range(8)])
    async with working(app, threads=4) as worker:
        try:
            await until(lambda: len(running) == 4)
            seen: set[tuple[str, int]] = set()

            async def three_more_heartbeats() -> bool:
                seen.update((info.id, info.seen_us) for info in await outside.workers())
                return len(seen) > 3

            await until(three_more_heartbeats)
            assert len(running) == 4
            assert {id for id, _ in seen} == {worker.id}, "it was not declared dead"
        finally:
            finish.set()
