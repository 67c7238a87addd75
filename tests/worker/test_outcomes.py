"""What a handler does, and what becomes of its job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event as ThreadEvent
from typing import Any

import pytest

from dayjob import (
    App,
    Broker,
    Context,
    DeadLetter,
    JobCancelled,
    JobState,
    QueueConfig,
    Retention,
    Retry,
    RetryLater,
    Snooze,
)
from dayjob.config import BrokerConfig
from dayjob.testing import ManualClock
from tests.worker.crew import KEEP_ALL, MakeApp, record, run_until_idle, until, within, working


class Odd(BaseException):
    """Not an ``Exception``."""


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
async def test_whatever_a_handler_raises_is_its_own_failure(
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


async def test_an_exception_that_closes_coroutines_on_its_way_is_a_failure_too(
    app: App, outside: Broker
) -> None:
    """A future that ends in GeneratorExit closes the coroutines that wait for it, up to the outermost."""

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


async def test_a_result_that_cannot_be_kept_does_not_undo_the_work(app: App, outside: Broker) -> None:
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


async def test_a_failure_is_told_with_its_traceback(app: App, outside: Broker) -> None:
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
async def test_what_is_kept_of_a_failure_is_bounded(app: App, outside: Broker, kind: str) -> None:
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


async def test_an_exception_that_cannot_be_shown_is_still_only_a_failure(app: App, outside: Broker) -> None:
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


async def test_a_handler_that_cancels_itself_has_failed(app: App, outside: Broker) -> None:
    @app.task(max_attempts=2, retry=Retry.fixed(attempts=2, delay=0))
    async def bad() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    handle = await bad.aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts, job.epoch) == (JobState.DEAD, 2, 2)


# The ways to end a run on purpose.


async def test_a_dead_letter_is_dead_at_once(app: App, outside: Broker) -> None:
    @app.task(max_attempts=10)
    async def work() -> None:
        raise DeadLetter("no such user")

    handle = await work.aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts, job.last_error) == (JobState.DEAD, 1, "no such user")


async def test_retry_later_counts_and_goes_by_its_own_delay(
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
    @timed_app.task(max_attempts=1)
    async def work(ctx: Context) -> str:
        if ctx.epoch < 4:
            raise Snooze(60)
        return "at last"

    handle = await work.aenqueue()
    for epoch in (1, 2, 3):
        await run_until_idle(timed_app)
        job = await record(outside, handle.id)
        assert (job.state, job.attempts, job.epoch) == (JobState.SCHEDULED, 0, epoch)
        assert job.run_us == clock.now() + 60_000_000
        clock.advance(60)
    await run_until_idle(timed_app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.DONE, 1)


async def test_giving_up_without_a_cancel_request_is_a_failure(app: App, outside: Broker) -> None:
    @app.task(max_attempts=1)
    async def work() -> None:
        raise JobCancelled

    handle = await work.aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert job.state is JobState.DEAD
    assert "JobCancelled" in str(job.last_error)


async def test_a_tasks_own_retention_goes_for_every_end(make_app: MakeApp) -> None:
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


# Retry policies.


async def delays(app: App, clock: ManualClock, outside: Broker, handle: Any) -> list[float]:
    """Run the job to its end; the seconds that it waited after each failure."""
    seen: list[float] = []
    while True:
        await run_until_idle(app, queues=())
        job = await record(outside, handle.id)
        if job.state.finished:
            return seen
        wait = (job.run_us - clock.now()) / 1_000_000
        seen.append(wait)
        clock.advance(wait)


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        (Retry.none(), []),
        (Retry.fixed(attempts=3, delay=5), [5, 5]),
        (Retry.exponential(attempts=5, base=2, factor=3, cap=40), [2, 6, 18, 40]),
        (Retry.linear(attempts=4, base=1, step=2), [1, 3, 5]),
        (Retry.custom(lambda attempt, error: attempt * 10.0, attempts=3), [10, 20]),
        (Retry.custom(lambda attempt, error: None if attempt == 2 else 4.0, attempts=9), [4]),
        (lambda attempt, error: float(len(str(error))), [4, 4]),
    ],
    ids=["none", "fixed", "exponential", "linear", "custom", "gives up", "plain function"],
)
async def test_retries_come_after_the_delays_of_the_policy(
    timed_app: App, clock: ManualClock, outside: Broker, retry: Any, expected: list[float]
) -> None:
    @timed_app.task(retry=retry)
    async def bad() -> None:
        raise ValueError("four")

    handle = await bad.aenqueue()
    assert await delays(timed_app, clock, outside, handle) == expected
    job = await record(outside, handle.id)
    assert job.state is JobState.DEAD
    assert job.attempts == len(expected) + 1
    assert len(job.errors) == len(expected) + 1


async def test_the_policy_gets_the_attempt_and_the_exception_itself(
    timed_app: App, clock: ManualClock, outside: Broker
) -> None:
    calls: list[tuple[int, BaseException]] = []
    errors = [ValueError("a"), KeyError("b")]

    def policy(attempt: int, error: BaseException) -> float:
        calls.append((attempt, error))
        return 1

    @timed_app.task(retry=Retry.custom(policy, attempts=2))
    async def bad(ctx: Context) -> None:
        raise errors[ctx.attempt - 1]

    await delays(timed_app, clock, outside, await bad.aenqueue())
    assert calls == [(1, errors[0]), (2, errors[1])]


def _raises(attempt: int, error: BaseException) -> float:
    raise ZeroDivisionError("the policy's own")


@pytest.mark.parametrize(
    "function",
    [_raises, lambda attempt, error: float("nan"), lambda attempt, error: "soon"],
    ids=["raises", "NaN", "text"],
)
async def test_a_policy_that_fails_is_told_and_the_default_goes(
    timed_app: App, clock: ManualClock, outside: Broker, function: Any
) -> None:
    @timed_app.task(retry=Retry.custom(function, attempts=3))
    async def bad() -> None:
        raise ValueError("the handler's")

    @timed_app.task
    async def good() -> None:
        return

    fine = await good.aenqueue()
    handle = await bad.aenqueue()
    assert await delays(timed_app, clock, outside, handle) == [1, 2]
    text = str((await record(outside, handle.id)).last_error)
    assert "the handler's" in text
    assert "retry policy failed" in text
    assert await fine.astatus() is JobState.DONE


async def test_some_errors_are_given_up_on(app: App, outside: Broker) -> None:
    @app.task(retry=Retry.fixed(attempts=9, delay=0, give_up_on=(LookupError,)))
    async def bad(ctx: Context) -> None:
        raise KeyError("gone") if ctx.attempt == 3 else ValueError

    handle = await bad.aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.DEAD, 3)
    assert "KeyError" in str(job.last_error)


async def test_a_task_without_a_policy_goes_by_its_queue(
    make_app: MakeApp, clock: ManualClock, outside: Broker
) -> None:
    queues = {"slow": QueueConfig(retry=Retry.fixed(attempts=2, delay=99))}
    app = make_app(clock=clock, config=BrokerConfig(queues=queues, retention=KEEP_ALL))

    @app.task(queue="slow")
    async def bad() -> None:
        raise ValueError

    assert await delays(app, clock, outside, await bad.aenqueue()) == [99]


@pytest.mark.parametrize(
    ("call", "of_task", "retry", "runs"),
    [
        (4, 3, Retry.fixed(attempts=2, delay=0), 4),
        (None, 3, Retry.fixed(attempts=2, delay=0), 3),
        (None, None, Retry.fixed(attempts=2, delay=0), 2),
        (None, None, None, 5),
    ],
    ids=["the call's", "the task's", "its policy's", "the queue's"],
)
async def test_which_max_attempts_applies(
    make_app: MakeApp, outside: Broker, call: int | None, of_task: int | None, retry: Retry | None, runs: int
) -> None:
    default = QueueConfig(max_attempts=5, retry=Retry.fixed(attempts=9, delay=0))
    app = make_app(config=BrokerConfig(default=default, retention=KEEP_ALL))

    @app.task(max_attempts=of_task, retry=retry)
    async def bad() -> None:
        raise ValueError

    options: Any = {} if call is None else {"max_attempts": call}
    handle = await bad.using(**options).aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.DEAD, runs)


# Payloads and tasks that don't fit.


async def test_a_payload_that_does_not_fit_is_dead_at_once(app: App, outside: Broker) -> None:
    ran = False

    @app.task(name="work", max_attempts=9)
    async def work(n: int) -> None:
        nonlocal ran
        ran = True

    for payload in (b"", b"not json", b'{"n": "text"}', b'{"m": 1}'):
        enqueued = await outside.enqueue("default", payload, task="work")
        await run_until_idle(app)
        job = await record(outside, enqueued.id)
        assert (job.state, job.attempts) == (JobState.DEAD, 1)
        assert str(job.last_error).startswith("BadPayload")
    assert not ran


async def test_a_raw_handler_gets_the_bytes(app: App, outside: Broker) -> None:
    seen: list[bytes] = []

    @app.handler(queue="raw")
    async def take(job: Any) -> None:
        seen.append(job.payload)

    await outside.enqueue("raw", b"\x00\xff")
    await run_until_idle(app, queues=("raw",))
    assert seen == [b"\x00\xff"]


async def test_an_unknown_task_waits_for_a_worker_that_knows_it(
    make_app: MakeApp, clock: ManualClock, outside: Broker
) -> None:
    old, new = make_app(clock=clock), make_app(clock=clock)

    @new.task(name="new", max_attempts=1)
    async def work() -> str:
        return "known"

    handle = await work.aenqueue()
    for tries in range(3):
        await run_until_idle(old)
        job = await record(outside, handle.id)
        assert (job.state, job.attempts) == (JobState.SCHEDULED, 0)
        wait = (job.run_us - clock.now()) / 1_000_000
        assert wait == 2**tries
        clock.advance(wait)
    await run_until_idle(new)
    assert await handle.aresult() == "known"
    assert (await record(outside, handle.id)).attempts == 1


async def test_a_task_that_nobody_knows_is_dead_in_the_end(
    timed_app: App, clock: ManualClock, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dayjob.worker.executor.UNKNOWN_TRIES", 5)
    named = await outside.enqueue("default", task="nobody's")
    raw = await outside.enqueue("default")
    runs = 0
    while (await outside.stats("default")).dead < 2:
        await run_until_idle(timed_app)
        clock.advance(60)
        runs += 1
        assert runs <= 5
    assert runs == 5
    job = await record(outside, named.id)
    assert "UnknownTask" in str(job.last_error)
    assert "nobody's" in str(job.last_error)
    assert "no handler" in str((await record(outside, raw.id)).last_error)


async def test_runs_that_were_put_back_before_do_not_count_as_unknown(
    make_app: MakeApp, clock: ManualClock, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that polls by snoozing is not dead at the first worker of a deploy that doesn't know it."""
    monkeypatch.setattr("dayjob.worker.executor.UNKNOWN_TRIES", 3)
    old, new = make_app(clock=clock), make_app(clock=clock)

    @new.task(name="poll")
    async def poll() -> None:
        raise Snooze(1)

    handle = await poll.aenqueue()
    for _ in range(5):
        await run_until_idle(new)
        clock.advance(1)
    await run_until_idle(old)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts, job.epoch) == (JobState.SCHEDULED, 0, 6)
    assert str(job.last_error).startswith("UnknownTask: try 1 of 3: no task 'poll'")


async def test_an_unknown_task_may_be_dead_at_once(app: App, outside: Broker) -> None:
    enqueued = await outside.enqueue("default", task="nobody's")
    await run_until_idle(app, unknown_task="dead")
    assert (await record(outside, enqueued.id)).state is JobState.DEAD


# Timeouts.


async def test_a_coroutine_past_its_timeout_is_cancelled(app: App, outside: Broker) -> None:
    seen: list[str | None] = []

    @app.task(timeout=0.05, max_attempts=1)
    async def slow(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.cancelled.reason)

    handle = await slow.aenqueue()
    await run_until_idle(app)
    assert seen == ["timeout"]
    job = await record(outside, handle.id)
    assert job.state is JobState.DEAD
    text = str(job.last_error)
    assert text.startswith("TimeoutError: timed out after 0.05 s")
    assert "in slow" in text


async def test_the_workers_job_timeout_is_for_tasks_without_one(app: App, outside: Broker) -> None:
    @app.task(max_attempts=1)
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.task(timeout=30)
    async def patient() -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, event.set)
        await event.wait()

    short, long = await slow.aenqueue(), await patient.aenqueue()
    await run_until_idle(app, job_timeout=0.1)
    assert "timed out after 0.1 s" in str((await record(outside, short.id)).last_error)
    assert await long.astatus() is JobState.DONE


async def test_a_coroutine_may_clean_up_after_its_timeout(app: App, outside: Broker) -> None:
    @app.task(timeout=0.05, max_attempts=1)
    async def slow() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "what there is"
        return "all"

    handle = await slow.aenqueue()
    await run_until_idle(app)
    assert await handle.aresult() == "what there is"


async def test_a_thread_past_its_timeout_is_abandoned_and_replaced(app: App, outside: Broker) -> None:
    gate = ThreadEvent()
    reasons: list[str | None] = []
    ended: list[bool] = []

    @app.task(timeout=0.05, max_attempts=1)
    def stuck(ctx: Context) -> str:
        ctx.cancelled.wait_in_thread(10)
        reasons.append(ctx.cancelled.reason)
        gate.wait(20)
        ended.append(True)
        return "late"

    @app.task
    def quick() -> str:
        return "done"

    async with working(app, concurrency=2):
        stucks = [await stuck.aenqueue() for _ in range(4)]
        for handle in stucks:
            waited = await within(handle.await_end())
            assert waited.job is not None
            assert "timed out" in str(waited.job.last_error)
        quicks = [await quick.aenqueue() for _ in range(4)]
        for handle in quicks:
            assert await within(handle.aresult()) == "done"
        gate.set()
        await until(lambda: len(ended) == 4)
        again = await quick.aenqueue()
        assert await within(again.aresult()) == "done"
    assert reasons == ["timeout"] * 4
    for handle in stucks:
        job = await record(outside, handle.id)
        assert (job.state, job.result) == (JobState.DEAD, None)
