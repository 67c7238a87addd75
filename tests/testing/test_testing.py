"""``dayjob.testing``, the helpers for tests of users."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dayjob import App, Context, JobFailed, JobState, Retry
from dayjob.testing import ManualClock, adrain, drain, eager, sandbox

pytest_plugins = ["dayjob.testing.plugin"]

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
        assert handle.result(timeout=1) == "sent to ada"
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
            assert await handle.aresult(timeout=1) == "sent to ada"


def test_drain_leaves_scheduled_jobs() -> None:
    with sandbox(app, ManualClock()):
        handle = flaky.enqueue()
        assert drain(app) == 1
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


def test_an_eager_job_that_fails_raises_job_failed() -> None:
    with sandbox(app), eager(app), pytest.raises(JobFailed, match="ValueError: never"):
        hopeless.enqueue()


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
