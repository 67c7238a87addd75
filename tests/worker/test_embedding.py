"""A worker inside another program: started, cancelled and torn down by its host."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from threading import Thread
from typing import Any

import anyio
import pytest

from dayjob import App, Broker, Context, JobState, Retry, Worker
from dayjob.runtime.clock import block
from tests.support.bound import BOUND
from tests.support.workers import MakeApp, record, until, with_timeout


@pytest.fixture
def long(app: App) -> Any:
    """A task that runs until it is interrupted. A lost attempt would make its job dead."""

    @app.task(max_attempts=1)
    async def long() -> None:
        await asyncio.Event().wait()

    return long


async def assert_released(broker: Broker, id: str) -> None:
    job = await record(broker, id)
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 0, None)
    assert await broker.workers() == []


# Start and stop.


async def test_a_worker_runs_jobs_in_the_background_of_a_block(app: App) -> None:
    @app.task(queue="email")
    async def double(n: int) -> int:
        return 2 * n

    worker = Worker(app)
    assert not worker.is_running
    assert not worker.ready
    async with worker as entered:
        assert entered is worker
        assert worker.ready
        assert worker.is_running
        assert await (await double.aenqueue(2)).aresult(timeout=10) == 4
        worker.stop()
        await until(lambda: not worker.ready)
    assert not worker.is_running


async def test_a_started_worker_drains_when_it_is_stopped(app: App, outside: Broker) -> None:
    gate = asyncio.Event()
    started = asyncio.Event()

    @app.task
    async def work() -> None:
        started.set()
        await gate.wait()

    handle = await work.aenqueue()
    worker = Worker(app)
    await worker.start()
    await with_timeout(started.wait())
    worker.stop()
    waiting = asyncio.create_task(worker.wait_stopped())
    await asyncio.wait({waiting}, timeout=0.05)
    assert not waiting.done()
    gate.set()
    await with_timeout(waiting)
    assert (await record(outside, handle.id)).state is JobState.DONE


async def test_a_start_that_fails_raises(make_app: MakeApp) -> None:
    def broken(app: App) -> Any:
        raise RuntimeError("no license")

    app = make_app(lifespan=broken)
    worker = Worker(app)
    with pytest.raises(RuntimeError, match="no license"):
        async with worker:
            raise AssertionError("the worker is not ready")
    assert not worker.is_running


async def test_a_start_that_hangs_ends_with_stop_now(make_app: MakeApp) -> None:
    class Hanging:
        async def __aenter__(self) -> None:
            await asyncio.Event().wait()

        async def __aexit__(self, *_: object) -> None: ...

    app = make_app(lifespan=lambda app: Hanging())
    worker = Worker(app)
    starting = asyncio.create_task(worker.start())
    await until(lambda: worker.is_running)
    worker.stop_now()
    with pytest.raises(asyncio.CancelledError):
        await with_timeout(starting)
    assert not worker.is_running


async def test_without_queues_a_worker_serves_those_of_its_app(app: App) -> None:
    ran: list[str] = []

    @app.task(queue="email")
    async def mail() -> None:
        ran.append("mail")

    @app.handler(queue="raw")
    async def raw(job: object) -> None:
        ran.append("raw")

    await mail.aenqueue()
    await app.broker.enqueue("raw")
    await with_timeout(Worker(app).run_until_idle())
    assert sorted(ran) == ["mail", "raw"]


async def test_a_worker_of_an_app_without_tasks_warns(app: App, caplog: pytest.LogCaptureFixture) -> None:
    await with_timeout(Worker(app).run_until_idle())
    assert "has no tasks, so the worker serves the queue 'default': import the modules" in caplog.text


async def test_failures_are_logged_as_the_command_does(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(retry=Retry.fixed(attempts=2, delay=0))
    async def fail() -> None:
        raise ValueError("no such address")

    handle = await fail.aenqueue()
    for _ in range(2):  # A second worker of the app does not log twice.
        await with_timeout(Worker(app).run_until_idle())
    logged = [(each.levelno, each.getMessage()) for each in caplog.records if each.name == "dayjob.job"]
    assert logged == [
        (logging.WARNING, f"Job {handle.id} failed and will be retried: ValueError: no such address"),
        (logging.ERROR, f"Job {handle.id} is dead: ValueError: no such address"),
    ]


# Cancelled by the host.


async def test_a_cancelled_block_releases_running_jobs(app: App, outside: Broker, long: Any) -> None:
    handle = await long.aenqueue()

    async def host() -> None:
        async with Worker(app, shutdown_timeout=60):
            await until(lambda: _is_running(outside, handle.id))
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await with_timeout(host())
    await assert_released(outside, handle.id)


async def test_a_cancel_scope_that_cancels_again_and_again_does_not_cut_off_the_release(
    app: App, outside: Broker, long: Any
) -> None:
    handle = await long.aenqueue()
    with anyio.CancelScope() as scope:
        running = asyncio.create_task(_cancel_when(scope, outside, handle.id))
        await Worker(app, shutdown_timeout=60).run()
    await running
    assert scope.cancelled_caught
    await assert_released(outside, handle.id)


async def _cancel_when(scope: anyio.CancelScope, broker: Broker, id: str) -> None:
    await until(lambda: _is_running(broker, id))
    scope.cancel()


async def test_the_end_of_asyncio_run_releases_running_jobs(app: App, outside: Broker, long: Any) -> None:
    """``asyncio.run`` cancels all tasks: the worker's, its handlers' and the broker's own."""
    handle = await long.aenqueue()
    await app.close()

    async def host() -> None:
        worker = Worker(app, shutdown_timeout=60)
        background.append(asyncio.create_task(worker.run()))
        await until(lambda: _has_state(handle.id, app, JobState.RUNNING))

    background: list[asyncio.Task[None]] = []
    await asyncio.to_thread(asyncio.run, host())
    await assert_released(outside, handle.id)
    await assert_no_job_waits_for_the_ended_worker(outside)


async def test_outcomes_that_are_not_stored_yet_survive_the_end_of_asyncio_run(
    app: App, outside: Broker
) -> None:
    ended: list[bool] = []

    @app.task
    async def work() -> None:
        ended.append(True)

    handles = await work.aenqueue_many([()] * 50)
    await app.close()

    async def host() -> None:
        background.append(asyncio.create_task(Worker(app).run()))
        await until(lambda: len(ended) >= 20)

    background: list[asyncio.Task[None]] = []
    await asyncio.to_thread(asyncio.run, host())
    states = [(await record(outside, handle.id)).state for handle in handles]
    assert states.count(JobState.DONE) == len(ended)
    assert set(states) <= {JobState.DONE, JobState.PENDING}
    await assert_no_job_waits_for_the_ended_worker(outside)


async def assert_no_job_waits_for_the_ended_worker(broker: Broker) -> None:
    """A claim of the worker may still wait in the storage. The next job is not lost to it."""
    await broker.claim("default", limit=100)
    new = await broker.enqueue("default")
    claimed: list[str] = []

    async def found() -> bool:
        claimed.extend(job.id for job in await broker.claim("default", limit=100))
        return new.id in claimed

    await until(found)


async def test_a_worker_in_a_thread_is_stopped_from_outside(app: App, outside: Broker, long: Any) -> None:
    handle = await long.aenqueue()
    await app.close()
    worker = Worker(app, shutdown_timeout=60)
    thread = Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    await until(lambda: _is_running(outside, handle.id))
    worker.stop_now()
    await asyncio.to_thread(thread.join)
    await assert_released(outside, handle.id)


async def _is_running(broker: Broker, id: str) -> bool:
    return (await record(broker, id)).state is JobState.RUNNING


async def _has_state(id: str, app: App, state: JobState) -> bool:
    return (await record(await app.opened(), id)).state is state


# Interrupted handlers.


@pytest.mark.parametrize(("stops", "state"), [("timeout", JobState.DEAD), ("shutdown", JobState.PENDING)])
async def test_a_handler_that_suppresses_its_interruption_and_returns_is_not_done(
    app: App, outside: Broker, stops: str, state: JobState
) -> None:
    started = asyncio.Event()

    @app.task(timeout=0.1 if stops == "timeout" else None, max_attempts=1)
    async def stubborn() -> str:
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "half of it"
        raise AssertionError

    handle = await stubborn.aenqueue()
    async with Worker(app, shutdown_timeout=0.1) as worker:
        await with_timeout(started.wait())
        if stops == "timeout":
            await until(lambda: worker.done)
    job = await record(outside, handle.id)
    assert job.state is state
    assert job.result is None
    if stops == "timeout":
        assert str(job.last_error).startswith("TimeoutError: timed out after 0.1 s")


# Signals.


@pytest.fixture
def host_handler() -> Iterator[list[int]]:
    """The handler of SIGTERM and SIGINT that the host has set. Returns the signals that it got."""
    received: list[int] = []

    def handle(number: int, _frame: object) -> None:
        received.append(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    yield received
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_a_worker_leaves_the_hosts_signal_handlers_alone(
    app: App, long: Any, host_handler: list[int]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with Worker(app) as worker:
        assert signal.getsignal(signal.SIGTERM) is before
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: host_handler == [signal.SIGTERM])
        assert worker.ready


async def test_a_worker_with_signals_stops_and_calls_the_hosts_handlers_too(
    app: App, outside: Broker, long: Any, host_handler: list[int]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    handle = await long.aenqueue()
    worker = Worker(app, shutdown_timeout=60)
    running = asyncio.create_task(worker.run(signals=True))
    await until(lambda: _is_running(outside, handle.id))
    await until(lambda: any(run.started_at for run in worker._runs.values()))  # Else it is given back.
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: not worker.ready)
    assert not running.done()
    os.kill(os.getpid(), signal.SIGINT)
    await with_timeout(running)
    assert host_handler == [signal.SIGTERM, signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) is before
    await assert_released(outside, handle.id)


async def test_a_helper_process_that_a_job_forks_and_terminates_does_not_stop_the_worker(app: App) -> None:
    @app.task
    def terminate_helper(ctx: Context) -> int:
        started, says_started = os.pipe()
        helper = os.fork()
        if helper == 0:
            os.write(says_started, b"s")
            block(60)
            os._exit(0)
        os.read(started, 1)
        os.close(started)
        os.close(says_started)
        os.kill(helper, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1])

    worker = Worker(app)
    running = asyncio.create_task(worker.run(signals=True))
    for _ in range(5):
        handle = await terminate_helper.aenqueue()
        assert await handle.aresult(timeout=BOUND) == -signal.SIGTERM
    assert worker.ready
    worker.stop()
    await with_timeout(running)
