"""A handle returns the state and the result of its job, waits for it, and cancels it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dayjob import (
    App,
    BadPayload,
    BrokerConfig,
    CancelOutcome,
    Context,
    DeadLetter,
    JobFailed,
    JobHandle,
    JobState,
    NewJob,
    ResultNotKept,
    Retention,
    Task,
    Worker,
)
from tests.support.app_runs import arun, run
from tests.support.bound import BOUND
from tests.support.staging import Stage
from tests.support.waiting import LONG, WatchedClock


@dataclass
class Report:
    day: date
    lines: tuple[int, ...]


@pytest.fixture
def keeping(url: str) -> Iterator[App]:
    """An app that keeps cancelled jobs too."""
    with App(url, config=BrokerConfig(retention=Retention(cancelled=60))) as app:
        yield app


def test_the_result_is_rebuilt_to_the_return_annotation(app: App) -> None:
    @app.task
    def make(day: date) -> Report:
        return Report(day, (1, 2))

    handle = make.enqueue(date(2026, 1, 2))
    run(app)
    assert handle.result() == Report(date(2026, 1, 2), (1, 2))
    assert handle.status() is JobState.DONE


async def test_the_async_methods_return_the_same(app: App) -> None:
    @app.task
    async def make(day: date) -> Report:
        return Report(day, (1, 2))

    async with app:
        handle = await make.aenqueue(date(2026, 1, 2))
        assert await handle.astatus() is JobState.PENDING
        await arun(app)
        assert await handle.aresult() == Report(date(2026, 1, 2), (1, 2))
        assert await handle.astatus() is JobState.DONE
        waited = await handle.await_end()
        assert waited.status == "completed"
        assert waited.job is not None
        assert waited.job.id == handle.id


def test_a_task_that_returns_nothing_has_a_result(app: App) -> None:
    @app.task
    def nothing() -> None: ...

    handle = nothing.enqueue()
    run(app)
    handle.result(timeout=0)


async def test_a_waiter_gets_the_result_when_the_job_ends(app: App) -> None:
    @app.task
    async def answer() -> int:
        return 42

    async with app:
        handle = await answer.aenqueue()
        waiting = [asyncio.create_task(handle.aresult(timeout=BOUND)) for _ in range(3)]
        in_thread = asyncio.create_task(asyncio.to_thread(handle.result, 20))
        await arun(app)
        assert await asyncio.gather(*waiting, in_thread) == [42] * 4


def test_a_dead_job_raises_with_its_error(app: App) -> None:
    @app.task(max_attempts=1)
    def fail() -> int:
        raise KeyError("the reason")

    @app.task
    def give_up() -> int:
        raise DeadLetter("no such customer")

    failed, given_up = fail.enqueue(), give_up.enqueue()
    run(app)
    with pytest.raises(JobFailed, match=rf"(?s){failed.id} ended dead: KeyError: 'the reason'.*Traceback"):
        failed.result(timeout=0)
    with pytest.raises(JobFailed, match="ended dead: no such customer"):
        given_up.result(timeout=0)
    assert failed.status() is JobState.DEAD


def test_a_cancelled_job_that_is_kept_raises_job_failed(keeping: App) -> None:
    @keeping.task
    def never() -> int:
        raise AssertionError

    handle = never.enqueue()
    assert handle.cancel() is CancelOutcome.REMOVED
    assert handle.status() is JobState.CANCELLED
    with pytest.raises(JobFailed, match=f"{handle.id} ended cancelled"):
        handle.result(timeout=0)
    assert handle.cancel() is CancelOutcome.NOT_FOUND


def test_a_cancelled_job_that_is_not_kept_raises_result_not_kept(app: App) -> None:
    @app.task
    def never() -> int:
        raise AssertionError

    handle = never.enqueue()
    assert handle.cancel().acted
    assert handle.status() is None
    assert handle.wait(timeout=0).status == "not_found"
    with pytest.raises(ResultNotKept, match=rf"{handle.id} and its result are not kept: it was cancelled"):
        handle.result(timeout=0)


async def test_cancel_requests_the_stop_of_a_running_job(keeping: App) -> None:
    handles: list[JobHandle[None]] = []

    @keeping.task(cancel="interrupt")
    async def long(ctx: Context) -> None:
        assert await handles[0].acancel() is CancelOutcome.REQUESTED
        await asyncio.Event().wait()

    async with keeping:
        handles.append(await long.aenqueue())
        await asyncio.wait_for(arun(keeping), 20)
        assert await handles[0].astatus() is JobState.CANCELLED


def test_a_job_that_has_not_finished_in_time_is_a_timeout(app: App) -> None:
    @app.task
    def later() -> int:
        return 1

    handle = later.using(delay=3600).enqueue()
    with pytest.raises(TimeoutError, match=rf"{handle.id} has not finished after 0.01 s"):
        handle.result(timeout=0.01)
    waited = handle.wait(timeout=0)
    assert waited.status == "timed_out"
    assert waited.job is not None
    assert waited.job.state is JobState.SCHEDULED


class Unencodable:
    pass


@pytest.mark.parametrize("value", [Unencodable(), "x" * 2000, {(1, 2): 3}], ids=["type", "size", "key"])
def test_a_result_that_can_not_be_stored_leaves_the_job_done(
    url: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with App(url, config=BrokerConfig(max_payload=1000)) as app:

        @app.task
        def give() -> Any:
            return value

        handle = give.enqueue()
        with caplog.at_level(logging.WARNING):
            run(app)
        assert handle.status() is JobState.DONE
        with pytest.raises(ResultNotKept, match="could not be stored: see the log of the worker"):
            handle.result(timeout=0)
        assert "can't be stored" in caplog.text


def test_a_result_that_does_not_fit_its_annotation_raises(app: App) -> None:
    @app.task
    def wrong() -> int:
        return "text"  # type: ignore[return-value]

    handle = wrong.enqueue()
    run(app)
    assert handle.status() is JobState.DONE
    with pytest.raises(
        BadPayload, match=r"result doesn't fit the return annotation of task .*wrong': Expected `int`"
    ):
        handle.result(timeout=0)


def test_the_repr_of_a_handle_has_its_job(app: App) -> None:
    @app.task
    def nothing() -> None: ...

    handle = nothing.enqueue()
    assert repr(handle) == f"JobHandle(id={handle.id!r}, created=True)"


async def test_a_worker_in_the_same_loop_serves_a_waiter(app: App) -> None:
    @app.task
    async def double(value: int) -> int:
        return value * 2

    async with app:
        worker = Worker(app)
        working = asyncio.create_task(worker.run())
        assert await (await double.aenqueue(4)).aresult(timeout=BOUND) == 8
        worker.stop()
        await asyncio.wait_for(working, 20)


# A handle from an id.


def test_a_task_and_an_app_return_the_handle_of_an_id(app: App) -> None:
    @app.task
    def make(day: date) -> Report:
        return Report(day, (1, 2))

    enqueued = make.enqueue(date(2026, 1, 2))
    by_task, by_app = make.job(enqueued.id), app.job(UUID(enqueued.id))
    assert (by_task.id, by_app.id, by_task.created) == (enqueued.id, enqueued.id, False)
    assert by_task.status() is by_app.status() is JobState.PENDING
    assert by_app.wait(timeout=0).status == "timed_out"
    run(app)
    assert by_task.result(timeout=0) == by_app.result(timeout=0) == Report(date(2026, 1, 2), (1, 2))
    record = by_app.record()
    assert record is not None
    assert (record.id, record.state, record.attempts) == (enqueued.id, JobState.DONE, 1)


async def test_the_handle_of_an_id_works_on_an_event_loop(keeping: App) -> None:
    @keeping.task
    async def never() -> int:
        raise AssertionError

    async with keeping:
        handle = never.job((await never.aenqueue()).id.upper())
        assert await handle.astatus() is JobState.PENDING
        assert await handle.aprogress() is None
        assert await handle.acancel() is CancelOutcome.REMOVED
        record = await handle.arecord()
        assert record is not None
        assert record.state is JobState.CANCELLED


def test_a_result_of_a_task_without_code_here_is_plain_json(app: App) -> None:
    @app.task
    def make(day: date) -> Report:
        return Report(day, (1, 2))

    enqueued = make.enqueue(date(2026, 1, 2))
    run(app)
    with App(app.url) as other:
        assert other.job(enqueued.id).result(timeout=0) == {"day": "2026-01-02", "lines": [1, 2]}


@pytest.mark.parametrize("id", ["00000000-0000-0000-0000-000000000001", "nonsense", ""])
def test_the_handle_of_an_unknown_id_finds_no_job(app: App, id: str) -> None:
    handle = app.job(id)
    assert handle.id == id
    assert (handle.status(), handle.progress(), handle.record()) == (None, None, None)
    assert handle.cancel() is CancelOutcome.NOT_FOUND
    assert handle.wait(timeout=5).status == "not_found"
    assert list(handle.updates()) == []


# Results of other deployments.


def deployment(folder: Path, which: str) -> tuple[App, Task[Any, Any, Any]]:
    """Return the app of a deployment, and its task, whose result becomes a text instead of a number."""
    app = App(f"sqlite:///{folder}/jobs.db")

    if which == "old":

        @app.task(name="count")
        def count() -> int:
            return 7

        return app, count

    @app.task(name="count")
    def count_in_words() -> int | str:
        return 7 if which == "first" else "seven"

    return app, count_in_words


@pytest.mark.parametrize(
    ("runs", "reads", "result"),
    [("old", "first", 7), ("first", "old", 7), ("first", "second", 7), ("second", "first", "seven")],
)
def test_the_type_of_a_result_changes_in_two_deployments_in_any_order(
    tmp_path: Path, runs: str, reads: str, result: int | str
) -> None:
    (workers, _), (producers, task) = deployment(tmp_path, runs), deployment(tmp_path, reads)
    with workers, producers:
        handle = task.enqueue()
        run(workers)
        assert handle.result(timeout=BOUND) == result


def test_the_type_of_a_result_that_changes_in_one_deployment_fails_the_old_code(tmp_path: Path) -> None:
    (workers, _), (producers, task) = deployment(tmp_path, "second"), deployment(tmp_path, "old")
    with workers, producers:
        handle = task.enqueue()
        run(workers)
        with pytest.raises(BadPayload):
            handle.result(timeout=BOUND)


# Updates.


def test_updates_in_synchronous_code_end_with_the_job(app: App) -> None:
    @app.task
    def report(ctx: Context) -> None:
        ctx.progress(0.5, "half")

    handle = report.enqueue()
    updates = iter(handle.updates())
    assert next(updates).state is JobState.PENDING
    run(app)
    assert [(update.state, update.progress) for update in updates] == [(JobState.DONE, (0.5, "half"))]
    assert handle.progress() == (0.5, "half")
    assert [update.state for update in handle.updates()] == [JobState.DONE]


async def test_updates_of_many_jobs_at_the_same_time_share_their_reads(app: App) -> None:
    app.clock = clock = WatchedClock()
    count = 50
    async with app:
        ids = [each.id for each in await app.broker.enqueue_many([NewJob("q")] * count)]

        async def follow(id: str) -> list[JobState]:
            return [job.state async for job in app.job(id).updates(interval=LONG)]

        following = [asyncio.create_task(follow(id)) for id in ids]
        await clock.until_waiting(count)
        reads = Stage(app.broker, "get")
        clock.advance(LONG)
        await clock.until_waiting(count)
        assert sum(reads.sizes) >= count
        assert len(reads.calls) <= 4
        assert not any(task.done() for task in following)
        for task in following:
            task.cancel()
        await asyncio.wait(following)


def test_updates_need_an_interval(app: App) -> None:
    with pytest.raises(ValueError, match="interval=0: pass the seconds between two reads"):
        app.job("").updates(interval=0)
