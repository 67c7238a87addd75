"""Payloads that do not fit their task, and tasks that the worker does not have."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import (
    App,
    Broker,
    JobState,
    Snooze,
)
from dayjob.context import detached
from dayjob.testing import ManualClock
from dayjob.worker.unknown_tasks import UnknownTasks
from tests.support.workers import MakeApp, record, run_until_idle


async def test_a_payload_that_does_not_fit_is_dead_at_once(app: App, outside: Broker) -> None:
    ran = False

    @app.task(name="work", max_attempts=9)
    async def work(n: int) -> None:
        nonlocal ran
        ran = True

    for payload in (b"[]", b"not json", b'{"n": "text"}', b'{"n": {"m": 1}}'):
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


async def test_an_unknown_task_is_snoozed_until_a_worker_has_it(
    make_app: MakeApp, clock: ManualClock, outside: Broker
) -> None:
    old, new = make_app(clock=clock), make_app(clock=clock)

    @new.task(name="new", max_attempts=1)
    async def work() -> str:
        return "found"

    handle = await work.aenqueue()
    for tries in range(3):
        await run_until_idle(old)
        job = await record(outside, handle.id)
        assert (job.state, job.attempts) == (JobState.SCHEDULED, 0)
        wait = (job.run_us - clock.now()) / 1_000_000
        assert wait == 2**tries
        clock.advance(wait)
    await run_until_idle(new)
    assert await handle.aresult() == "found"
    assert (await record(outside, handle.id)).attempts == 1


async def test_a_call_with_a_new_parameter_is_snoozed_until_a_worker_has_it(
    make_app: MakeApp, clock: ManualClock, outside: Broker
) -> None:
    """The web server of a rolling deployment has the new code before the last worker."""
    old, new = make_app(clock=clock), make_app(clock=clock)

    @old.task(name="mail")
    async def mail(to: str) -> str:
        return to

    @new.task(name="mail", max_attempts=1)
    async def mail_with_copy(to: str, cc: str | None = None) -> str:
        return f"{to} {cc}"

    handle = await mail_with_copy.aenqueue("ada", cc="grace")
    await run_until_idle(old)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.SCHEDULED, 0)
    assert (
        job.last_error == "UnknownParameter: try 1 of 100: task 'mail' has no parameter 'cc' in this worker"
    )
    clock.advance(1)
    await run_until_idle(new)
    assert await handle.aresult() == "ada grace"

    refused = await mail_with_copy.aenqueue("ada", cc="grace")
    await run_until_idle(old, unknown_task="dead")
    assert (await record(outside, refused.id)).state is JobState.DEAD


async def test_a_call_without_a_required_argument_is_snoozed_until_a_worker_does_not_require_it(
    make_app: MakeApp, clock: ManualClock, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer of a rolling deployment no longer passes the parameter that goes."""
    monkeypatch.setattr("dayjob.worker.executor.UNKNOWN_TRIES", 3)
    old, new = make_app(clock=clock), make_app(clock=clock)

    @old.task(name="mail")
    async def mail(to: str, footer: str) -> None: ...

    @new.task(name="mail", max_attempts=1)
    async def mail_without_footer(to: str, footer: str = "") -> str:
        return to

    handle, left = await mail_without_footer.aenqueue("ada"), await mail_without_footer.aenqueue("grace")
    await run_until_idle(old)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.SCHEDULED, 0)
    reason = "task 'mail' requires 'footer', which the call does not have in this worker"
    assert job.last_error == f"MissingArgument: try 1 of 3: {reason}"
    clock.advance(1)
    await run_until_idle(new, max_jobs=1)
    assert await handle.aresult() == "ada"

    for _ in range(2):
        await run_until_idle(old)
        clock.advance(60)
    dead = await record(outside, left.id)
    assert (dead.state, dead.last_error) == (JobState.DEAD, f"MissingArgument: try 3 of 3: {reason}")


async def test_a_task_that_no_worker_has_ends_dead(
    timed_app: App, clock: ManualClock, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dayjob.worker.executor.UNKNOWN_TRIES", 5)
    named = await outside.enqueue("default", task="unregistered")
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
    assert "unregistered" in str(job.last_error)
    assert "no handler" in str((await record(outside, raw.id)).last_error)


async def test_earlier_snoozes_do_not_count_as_tries_of_an_unknown_task(
    make_app: MakeApp, clock: ManualClock, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that polls by snoozing is not dead at the first worker of a deploy without it."""
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
    assert (job.state, job.attempts) == (JobState.SCHEDULED, 0)
    assert str(job.last_error).startswith("UnknownTask: try 1 of 3: no task 'poll'")


async def test_an_unknown_task_is_dead_at_once_with_unknown_task_dead(app: App, outside: Broker) -> None:
    enqueued = await outside.enqueue("default", task="unregistered")
    await run_until_idle(app, unknown_task="dead")
    assert (await record(outside, enqueued.id)).state is JobState.DEAD


# Warnings.


async def test_an_unknown_task_is_a_warning_with_task_queue_and_a_hint(
    app: App, outside: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="shop.mail.send")
    async def send(to: str) -> None:
        return

    unknown = await outside.enqueue("default", task="shop.mail.sent")
    raw = await outside.enqueue("default")
    newer = await outside.enqueue("default", b'{"to": "ada", "cc": "grace"}', task="shop.mail.send")
    with caplog.at_level(logging.WARNING, "dayjob.worker"):
        await run_until_idle(app)
    for id, text in (
        (unknown.id, "UnknownTask: no task 'shop.mail.sent' is registered"),
        (unknown.id, "import the module of the task, 'shop.mail' by its name, where the app is created"),
        (unknown.id, "(the app has 'shop.mail.send')"),
        (raw.id, "no handler for queue 'default' is registered"),
        (newer.id, "task 'shop.mail.send' has no parameter 'cc'"),
        (newer.id, "deploy the version of the code that enqueued it"),
    ):
        [warning] = [entry.getMessage() for entry in caplog.records if id in entry.getMessage()]
        assert text in warning
        assert f"job {id} of queue 'default' is put back" in warning


def test_the_warning_of_an_unknown_task_is_repeated_once_a_minute(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("memory://")
    app.clock = clock
    unknown = UnknownTasks(app)

    def warnings(task: str) -> int:
        caplog.clear()
        unknown.warn(replace(detached(task).job, queue="q"), "UnknownTask")
        return len(caplog.records)

    assert [warnings("a"), warnings("a"), warnings("b")] == [1, 0, 1]
    clock.advance(59)
    assert [warnings("a"), warnings("b")] == [0, 0]
    clock.advance(1)
    assert [warnings("a"), warnings("a")] == [1, 0]


async def test_a_queue_that_no_task_uses_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    app = App("memory://", name="shop")

    @app.task(queue="email")
    async def send() -> None:
        return

    async with app:
        with caplog.at_level(logging.WARNING, "dayjob.worker"):
            for queues in (None, ("email",), ()):
                await run_until_idle(app, queues=queues)
            assert caplog.records == []
            await run_until_idle(app, queues=("email", "emial"))
    assert caplog.messages == ["no task or handler of app shop uses the queue 'emial': it has 'email'"]
