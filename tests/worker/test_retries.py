"""Failed runs are retried by the policy."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob import (
    App,
    Broker,
    Context,
    JobState,
    NewJob,
    QueueConfig,
    Recurring,
    Retry,
)
from dayjob.model.config import BrokerConfig
from dayjob.model.job import by_name
from dayjob.testing import ManualClock
from tests.support.workers import KEEP_ALL, MakeApp, record, run_until_idle


async def delays(app: App, clock: ManualClock, outside: Broker, handle: Any) -> list[float]:
    """Run the job to its end. Return the seconds that it waited after each failure."""
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


async def test_the_policy_gets_the_attempt_and_the_exception_object(
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
async def test_a_policy_that_raises_is_reported_and_the_default_delay_applies(
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


async def test_errors_in_give_up_on_are_not_retried(app: App, outside: Broker) -> None:
    @app.task(retry=Retry.fixed(attempts=9, delay=0, give_up_on=(LookupError,)))
    async def bad(ctx: Context) -> None:
        raise KeyError("gone") if ctx.attempt == 3 else ValueError

    handle = await bad.aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.DEAD, 3)
    assert "KeyError" in str(job.last_error)


async def test_a_task_without_a_policy_uses_that_of_its_queue(
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
async def test_max_attempts_of_the_call_wins_over_the_task_and_the_queue(
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


# Jobs that are enqueued by the name of their task.


@pytest.mark.parametrize(
    ("given", "retry", "runs"),
    [
        (None, Retry.fixed(attempts=5, delay=0), 5),
        (None, Retry.none(), 1),
        (None, None, 2),
        (4, Retry.fixed(attempts=5, delay=0), 4),
    ],
    ids=["more than the queue", "fewer than the queue", "no policy", "given"],
)
async def test_the_policy_of_the_task_holds_for_jobs_enqueued_by_name(
    make_app: MakeApp, outside: Broker, given: int | None, retry: Retry | None, runs: int
) -> None:
    queue = QueueConfig(retry=Retry.fixed(attempts=2, delay=0))
    app = make_app(config=BrokerConfig(default=queue, retention=KEEP_ALL))

    @app.task(name="bad", retry=retry)
    async def bad() -> None:
        raise ValueError

    job = by_name(NewJob("default", b"{}", "bad", max_attempts=given))
    enqueued = await outside.enqueue_job(job)
    await run_until_idle(app)
    stored = await record(outside, enqueued.id)
    assert (stored.state, stored.attempts, stored.max_attempts) == (JobState.DEAD, runs, runs)


async def test_the_policy_of_the_task_holds_for_recurring_jobs_by_name(app: App, outside: Broker) -> None:
    @app.task(name="bad", retry=Retry.fixed(attempts=5, delay=0))
    async def bad() -> None:
        raise ValueError

    await outside.schedule(Recurring("s", every=3600, task="bad"))
    enqueued = await outside.trigger("s")
    await run_until_idle(app)
    stored = await record(outside, enqueued.id)
    assert (stored.state, stored.attempts, stored.max_attempts) == (JobState.DEAD, 5, 5)
