"""The context of a handler: follow-up work, logs, context variables, lifespan state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from dayjob import (
    App,
    Broker,
    Context,
    DeadLetter,
    InvalidState,
    JobState,
    NewJob,
    Retry,
    Snooze,
    Worker,
    current,
)
from tests.support.workers import MakeApp, record, run_until_idle, with_timeout, working

variable: ContextVar[str] = ContextVar("variable", default="untouched")


async def test_follow_ups_and_values_commit_with_success(app: App, outside: Broker) -> None:
    @app.task
    async def second(n: int) -> int:
        return n

    @app.task
    def third() -> str:
        return "from a thread"

    @app.task
    async def first(ctx: Context) -> str:
        ctx.then(second.bind(1), second.using(priority=5).bind(2), kv={b"a": b"1"})
        ctx.then(third.bind(), NewJob("other"), kv={b"b": b"2"})
        assert await outside.kv_get(b"a") is None
        assert len(await outside.jobs()) == 1
        return "first"

    handle = await first.aenqueue()
    await run_until_idle(app)
    assert await handle.aresult() == "first"
    assert (await outside.stats("default")).done == 4
    assert (await outside.stats("other")).pending == 1
    assert [await outside.kv_get(key) for key in (b"a", b"b")] == [b"1", b"2"]


async def test_then_returns_the_ids_of_the_jobs_that_it_will_enqueue(app: App, outside: Broker) -> None:
    given = "0191e0a0-0000-7000-8000-000000000001"

    @app.task
    async def second(n: int) -> int:
        return n

    @app.task
    async def first(ctx: Context) -> list[str]:
        ids = ctx.then(second.bind(1), second.using(id=given.upper()).bind(2))
        assert ctx.then(kv={b"k": b"v"}) == []
        bound = second.bind(3)
        return ids + ctx.then(bound, bound)

    handle = await first.aenqueue()
    await run_until_idle(app)
    ids = await handle.aresult()
    assert ids[1] == given
    assert [await second.job(id).aresult(timeout=0) for id in ids] == [1, 2, 3, 3]
    assert (await outside.stats("default")).done == 5


@pytest.mark.parametrize(
    "error",
    [ValueError(), DeadLetter("no"), Snooze(60), SystemExit()],
    ids=lambda error: type(error).__name__,
)
async def test_follow_ups_of_a_run_that_does_not_succeed_are_dropped(
    app: App, outside: Broker, error: BaseException
) -> None:
    @app.task
    async def second() -> None:
        return

    @app.task(max_attempts=1)
    async def first(ctx: Context) -> None:
        ctx.then(second.bind(), kv={b"a": b"1"})
        raise error

    await first.aenqueue()
    await run_until_idle(app)
    assert len(await outside.jobs()) == 1
    assert await outside.kv_get(b"a") is None


async def test_a_retry_starts_without_the_follow_ups_of_the_failed_run(app: App, outside: Broker) -> None:
    seen: list[int] = []

    @app.task
    async def second(n: int) -> None:
        seen.append(n)

    @app.task(retry=Retry.fixed(attempts=3, delay=0))
    async def first(ctx: Context) -> None:
        ctx.then(second.bind(ctx.attempt))
        if ctx.attempt < 3:
            raise ValueError

    await first.aenqueue()
    await run_until_idle(app)
    assert seen == [3]


async def test_an_invalid_follow_up_fails_in_the_handler(app: App) -> None:
    @app.task
    async def second(n: int) -> None:
        return

    @app.task
    async def first(ctx: Context) -> str:
        with pytest.raises(TypeError):
            ctx.then(second)
        with pytest.raises(TypeError):
            ctx.then(second.bind("a", "b"))  # type: ignore[call-arg,arg-type]
        with pytest.raises(TypeError):
            ctx.then(kv={"text": b""})  # type: ignore[dict-item]
        return "all refused"

    handle = await first.aenqueue()
    await run_until_idle(app)
    assert await handle.aresult() == "all refused"


async def test_the_current_context_is_set_in_tasks_and_threads_of_the_run(app: App) -> None:
    def helper() -> str:
        return current().job.id

    @app.task
    async def in_coroutine(ctx: Context) -> list[str]:
        assert current() is ctx
        inner = asyncio.create_task(asyncio.to_thread(helper))
        return [helper(), await inner]

    @app.task
    def in_thread(ctx: Context) -> list[str]:
        assert current() is ctx
        return [helper()]

    handles = [await in_coroutine.aenqueue(), await in_thread.aenqueue()]
    await run_until_idle(app)
    for handle in handles:
        assert set(await handle.aresult()) == {handle.id}
    with pytest.raises(InvalidState):
        current()


async def test_log_records_have_the_fields_of_the_job(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="work", queue="q")
    async def work(ctx: Context) -> None:
        ctx.log.info("hello %s", "there", extra={"own": 7})

    handle = await work.aenqueue()
    with caplog.at_level(logging.INFO, "dayjob.job"):
        await run_until_idle(app, queues=("q",))
    (logged,) = (entry for entry in caplog.records if entry.name == "dayjob.job")
    assert logged.getMessage() == "hello there"
    fields: dict[str, Any] = vars(logged)
    assert fields["job_id"] == handle.id
    assert (fields["queue"], fields["task"], fields["attempt"], fields["own"]) == ("q", "work", 1, 7)


async def test_context_variables_set_by_a_job_are_not_visible_to_the_next(app: App) -> None:
    @app.task
    async def in_coroutine() -> str:
        before = variable.get()
        variable.set("changed")
        return before

    @app.task
    def in_thread() -> str:
        before = variable.get()
        variable.set("changed")
        return before

    handles = [await task.aenqueue() for task in (in_coroutine, in_thread) * 5]
    variable.set("the worker's")
    await run_until_idle(app, concurrency=1)
    assert {await handle.aresult() for handle in handles} == {"the worker's"}
    assert variable.get() == "the worker's"


async def test_handlers_enqueue_from_coroutines_and_from_threads(app: App, outside: Broker) -> None:
    @app.task
    async def child(n: int) -> int:
        return n * 2

    @app.task
    async def from_coroutine() -> str:
        return (await child.aenqueue(1)).id

    @app.task
    def from_thread() -> str:
        return child.enqueue(2).id

    @app.task
    async def wrong_way() -> str:
        with pytest.raises(InvalidState, match="aenqueue"):
            child.enqueue(3)
        return "raised"

    handles = [await task.aenqueue() for task in (from_coroutine, from_thread)]
    wrong = await wrong_way.aenqueue()
    await run_until_idle(app)
    jobs = [await record(outside, await handle.aresult()) for handle in handles]
    assert [job.result for job in jobs] == [b"2", b"4"]
    assert await wrong.aresult() == "raised"


async def test_a_job_may_wait_for_a_job_that_it_enqueued_in_run_until_idle(app: App) -> None:
    @app.task
    async def child() -> str:
        return "the child's"

    @app.task
    async def parent() -> str:
        return await (await child.aenqueue()).aresult(10)

    @app.task
    def parent_in_thread() -> str:
        return child.enqueue().result(10)

    handles = [await parent.aenqueue(), await parent_in_thread.aenqueue()]
    await run_until_idle(app)
    assert [await handle.aresult() for handle in handles] == ["the child's"] * 2


# Lifespan.


async def test_every_job_gets_the_state_of_the_lifespan(make_app: MakeApp) -> None:
    story: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[dict[str, str]]:
        story.append("entered")
        yield {"pool": "a pool"}
        story.append("left")

    app = make_app(lifespan=lifespan)
    started = asyncio.Event()

    @app.task
    async def slow(ctx: Context) -> str:
        started.set()
        await ctx.shutting_down.wait()
        story.append("finished")
        return str(ctx.state["pool"])

    @app.task
    def in_thread(ctx: Context) -> str:
        return str(ctx.state["pool"])

    async with working(app):
        handles = [await slow.aenqueue(), await in_thread.aenqueue()]
        await with_timeout(started.wait())
        await with_timeout(handles[1].await_end())
    assert story == ["entered", "finished", "left"]
    assert {await handle.aresult() for handle in handles} == {"a pool"}


async def test_a_lifespan_that_fails_stops_the_worker_with_its_error(make_app: MakeApp) -> None:
    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        raise ConnectionError("no database")
        yield

    app = make_app(lifespan=lifespan)

    @app.task
    async def work() -> None:
        return

    handle = await work.aenqueue()
    with pytest.raises(ConnectionError, match="no database"):
        await with_timeout(Worker(app).run())
    assert await handle.astatus() is JobState.PENDING
