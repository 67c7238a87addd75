"""Through an outage of the storage a worker loses time and no job."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from dayjob import (
    App,
    Broker,
    Context,
    DayjobError,
    EngineFenced,
    EngineUnavailable,
    JobState,
    NewJob,
    Worker,
)
from tests.support.staging import Stage
from tests.support.workers import run_until_idle, until, with_timeout, working


def away(times: int) -> list[Exception]:
    return [EngineUnavailable("the storage is away") for _ in range(times)]


async def test_settlements_are_retried_through_an_outage_and_applied_once(
    app: App, outside: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    runs: Counter[int] = Counter()

    @app.task
    async def work(n: int) -> int:
        runs[n] += 1
        return n

    handles = await work.aenqueue_many([(n,) for n in range(20)])
    settles = Stage(app.broker, "settle")
    settles.failures.extend(away(3))
    with caplog.at_level(logging.WARNING, "dayjob.worker"):
        worker = await run_until_idle(app)
    assert runs == Counter(range(20))
    assert worker.done == 20
    assert not settles.failures
    assert "wait for the storage" in caplog.text
    for n, handle in enumerate(handles):
        job = await outside.get(handle.id)
        assert job is not None
        assert (job.state, job.attempts) == (JobState.DONE, 1)
        assert await handle.aresult() == n


async def test_claims_continue_after_an_outage(app: App) -> None:
    done = asyncio.Event()

    @app.task
    async def work() -> None:
        done.set()

    claims = Stage(app.broker, "claim")
    claims.failures.extend(away(2))
    async with working(app):
        await work.aenqueue()
        await with_timeout(done.wait())
    assert len(claims.calls) >= 3


async def test_a_drain_waits_until_the_outcomes_are_stored(app: App, outside: Broker) -> None:
    started = asyncio.Event()

    @app.task
    async def work() -> str:
        started.set()
        return "kept"

    handle = await work.aenqueue()
    settles = Stage(app.broker, "settle")
    settles.failures.extend(away(4))
    async with working(app):
        await with_timeout(started.wait())
    assert not settles.failures
    job = await outside.get(handle.id)
    assert job is not None
    assert job.state is JobState.DONE


async def test_stop_now_does_not_wait_for_an_unavailable_storage(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dayjob.worker.worker._INTERRUPT_TIMEOUT", 0.2)
    started = asyncio.Event()

    @app.task
    async def work() -> None:
        started.set()

    await work.aenqueue()
    settles = Stage(app.broker, "settle")
    settles.failures.extend(away(1000))
    async with working(app) as worker:
        await until(lambda: len(settles.calls) > 1)
        worker.stop_now()
    settles.failures.clear()


async def test_an_outcome_that_cannot_be_stored_fails_its_own_run_only(app: App, outside: Broker) -> None:
    @app.task(max_attempts=1)
    async def bad(ctx: Context) -> None:
        ctx.then(NewJob("", b""))

    @app.task
    async def good() -> None:
        return

    bads = [await bad.aenqueue() for _ in range(2)]
    goods = [await good.aenqueue() for _ in range(5)]
    worker = await run_until_idle(app)
    assert worker.done == 7
    for handle in goods:
        assert await handle.astatus() is JobState.DONE
    for handle in bads:
        job = await outside.get(handle.id)
        assert job is not None
        assert job.state is JobState.DEAD
        assert "can't be stored" in str(job.last_error)
        assert "queue name" in str(job.last_error)


@pytest.mark.parametrize("verb", ["claim", "settle"])
async def test_a_fenced_worker_stops_with_the_error(app: App, verb: str) -> None:
    @app.task
    async def work() -> None:
        return

    await work.aenqueue_many([()] * 3)
    Stage(app.broker, verb).failures.extend([EngineFenced("taken over")] * 10)
    with pytest.raises(DayjobError, match="taken over"):
        await with_timeout(Worker(app, concurrency=1).run())


@pytest.mark.slow
async def test_renewals_continue_after_an_outage(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    finish, failures = asyncio.Event(), away(2)
    renew_many = Broker.renew_many

    async def failing(self: Broker, *arguments: object) -> object:
        if failures:
            raise failures.pop()
        return await renew_many(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Broker, "renew_many", failing)

    @app.task
    async def work() -> None:
        await finish.wait()

    handle = await work.aenqueue()
    async with working(app, lease=2):
        await until(lambda: outside.get(handle.id))
        await until(lambda: not failures)
        job = await outside.get(handle.id)
        assert job is not None
        first = job.lease_us

        async def renewed() -> bool:
            found = await outside.get(handle.id)
            return found is not None and (found.lease_us or 0) > (first or 0)

        await until(renewed)
        finish.set()
    assert caplog.text.count("could not be renewed, retrying") == 1
    assert await handle.astatus() is JobState.DONE
