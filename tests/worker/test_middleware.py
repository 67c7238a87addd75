"""Middleware and tenant scopes wrap a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from dayjob import Broker, Context, JobState, Retry, TenantNotFound, current
from dayjob.testing import ManualClock
from tests.support.workers import MakeApp, record, run_until_idle

Next = Callable[[], Awaitable[Any]]

tenant_now: ContextVar[str | None] = ContextVar("tenant_now", default=None)


async def test_middleware_wraps_each_run_outermost_first(make_app: MakeApp) -> None:
    story: list[str] = []

    def named(name: str) -> Callable[[Context, Next], Awaitable[Any]]:
        async def middleware(ctx: Context, call_next: Next) -> Any:
            assert current() is ctx
            story.append(f"{name} before {ctx.job.task}")
            try:
                return await call_next()
            finally:
                story.append(f"{name} after")

        return middleware

    app = make_app(middleware=[named("outer"), named("inner")])

    @app.task(name="a")
    async def a() -> None:
        story.append("runs")

    @app.task(name="b", max_attempts=1)
    def b() -> None:
        story.append("runs")
        raise ValueError

    await a.aenqueue()
    await b.aenqueue()
    await run_until_idle(app, concurrency=1)
    each = ["outer before {}", "inner before {}", "runs", "inner after", "outer after"]
    assert story == [line.format("a") for line in each] + [line.format("b") for line in each]


async def test_middleware_changes_results_and_swallows_errors(make_app: MakeApp) -> None:
    async def forgiving(ctx: Context, call_next: Next) -> Any:
        try:
            return (await call_next()) + 1
        except ValueError:
            return -1

    app = make_app(middleware=[forgiving])

    @app.task(max_attempts=1)
    async def work(n: int) -> int:
        if n == 0:
            raise ValueError
        return n

    handles = [await work.aenqueue(n) for n in (5, 0)]
    await run_until_idle(app)
    assert [await handle.aresult() for handle in handles] == [6, -1]


@pytest.mark.parametrize("when", ["before", "instead", "after"])
async def test_an_exception_of_middleware_fails_the_job(
    make_app: MakeApp, outside: Broker, when: str
) -> None:
    async def strict(ctx: Context, call_next: Next) -> Any:
        if ctx.job.task == "other":
            return await call_next()
        if when == "after":
            await call_next()
        if when == "instead":
            return "never called"
        raise PermissionError("the middleware's")

    app = make_app(middleware=[strict])
    ran: list[bool] = []

    @app.task(name="work", max_attempts=1)
    async def work(ctx: Context) -> str:
        ran.append(True)
        ctx.then(other.bind())
        return "called"

    @app.task(name="other")
    async def other() -> None:
        return

    handle = await work.aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert ran == ([True] if when == "after" else [])
    assert len(await outside.jobs()) == 1, "follow-ups of a failed run"
    if when == "instead":
        assert await handle.aresult() == "never called"
    else:
        assert job.state is JobState.DEAD
        assert "the middleware's" in str(job.last_error)


# Tenant scope.


async def test_a_tenants_jobs_run_within_its_scope(make_app: MakeApp) -> None:
    story: list[str] = []

    @asynccontextmanager
    async def scope(tenant: str) -> AsyncIterator[None]:
        story.append(f"enter {tenant}")
        token = tenant_now.set(tenant)
        try:
            yield
        finally:
            tenant_now.reset(token)
            story.append(f"leave {tenant}")

    app = make_app(tenant_scope=scope)

    @app.task(max_attempts=1)
    async def work(fails: bool = False) -> str | None:
        story.append("runs")
        if fails:
            raise ValueError
        return tenant_now.get()

    @app.task
    def in_thread() -> str | None:
        return tenant_now.get()

    acme = await work.using(tenant="acme").aenqueue()
    without_tenant = await work.aenqueue()
    await run_until_idle(app, concurrency=1)
    assert story == ["enter acme", "runs", "leave acme", "runs"]
    assert (await acme.aresult(), await without_tenant.aresult()) == ("acme", None)
    thread = await in_thread.using(tenant="umbrella").aenqueue()
    await work.using(tenant="bad").aenqueue(fails=True)
    await run_until_idle(app, concurrency=1)
    assert await thread.aresult() == "umbrella"
    assert story[-3:] == ["enter bad", "runs", "leave bad"]


async def test_an_unknown_tenant_is_retried_by_the_tasks_policy(
    make_app: MakeApp, clock: ManualClock, outside: Broker
) -> None:
    tenants: set[str] = set()

    @asynccontextmanager
    async def scope(tenant: str) -> AsyncIterator[None]:
        if tenant not in tenants:
            raise TenantNotFound(f"no tenant {tenant!r}")
        yield

    app = make_app(tenant_scope=scope, clock=clock)
    runs: list[int] = []

    @app.task(retry=Retry.fixed(attempts=3, delay=30))
    async def work(ctx: Context) -> None:
        runs.append(ctx.attempt)

    handle = await work.using(tenant="acme").aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert (job.state, job.attempts) == (JobState.SCHEDULED, 1)
    assert job.run_us == clock.now() + 30_000_000
    assert "TenantNotFound" in str(job.last_error)
    tenants.add("acme")
    clock.advance(30)
    await run_until_idle(app)
    assert runs == [2]


async def test_a_scope_that_fails_on_exit_fails_the_job(make_app: MakeApp, outside: Broker) -> None:
    @asynccontextmanager
    async def scope(tenant: str) -> AsyncIterator[None]:
        yield
        raise ConnectionError("could not commit")

    app = make_app(tenant_scope=scope)

    @app.task(max_attempts=1)
    async def work() -> None:
        return

    handle = await work.using(tenant="acme").aenqueue()
    await run_until_idle(app)
    job = await record(outside, handle.id)
    assert job.state is JobState.DEAD
    assert "could not commit" in str(job.last_error)


async def test_middleware_wraps_the_tenants_scope(make_app: MakeApp) -> None:
    story: list[str] = []

    @asynccontextmanager
    async def scope(tenant: str) -> AsyncIterator[None]:
        story.append("scope")
        yield

    async def middleware(ctx: Context, call_next: Next) -> Any:
        story.append("middleware")
        return await call_next()

    app = make_app(tenant_scope=scope, middleware=[middleware])

    @app.task
    async def work() -> None:
        story.append("run")

    await work.using(tenant="acme").aenqueue()
    await run_until_idle(app)
    assert story == ["middleware", "scope", "run"]
