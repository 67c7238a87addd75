"""The outcome of a job for each way that its handler ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dayjob import (
    App,
    Broker,
    Context,
    DeadLetter,
    JobCancelled,
    JobState,
    Retention,
    Retry,
    RetryLater,
    Snooze,
)
from dayjob.model.config import BrokerConfig
from dayjob.testing import ManualClock
from tests.support.workers import MakeApp, record, run_until_idle


class Odd(BaseException):
    """A ``BaseException`` that is not an ``Exception``."""


RAISED: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("a plain error"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "StopIteration": lambda: StopIteration(7),
    "StopAsyncIteration": StopAsyncIteration,
    "Odd": lambda: Odd("odd"),
    "ExceptionGroup": lambda: ExceptionGroup("several", [ValueError("one"), TypeError("two")]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [Odd("one"), KeyboardInterrupt()]),
    "TimeoutError": lambda: TimeoutError("its own"),
    "RecursionError": RecursionError,
}


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("name", RAISED)
async def test_any_exception_of_a_handler_fails_its_job_only(
    app: App, outside: Broker, kind: str, name: str
) -> None:
    if kind == "coroutine":

        @app.task(name="bad", retry=Retry.fixed(attempts=2, delay=0))
        async def bad() -> None:
            raise RAISED[name]()

    else:

        @app.task(name="bad", retry=Retry.fixed(attempts=2, delay=0))
        def bad_in_thread() -> None:
            raise RAISED[name]()

    @app.task
    async def good() -> str:
        return "fine"

    broken = await app.tasks["bad"].aenqueue()
    fine = await good.aenqueue()
    worker = await run_until_idle(app)
    assert worker.done == 3
    assert await fine.aresult() == "fine"
    job = await record(outside, broken.id)
    assert (job.state, job.attempts) == (JobState.DEAD, 2)
    text = str(job.last_error)
    assert name in text
    assert "raise RAISED[name]()" in text
    assert "dayjob/worker/executor" not in text


async def test_a_generator_exit_raised_by_a_future_fails_the_job(app: App, outside: Broker) -> None:
    """A future that ends with GeneratorExit closes all coroutines that await it, up to the outermost."""

    @app.task(max_attempts=1)
    async def bad() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(GeneratorExit("odd"))
        await asyncio.wait_for(asyncio.shield(future), 10)

    handle = await bad.aenqueue()
    worker = await run_until_idle(app)
    assert worker.done == 1
    job = await record(outside, handle.id)
    assert job.state is JobState.DEAD
    assert "GeneratorExit" in str(job.last_error)


async def test_the_result_is_kept(app: App, outside: Broker) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    def shout(text: str) -> str:
        return text.upper()

    sum_, loud = await add.aenqueue(2, 3), await shout.aenqueue("hi")
    await run_until_idle(app)
    assert await sum_.aresult() == 5
    assert await loud.aresult() == "HI"
    job = await record(outside, sum_.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DONE, 1, None)


async def test_a_result_that_can_not_be_stored_leaves_the_job_done(app: App, outside: Broker) -> None:
    @app.task
    async def odd() -> Any:
        return object()

    @app.task
    async def huge() -> str:
        return "x" * 2_000_000

    handles = [await odd.aenqueue(), await huge.aenqueue()]
    await run_until_idle(app)
    for handle in handles:
        assert (await record(outside, handle.id)).state is JobState.DONE


async def test_a_failure_is_stored_with_its_traceback(app: App, outside: Broker) -> None:
    def helper() -> None:
        raise LookupError("deep \0 down \ud800")

    @app.task(max_attempts=1)
    async def bad() -> None:
        helper()

    handle = await bad.aenqueue()
    await run_until_idle(app)
    text = str((await record(outside, handle.id)).last_error)
    assert text.startswith("LookupError: deep")
    assert "in helper" in text
    assert "in bad" in text
    assert "\0" not in text


@pytest.mark.parametrize("kind", ["message", "stack", "chain"])
async def test_the_stored_text_of_a_failure_is_bounded(app: App, outside: Broker, kind: str) -> None:
    def chain(depth: int) -> None:
        try:
            if depth:
                chain(depth - 1)
        finally:
            raise ValueError("y" * 1000)

    def deep(depth: int) -> None:
        if depth == 0:
            raise ValueError
        (deep if depth % 2 else lambda left: deep(left))(depth - 1)

    @app.task(max_attempts=1)
    async def bad() -> None:
        if kind == "message":
            raise ValueError("x" * 1_000_000)
        (chain if kind == "chain" else deep)(200)

    handle = await bad.aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert 0 < len(str(job.last_error)) < 20_000
    assert str(job.last_error).startswith("ValueError")


async def test_an_exception_whose_text_fails_is_a_failure_of_the_job_only(app: App, outside: Broker) -> None:
    class Mean(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    @app.task(max_attempts=1)
    async def bad() -> None:
        raise Mean

    handle = await bad.aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert job.state is JobState.DEAD
    assert "Mean" in str(job.last_error)


async def test_a_handler_that_raises_cancelled_error_has_failed(app: App, outside: Broker) -> None:
    @app.task(max_attempts=2, retry=Retry.fixed(attempts=2, delay=0))
    async def bad() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    handle = await bad.aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.DEAD, 2)


# Exceptions of handlers.


async def test_a_dead_letter_is_dead_at_once(app: App, outside: Broker) -> None:
    @app.task(max_attempts=10)
    async def work() -> None:
        raise DeadLetter("no such user")

    handle = await work.aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "no such user")


async def test_retry_later_counts_and_uses_its_own_delay(
    timed_app: App, clock: ManualClock, outside: Broker
) -> None:
    @timed_app.task(max_attempts=2, retry=Retry.fixed(attempts=9, delay=1000))
    async def work() -> None:
        raise RetryLater(7, "busy")

    handle = await work.aenqueue()
    await run_until_idle(timed_app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.SCHEDULED, 1, "busy")
    assert job.run_us == clock.now() + 7_000_000
    clock.advance(7)
    await run_until_idle(timed_app)
    assert (await record(outside, handle.id)).state is JobState.DEAD


async def test_a_snooze_does_not_count(timed_app: App, clock: ManualClock, outside: Broker) -> None:
    epochs: list[int] = []

    @timed_app.task(max_attempts=1)
    async def work(ctx: Context) -> str:
        epochs.append(ctx.epoch)
        if len(epochs) < 4:
            raise Snooze(60)
        return "at last"

    handle = await work.aenqueue()
    for runs in (1, 2, 3):
        await run_until_idle(timed_app)
        job = await record(outside, handle.id)
        assert (job.state, job.attempts, len(epochs)) == (JobState.SCHEDULED, 0, runs)
        assert job.run_us == clock.now() + 60_000_000
        clock.advance(60)
    await run_until_idle(timed_app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.DONE, 1)


async def test_job_cancelled_without_a_cancel_request_is_a_failure(app: App, outside: Broker) -> None:
    @app.task(max_attempts=1)
    async def work() -> None:
        raise JobCancelled

    handle = await work.aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert job.state is JobState.DEAD
    assert "JobCancelled" in str(job.last_error)


async def test_a_tasks_own_retention_applies_to_every_final_state(make_app: MakeApp) -> None:
    app = make_app(config=BrokerConfig())

    @app.task(max_attempts=1, retention=Retention(done=0, dead=0, cancelled=0))
    async def work(kind: str) -> None:
        if kind == "raise":
            raise ValueError
        if kind == "dead":
            raise DeadLetter("x")

    handles = [await work.aenqueue(kind) for kind in ("return", "raise", "dead")]
    handles.append(await work.aenqueue("bad payload"))
    await run_until_idle(app)
    assert [await handle.astatus() for handle in handles] == [None] * 4
