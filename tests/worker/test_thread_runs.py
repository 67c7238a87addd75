"""Plain functions run in threads that share one queue of runs, without a task of the event loop for each."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from threading import Event as ThreadEvent
from typing import Any
from weakref import ref

import pytest

from dayjob import App, Broker, JobState, Worker
from dayjob.model.settlement import Settlement
from dayjob.runtime.clock import yield_to_loop
from dayjob.runtime.ids import new_key
from dayjob.worker.executor import Executor, Run
from dayjob.worker.thread_runs import ThreadRuns
from tests.support.bound import BOUND
from tests.support.workers import MakeApp, record, run_until_idle, until, with_timeout, working

COLOUR: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture
def url() -> str:
    """The engine makes no difference to threads."""
    return f"memory://{new_key().hex()}"


class Large:
    pass


@pytest.fixture
def gate() -> Iterator[ThreadEvent]:
    gate = ThreadEvent()
    yield gate
    gate.set()


async def test_a_long_run_delays_no_run_behind_it_while_a_thread_is_free(app: App) -> None:
    others = ThreadEvent()
    ran: list[int] = []

    @app.task
    def work(number: int) -> bool:
        if number == 0:
            return others.wait(BOUND)
        ran.append(number)
        if len(ran) == 50:
            others.set()
        return True

    handles = await work.aenqueue_many([(number,) for number in range(51)])
    await run_until_idle(app, threads=2)
    assert await handles[0].aresult() is True, "the other thread took all others"


async def test_long_runs_use_all_threads(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dayjob.worker.worker.MAX_WAIT", 60.0)
    barrier = threading.Barrier(5)

    @app.task
    def work() -> None:
        barrier.wait(5)

    await work.aenqueue_many([()] * 10)
    worker = await run_until_idle(app, threads=5)
    assert (worker.done, barrier.broken) == (10, False)


async def test_the_ends_of_runs_reach_the_event_loop_together(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    take_reports = ThreadRuns._take_reports

    def counted(self: ThreadRuns) -> None:
        turns.append(len(self._reports))
        take_reports(self)

    monkeypatch.setattr(ThreadRuns, "_take_reports", counted)
    started, go = ThreadEvent(), ThreadEvent()

    @app.task
    def work(number: int) -> None:
        if number == 0:
            started.set()
            go.wait(BOUND)

    async with working(app, threads=1) as worker:
        await work.aenqueue_many([(number,) for number in range(100)])
        await until(started.is_set)
        limit = worker._limits["thread"]
        go.set()
        while limit.active:  # The event loop is blocked here, so the thread ends all runs meanwhile.
            threading.Event().wait(0.005)
        await until(lambda: worker.done == 100)
    assert max(turns) >= 99
    assert len(turns) <= 3


async def test_slots_limit_the_runs_in_threads(app: App) -> None:
    inside: list[int] = []
    most: list[int] = []
    barrier = threading.Barrier(2)

    @app.task
    def work() -> None:
        inside.append(1)
        most.append(len(inside))
        barrier.wait(BOUND)
        inside.pop()
        barrier.wait(BOUND)

    await work.aenqueue_many([()] * 10)
    worker = await run_until_idle(app, concurrency=2, threads=5)
    assert worker.done == 10
    assert max(most) == 2


async def test_a_thread_gives_its_slot_to_an_older_coroutine(app: App, gate: ThreadEvent) -> None:
    order: list[str] = []

    @app.task(queue="plain")
    def plain(name: str) -> None:
        gate.wait(BOUND)
        order.append(name)

    @app.task(queue="coroutines")
    async def coroutine() -> None:
        order.append("coroutine")

    async with working(app, concurrency=1) as worker:
        await plain.aenqueue("first")
        await until(lambda: worker._slots.running == 1)
        broker = await app.opened()
        await coroutine.aenqueue()
        worker._accept_all(await broker.claim(["coroutines"], worker=worker.id))
        await plain.aenqueue("last")
        worker._accept_all(await broker.claim(["plain"], worker=worker.id))
        assert worker._slots.in_use == 1
        gate.set()
        await until(lambda: len(order) == 3)
    assert order == ["first", "coroutine", "last"]


async def test_a_context_variable_set_in_a_thread_is_unset_in_the_next_run(app: App) -> None:
    seen: list[str] = []

    @app.task
    def work() -> None:
        seen.append(COLOUR.get())
        COLOUR.set("red")

    await work.aenqueue_many([()] * 20)
    await run_until_idle(app, threads=1)
    assert seen == ["none"] * 20


async def test_a_run_keeps_its_place_while_its_awaitable_result_is_awaited(app: App) -> None:
    """A plain function may wrap a coroutine function."""
    inside: list[int] = []
    most: list[int] = []

    async def awaited() -> str:
        inside.append(1)
        most.append(len(inside))
        await yield_to_loop()
        inside.pop()
        return "awaited"

    @app.task
    def work() -> Any:
        return awaited()

    handles = await work.aenqueue_many([()] * 5)
    await run_until_idle(app, threads=1)
    assert [await handle.aresult() for handle in handles] == ["awaited"] * 5
    assert max(most) == 1


async def test_the_timeout_includes_the_awaitable_result(app: App, outside: Broker) -> None:
    async def awaited() -> None:
        await asyncio.Event().wait()

    @app.task(timeout=0.05, max_attempts=1)
    def work() -> Awaitable[None]:
        return awaited()

    handle = await work.aenqueue()
    await run_until_idle(app)
    assert "timed out after 0.05 s" in str((await record(outside, handle.id)).last_error)


async def test_jobs_wait_while_no_thread_can_be_started(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dayjob.worker.worker.MAX_WAIT", 0.05)
    refused: list[Callable[[], None]] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            if len(refused) < 2:
                refused.append(super().start)
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr("dayjob.worker.thread_pool.Thread", Thread)

    @app.task(max_attempts=1)
    def work() -> str:
        return "done"

    async with working(app):
        handle = await work.aenqueue()
        assert await with_timeout(handle.aresult()) == "done"
    assert len(refused) == 2
    assert "a thread could not be started: can't start new thread" in caplog.text
    assert (await record(outside, handle.id)).attempts == 1


async def test_a_failed_run_leaves_no_cycle_of_its_error_and_its_frames(app: App) -> None:
    kept: list[ref[Large]] = []

    @app.task(max_attempts=1)
    def work() -> None:
        large = Large()
        kept.append(ref(large))
        raise ValueError(large)

    await work.aenqueue()
    gc.disable()
    try:
        await run_until_idle(app)
        assert kept[0]() is None
    finally:
        gc.enable()


async def test_a_run_that_needs_the_event_loop_waits_for_no_run_before_it_while_a_thread_is_free(
    make_app: MakeApp, gate: ThreadEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant's scope is entered on the event loop. Only jobs with a tenant need it."""
    monkeypatch.setattr("dayjob.worker.worker.MAX_WAIT", 60.0)

    @asynccontextmanager
    async def scope(tenant: str) -> AsyncIterator[None]:
        yield

    app = make_app(tenant_scope=scope)
    entered: list[str] = []

    @app.task
    def work(name: str) -> None:
        entered.append(name)
        gate.wait(BOUND)

    await work.aenqueue("plain")
    await work.using(tenant="a").aenqueue("scoped")
    async with working(app, threads=2):
        await until(lambda: sorted(entered) == ["plain", "scoped"])
        gate.set()


async def test_an_error_of_the_worker_fails_one_run_only(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = Executor.outcome

    def fails_first(self: Executor, run: Run, result: Any, error: BaseException | None) -> Settlement | None:
        if result == 0:
            raise RuntimeError("a defect")
        return outcome(self, run, result, error)

    monkeypatch.setattr(Executor, "outcome", fails_first)

    @app.task(max_attempts=1)
    def work(number: int) -> int:
        return number

    handles = await work.aenqueue_many([(number,) for number in range(3)])
    await run_until_idle(app, threads=1)
    jobs = [await record(outside, handle.id) for handle in handles]
    assert [job.state for job in jobs] == [JobState.DEAD, JobState.DONE, JobState.DONE]
    assert "RuntimeError: a defect" in str(jobs[0].last_error)
    assert "the executor failed" in caplog.text


async def test_a_stop_takes_no_further_run(app: App, outside: Broker, gate: ThreadEvent) -> None:
    @app.task
    def work() -> None:
        gate.wait(BOUND)

    handles = await work.aenqueue_many([()] * 3)
    worker = Worker(app, threads=1)
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.is_running and worker.ready and worker._slots.running == 1)
    worker._stopping.set()  # Before the drain takes the runs that wait.
    gate.set()
    await with_timeout(running)
    states = [(await record(outside, handle.id)).state for handle in handles]
    assert states == [JobState.DONE, JobState.PENDING, JobState.PENDING]
