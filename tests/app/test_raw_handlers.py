"""Handlers of raw jobs, whose payloads are bytes."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob import App, Context, Job, JobState
from tests.support.app_runs import job, jobs, run


def enqueue(app: App, queue: str, payload: bytes) -> None:
    async def store() -> None:
        await (await app.opened()).enqueue(queue, payload, headers={"kind": "test"})

    app.call(store)


def test_a_handler_gets_the_raw_job(app: App) -> None:
    got: list[Any] = []

    @app.handler(queue="raw")
    def handle(job: Job) -> None:
        got.append((job.payload, job.headers, job.attempts))

    enqueue(app, "raw", b"\x00\xff")
    run(app, "raw")
    assert got == [(b"\x00\xff", {"kind": "test"}, 1)]
    assert job(app).state is JobState.DONE


def test_a_coroutine_handler_may_have_the_context(app: App) -> None:
    got: list[Any] = []

    @app.handler(queue="raw", max_attempts=1)
    async def handle(ctx: Context, job: Job) -> None:
        got.append((ctx.job is job, job.payload))

    enqueue(app, "raw", b"x")
    run(app, "raw")
    assert got == [(True, b"x")]


def test_jobs_are_enqueued_with_the_handler(app: App) -> None:
    got: list[bytes] = []

    @app.handler(queue="raw", dedup=True)
    def handle(job: Job) -> None:
        got.append(job.payload)

    handle.enqueue(b"one")
    assert not handle.enqueue(b"one").created
    handle.using(priority=1).enqueue(b"two")
    handle.enqueue_many([(b"three",), handle.bind(b"four")])
    assert {stored.task for stored in jobs(app)} == {""}
    run(app)
    assert got == [b"two", b"one", b"three", b"four"]
    with pytest.raises(TypeError, match="one argument, its payload as bytes"):
        handle.enqueue("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="one argument, its payload as bytes"):
        handle.enqueue(b"a", b"b")  # type: ignore[call-arg]


def test_tasks_and_a_handler_share_a_queue(app: App) -> None:
    got: list[Any] = []

    @app.handler(queue="mixed")
    def raw(job: Job) -> None:
        got.append(job.payload)

    @app.task(queue="mixed")
    def typed(a: int) -> None:
        got.append(a)

    typed.enqueue(1)
    enqueue(app, "mixed", b"2")
    run(app)
    assert got == [1, b"2"]
