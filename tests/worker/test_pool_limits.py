"""Threads and child processes have limits of their own, besides the slots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from threading import Event as ThreadEvent
from threading import Lock

import pytest

from dayjob import App, Broker, JobState, Worker
from tests.support.bound import BOUND
from tests.support.workers import MakeApp, record, run_until_idle, until, with_timeout, working

MAX_WAIT = "dayjob.worker.worker.MAX_WAIT"


class Gate:
    """Plain handlers wait here. Records how many are inside at once."""

    def __init__(self) -> None:
        self.open = ThreadEvent()
        self.inside = 0
        self.most = 0
        self._lock = Lock()

    def pass_through(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.open.wait(BOUND)
        with self._lock:
            self.inside -= 1


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


async def test_plain_functions_have_no_more_threads_than_the_limit(app: App, gate: Gate) -> None:
    @app.task
    def plain() -> None:
        gate.pass_through()

    @app.task
    async def coroutine() -> str:
        return "done"

    async with working(app, threads=3) as worker:
        await plain.aenqueue_many([()] * 5)
        await until(lambda: gate.inside == 3)
        handle = await coroutine.aenqueue()
        assert await with_timeout(handle.aresult()) == "done", "a coroutine needs no thread"
        assert gate.inside == 3
        gate.open.set()
        await until(lambda: worker.done == 6)
    assert gate.most == 3


def test_the_default_limit_is_small(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 10), (2, 10), (8, 32), (None, 10)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        worker = Worker(app)
        assert (worker.threads, worker.pool_processes) == (threads, cores or 1)


async def test_a_short_plain_function_runs_many_times_in_few_threads(app: App, gate: Gate) -> None:
    gate.open.set()

    @app.task
    def plain() -> None:
        gate.pass_through()

    await plain.aenqueue_many([()] * 1000)
    worker = await run_until_idle(app, threads=2)
    assert worker.done == 1000
    assert gate.most <= 2


async def test_jobs_that_wait_for_a_thread_are_given_back_to_a_worker_with_free_threads(
    make_app: MakeApp, outside: Broker, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MAX_WAIT, 0.2)
    apps = [make_app(), make_app()]
    for app in apps:

        @app.task(name="plain")
        def plain() -> None:
            gate.pass_through()

    handles = await apps[0].tasks["plain"].aenqueue_many([()] * 6)
    async with working(apps[0], threads=1, name="a"):
        await until(lambda: gate.inside == 1)
        async with working(apps[1], threads=5, name="b"):
            await until(lambda: gate.inside == 6)
            gate.open.set()
    jobs = [await record(outside, handle.id) for handle in handles]
    assert [(job.state, job.attempts) for job in jobs] == [(JobState.DONE, 1)] * 6


async def test_a_worker_takes_back_its_jobs_if_no_other_has_a_thread(
    app: App, outside: Broker, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MAX_WAIT, 0.05)

    @app.task
    def plain() -> None:
        gate.pass_through()

    handles = await plain.aenqueue_many([()] * 4)
    async with working(app, threads=1) as worker:
        await until(lambda: gate.inside == 1)

        async def given_back() -> bool:
            return (await outside.stats("default")).pending == 3

        await until(given_back)
        gate.open.set()
        await until(lambda: worker.done == 4)
    jobs = [await record(outside, handle.id) for handle in handles]
    assert [(job.state, job.attempts) for job in jobs] == [(JobState.DONE, 1)] * 4


async def test_a_queue_of_plain_functions_does_not_hold_up_other_queues(
    app: App, outside: Broker, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker leaves out a queue whose jobs wait for threads, until one is free."""
    monkeypatch.setattr(MAX_WAIT, 60.0)

    @app.task(queue="plain")
    def plain() -> None:
        gate.pass_through()

    @app.task(queue="other")
    async def coroutine() -> str:
        return "done"

    await plain.aenqueue_many([()] * 150)
    async with working(app, threads=1) as worker:
        await until(lambda: gate.inside == 1)
        assert (await outside.stats("plain")).pending == 50, "one claim, for all slots"
        for _ in range(3):
            handle = await coroutine.aenqueue()
            assert await with_timeout(handle.aresult()) == "done"
        gate.open.set()
        await until(lambda: worker.done == 153)
    assert gate.most == 1


async def test_an_abandoned_thread_keeps_its_place_until_its_handler_returns(
    app: App, gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(MAX_WAIT, 0.05)

    @app.task(timeout=0.05, max_attempts=1)
    def stuck() -> None:
        gate.pass_through()

    @app.task
    def quick() -> str:
        assert gate.open.is_set()
        return "done"

    @app.task(queue="other")
    async def coroutine() -> str:
        return "done"

    with caplog.at_level(logging.WARNING, "dayjob.worker"):
        async with working(app, threads=1) as worker:
            timed_out = await stuck.aenqueue()
            await with_timeout(timed_out.await_end())
            assert await timed_out.astatus() is JobState.DEAD
            waiting = await quick.aenqueue()
            handle = await coroutine.aenqueue()
            assert await with_timeout(handle.aresult()) == "done"
            await until(lambda: "jobs are released: all 1 threads are in use" in caplog.text)
            assert "handlers that did not end after their timeouts" in str(worker.problem())
            gate.open.set()
            assert await with_timeout(waiting.aresult()) == "done"
            assert worker.problem() is None
    assert caplog.text.count("jobs are released") == 1


async def test_a_drain_releases_jobs_that_wait_for_a_thread(app: App, outside: Broker, gate: Gate) -> None:
    @app.task
    def plain() -> None:
        gate.pass_through()

    await plain.aenqueue_many([()] * 5)
    async with working(app, threads=2) as worker:
        await until(lambda: gate.inside == 2)
        worker.stop()
        asyncio.get_running_loop().call_later(0.05, gate.open.set)
    stats = await outside.stats("default")
    assert (stats.done, stats.pending, stats.running) == (2, 3, 0)
    assert {job.attempts for job in await outside.jobs(state="pending")} == {0}
