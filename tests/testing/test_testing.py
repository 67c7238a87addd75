"""``dayjob.testing``, the helpers for tests of users."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dayjob import App, Context, InvalidState, Job, JobFailed, JobState, Retry, Snooze
from dayjob.testing import (
    ManualClock,
    aassert_enqueued,
    adrain,
    aenqueued,
    assert_enqueued,
    drain,
    eager,
    enqueued,
    sandbox,
)
from tests.support.bound import BOUND

pytest_plugins = ["pytester"]

app = App("sqlite:////nowhere/that/exists/jobs.db")
sent: list[str] = []


@app.task
async def send(to: str) -> str:
    sent.append(to)
    return f"sent to {to}"


@app.task(retry=Retry.fixed(3, delay=60))
def flaky(ctx: Context) -> int:
    if ctx.attempt < 3:
        raise ConnectionError("not yet")
    return ctx.attempt


@app.task(queue="other", retry=Retry.none())
def hopeless() -> None:
    raise ValueError("never")


@app.task
async def fan_out(n: int) -> None:
    for number in range(n):
        await send.aenqueue(f"fan {number}")


@pytest.fixture(autouse=True)
def _forget() -> None:
    sent.clear()


def test_a_sandbox_runs_a_production_app_in_memory() -> None:
    with sandbox(app):
        handle = send.enqueue("ada")
        assert handle.status() is JobState.PENDING
        assert drain(app) == 1
        assert handle.result(timeout=BOUND) == "sent to ada"
    assert app.url.startswith("sqlite:")


def test_sandboxes_do_not_see_each_others_jobs() -> None:
    with sandbox(app):
        send.enqueue("first")
    with sandbox(app):
        assert drain(app) == 0
    assert sent == []


async def test_a_sandbox_works_on_an_event_loop() -> None:
    with sandbox(app):
        async with app:
            handle = await send.aenqueue("ada")
            assert await adrain(app) == 1
            assert await handle.aresult(timeout=BOUND) == "sent to ada"


def test_drain_leaves_scheduled_jobs() -> None:
    with sandbox(app, ManualClock()):
        handle = flaky.enqueue()
        assert drain(app, raises=False) == 1
        assert handle.status() is JobState.SCHEDULED


def test_drain_of_scheduled_jobs_advances_the_clock() -> None:
    clock = ManualClock()
    start = clock.time
    with sandbox(app, clock):
        handle = flaky.enqueue()
        assert drain(app, scheduled=True) == 3
        assert handle.result(timeout=1) == 3
    assert (clock.time - start).total_seconds() == 120


def test_drain_of_scheduled_jobs_needs_a_manual_clock() -> None:
    with sandbox(app):
        send.using(delay=60).enqueue("later")
        with pytest.raises(TypeError, match="ManualClock"):
            drain(app, scheduled=True)


def test_drain_of_one_queue_leaves_the_others() -> None:
    with sandbox(app):
        handle = hopeless.enqueue()
        send.enqueue("ada")
        assert drain(app, queues=["default"]) == 1
        assert handle.status() is JobState.PENDING


def test_eager_jobs_run_before_enqueue_returns() -> None:
    with sandbox(app), eager(app):
        handle = send.enqueue("ada")
        assert sent == ["ada"]
        assert handle.result(timeout=0) == "sent to ada"


async def test_jobs_enqueued_by_eager_jobs_run_too() -> None:
    with sandbox(app), eager(app):
        async with app:
            await fan_out.aenqueue(3)
    assert sorted(sent) == ["fan 0", "fan 1", "fan 2"]


@pytest.mark.parametrize("task", [hopeless, flaky], ids=["dead", "retried later"])
def test_an_eager_job_that_fails_raises_its_own_exception(task: Any) -> None:
    with sandbox(app), eager(app), pytest.raises((ValueError, ConnectionError)) as raised:
        task.enqueue()
    assert raised.traceback[-1].name == task.__name__
    assert f"task {task.name!r}, run 1 of" in raised.value.__notes__[0]


async def test_an_eager_job_that_fails_raises_on_an_event_loop() -> None:
    with sandbox(app), eager(app):
        async with app:
            with pytest.raises(ValueError, match="never"):
                await hopeless.aenqueue()


def test_with_raises_false_an_eager_failure_is_left_to_the_handle() -> None:
    with sandbox(app), eager(app, raises=False):
        handle = hopeless.enqueue()
        with pytest.raises(JobFailed, match="never"):
            handle.result(timeout=0)


def test_the_fixtures_set_the_clock_of_an_app(
    dayjob_sandbox: Callable[[App], App], dayjob_clock: ManualClock
) -> None:
    dayjob_sandbox(app)
    handle = send.using(delay=60).enqueue("later")
    assert drain(app) == 0
    dayjob_clock.advance(60)
    assert drain(app) == 1
    assert handle.status() is JobState.DONE


def test_a_sandbox_restores_the_app(tmp_path: Path) -> None:
    own = App(f"sqlite:///{tmp_path}/jobs.db")
    own.task(name="send")(send.function)
    with own:
        own.tasks["send"].enqueue("kept")
        with sandbox(own):
            assert drain(own) == 0
        assert drain(own) == 1
    assert sent == ["kept"]


# Failures.


@app.task(queue="other")
def later() -> None:
    raise Snooze(60)


@app.task(queue="other", timeout=0.01, retry=Retry.none())
async def slow() -> None:
    await asyncio.Event().wait()


def test_drain_raises_the_exception_of_the_task() -> None:
    with sandbox(app):
        send.enqueue("ada")
        handle = hopeless.enqueue()
        send.enqueue("grace")
        with pytest.raises(ValueError, match="never") as raised:
            drain(app)
        assert sent == ["ada", "grace"], "the other jobs run"
        assert f"Raised by job {handle.id}" in raised.value.__notes__[0]
        assert drain(app) == 0, "it is raised once"


def test_drain_raises_the_first_of_several_exceptions() -> None:
    with sandbox(app):
        hopeless.enqueue_many([(), ()])
        with pytest.raises(ValueError, match="never") as raised:
            drain(app)
    assert raised.value.__notes__[-1] == "Of the other jobs 1 failed: ValueError('never')"


async def test_adrain_raises_unless_asked_not_to() -> None:
    with sandbox(app):
        async with app:
            await hopeless.aenqueue()
            with pytest.raises(ValueError, match="never"):
                await adrain(app)
            await hopeless.aenqueue()
            assert await adrain(app, raises=False) == 1


def test_a_job_that_asks_for_another_run_has_not_failed() -> None:
    with sandbox(app):
        handle = later.enqueue()
        assert drain(app) == 1
        assert handle.status() is JobState.SCHEDULED


def test_a_failure_without_an_exception_of_the_task_is_a_job_failed() -> None:
    with sandbox(app):
        slow.enqueue()
        with pytest.raises(JobFailed, match=r"TimeoutError: timed out after 0.01 s"):
            drain(app)
        for payload, error in (
            (b"[]", "BadPayload: the payload doesn't fit"),
            (b"{}", "MissingArgument: try 1 of 100"),
            (b'{"from": 1}', "UnknownParameter: try 1 of 100"),
        ):
            app.call(lambda: app.broker.enqueue("default", payload, task=send.name))  # noqa: B023
            with pytest.raises(JobFailed, match=error):
                drain(app)


# The calling thread.


def test_plain_functions_run_in_the_calling_thread_one_by_one() -> None:
    own = App("memory://")
    ran: list[tuple[int, int]] = []

    @own.task
    def note(number: int) -> None:
        ran.append((number, threading.get_ident()))
        if number < 10:
            note.enqueue(number + 10)

    here = threading.get_ident()
    with sandbox(own):
        note.enqueue_many([(1,), (2,)])
        assert drain(own) == 4
        assert ran == [(1, here), (2, here), (11, here), (12, here)]
        ran.clear()
        with eager(own):
            note.enqueue(3)
        assert ran == [(3, here), (13, here)]
    with own:
        note.enqueue(20)
        ran.clear()
        drain(own)
        assert ran == [(20, here)], "without a sandbox, too"


async def test_plain_functions_of_adrain_run_in_threads() -> None:
    own = App("memory://")
    ran: list[int] = []

    @own.task
    def note() -> None:
        ran.append(threading.get_ident())

    with sandbox(own):
        async with own:
            await note.aenqueue()
            await adrain(own)
            with pytest.raises(InvalidState, match="an event loop runs in this thread"):
                drain(own)
    assert ran != [threading.get_ident()]


def test_a_timeout_in_the_calling_thread_ends_the_run_and_the_next_job_runs_after_it() -> None:
    own = App("memory://")
    ran: list[str] = []

    @own.task(timeout=0.05, max_attempts=1)
    def slow(ctx: Context) -> None:
        ran.append(str(ctx.cancelled.wait_in_thread(BOUND) and ctx.cancelled.reason))

    @own.task
    def quick() -> None:
        ran.append("quick")

    with sandbox(own):
        slow.enqueue()
        quick.enqueue()
        with pytest.raises(JobFailed, match=r"TimeoutError: timed out after 0.05 s"):
            drain(own)
    assert ran == ["timeout", "quick"]


def test_an_interrupt_in_the_calling_thread_ends_the_drain() -> None:
    own = App("memory://")

    @own.task
    def interrupted() -> None:
        raise KeyboardInterrupt

    with sandbox(own):
        interrupted.enqueue()
        with pytest.raises(KeyboardInterrupt):
            drain(own)


# Stored calls.


@app.task(name="mail", queue="mail")
def mail(to: str, *cc: str, subject: str = "hello") -> None: ...


@app.handler(queue="raw")
def raw(job: Job) -> None: ...


def test_the_stored_calls_have_their_arguments_and_options() -> None:
    with sandbox(app):
        mail.using(tenant="acme").enqueue("ada", "grace")
        send.enqueue("alan")
        mail.enqueue("edsger", subject="hi")
        app.send("elsewhere.task", {"n": 1})
        raw.enqueue(b"data")
        drain(app, queues=["mail"])
        calls = enqueued(mail)
        assert [call.arguments for call in calls] == [
            {"to": "ada", "cc": ["grace"], "subject": "hello"},
            {"to": "edsger", "subject": "hi"},
        ]
        assert (calls[0].job.tenant, calls[0].job.queue, calls[0].job.state) == ("acme", "mail", "done")
        assert [call.task for call in enqueued(app)] == ["mail", send.name, "mail", "elsewhere.task", ""]
        assert enqueued(app)[3].arguments == {"n": 1}
        assert [call.job.payload for call in enqueued(raw)] == [b"data"]


def test_assert_enqueued_returns_the_job_or_shows_the_stored_calls() -> None:
    with sandbox(app):
        with pytest.raises(AssertionError, match=r"(?s)mail was not enqueued with .*'ada'.*\n  none"):
            assert_enqueued(mail, "ada")
        handle = mail.enqueue("ada")
        assert assert_enqueued(mail, "ada").id == handle.id
        assert assert_enqueued(mail, "ada", subject="hello").id == handle.id, "the default"
        with pytest.raises(AssertionError, match=r"(?s)'grace'.*'ada'"):
            assert_enqueued(mail, "grace")
        raw.enqueue(b"data")
        assert assert_enqueued(raw, b"data").payload == b"data"
        with pytest.raises(AssertionError, match="other"):
            assert_enqueued(raw, b"other")


async def test_stored_calls_can_be_read_on_an_event_loop() -> None:
    with sandbox(app):
        async with app:
            handle = await mail.aenqueue("ada")
            assert (await aassert_enqueued(mail, "ada")).id == handle.id
            assert [call.job.id for call in await aenqueued(mail)] == [handle.id]


# The fixtures are found by an entry point.


@pytest.mark.slow
def test_pytest_finds_the_fixtures_by_itself_and_imports_little(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import sys

        assert "dayjob.pytest_plugin" in sys.modules
        assert not {"dayjob.app", "dayjob.worker"} & {*sys.modules}
        """
    )
    pytester.makepyfile(
        """
        from dayjob import App
        from dayjob.testing import drain

        app = App("sqlite:////nowhere/jobs.db")

        @app.task
        def double(n: int) -> int:
            return 2 * n

        def test_it(dayjob_sandbox, dayjob_clock):
            dayjob_sandbox(app)
            handle = double.using(delay=60).enqueue(2)
            dayjob_clock.advance(60)
            drain(app)
            assert handle.result(timeout=0) == 4
        """
    )
    ran = pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "no:xdist", "-p", "no:cacheprovider")
    ran.assert_outcomes(passed=1)
