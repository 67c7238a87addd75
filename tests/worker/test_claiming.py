"""A worker claims jobs for its free slots, in batches, as soon as there are any."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import App, Broker, ConfigError, Job, NewJob, Worker
from dayjob.runtime.clock import SYSTEM
from dayjob.worker.fetcher import Fetcher
from dayjob.worker.run_rate import RunRate
from tests.support.staging import Stage
from tests.support.workers import MakeApp, pause, run_until_idle, until, with_timeout, working


async def test_slow_jobs_are_claimed_for_free_slots_only_and_other_workers_get_the_rest(
    make_app: MakeApp, outside: Broker
) -> None:
    gate = asyncio.Event()
    started: list[str] = []
    apps = [make_app(), make_app()]
    for app, name in zip(apps, "ab", strict=True):

        @app.task(name="slow")
        async def slow(worker: str = name) -> None:
            started.append(worker)
            await gate.wait()

    await outside.enqueue_many([NewJob("default", b"{}", task="slow") for _ in range(50)])
    async with working(apps[0], concurrency=5, name="a"):
        await until(lambda: len(started) == 5)
        await pause(0.05)
        assert (await outside.stats("default")).running == 5
        async with working(apps[1], concurrency=7, name="b"):
            await until(lambda: len(started) == 12)
            await pause(0.05)
            assert (await outside.stats("default")).running == 12
            holders = [job.worker for job in await outside.jobs(state="running")]
            assert sorted(str(holder).partition("-")[0] for holder in holders) == ["a"] * 5 + ["b"] * 7
            gate.set()
            await until(lambda: len(started) == 50)


async def test_jobs_claimed_ahead_that_do_not_begin_are_given_back_to_idle_workers(
    make_app: MakeApp, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that had short jobs claims long ones ahead. It keeps them for ``MAX_WAIT`` at most."""
    ahead = 5
    monkeypatch.setattr(RunRate, "ahead", lambda rate: ahead)
    monkeypatch.setattr("dayjob.worker.worker.MAX_WAIT", 0.3)
    gate = asyncio.Event()
    started: list[str] = []
    apps = [make_app(), make_app()]
    for app, name in zip(apps, "ab", strict=True):

        @app.task(name="long")
        async def long(worker: str = name) -> None:
            started.append(worker)
            await gate.wait()

    await outside.enqueue_many([NewJob("default", b"{}", task="long") for _ in range(10)])
    async with working(apps[0], concurrency=5, name="a") as first:

        async def all_claimed() -> bool:
            return (await outside.stats("default")).running == 10

        await until(all_claimed)
        ahead = 0
        assert await slots_in_use(outside, first) == (5, 5), "running jobs and slots"
        async with working(apps[1], concurrency=5, name="b"):
            await until(lambda: len(started) == 10)
            assert sorted(started) == ["a"] * 5 + ["b"] * 5
            gate.set()
    assert first.done == 5, "jobs that are given back do not count as runs"
    jobs = await outside.jobs(state="done")
    assert [job.attempts for job in jobs] == [1] * 10


async def test_a_worker_claims_no_more_at_once_than_the_engine_likes(
    make_app: MakeApp, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()

    @app.task(name="noop")
    async def noop() -> None: ...

    capabilities = replace(app.broker.capabilities, claim_batch=3)
    monkeypatch.setattr(type(app.broker), "capabilities", capabilities)
    limits: list[int] = []
    claim = Broker.claim

    async def record(self: Broker, *args: Any, limit: int, **options: Any) -> list[Job]:
        limits.append(limit)
        return await claim(self, *args, limit=limit, **options)

    monkeypatch.setattr(Broker, "claim", record)
    await outside.enqueue_many([NewJob("default", b"{}", task="noop") for _ in range(10)])
    await run_until_idle(app)
    assert max(limits) == 3
    assert (await outside.stats("default")).done == 10


async def slots_in_use(broker: Broker, worker: Worker) -> tuple[int, int]:
    """Let the worker send a heartbeat. Return its running jobs and its slots, as other processes see them."""
    registration = worker._registration
    assert registration is not None
    registration.beat_at = 0.0
    await until(lambda: registration.beat_at > 0.0)
    [info] = await broker.workers()
    return info.running, info.slots


async def test_after_short_jobs_long_ones_are_shared_with_an_idle_worker(
    make_app: MakeApp, outside: Broker
) -> None:
    gate = asyncio.Event()
    started: list[str] = []
    apps = [make_app(), make_app()]
    for app, name in zip(apps, "ab", strict=True):

        @app.task(name="work")
        async def work(wait: bool, worker: str = name) -> None:
            if wait:
                started.append(worker)
                await gate.wait()

    async with working(apps[0], concurrency=5, name="a") as first:
        await apps[0].tasks["work"].aenqueue_many([(False,)] * 500)
        await until(lambda: first.done == 500)
        async with working(apps[1], concurrency=5, name="b"):
            await apps[0].tasks["work"].aenqueue_many([(True,)] * 10)
            await until(lambda: len(started) == 10)
            assert sorted(started) == ["a"] * 5 + ["b"] * 5
            gate.set()


async def test_the_last_free_slots_are_used_while_long_jobs_run(app: App) -> None:
    """A worker puts off a small claim while claimed jobs wait for their start, and no longer."""
    started = 0
    gate = asyncio.Event()

    @app.task
    async def work() -> None:
        nonlocal started
        started += 1
        await gate.wait()

    await work.aenqueue_many([()] * 9)
    async with working(app, concurrency=10):
        await until(lambda: started == 9)
        await work.aenqueue()
        await until(lambda: started == 10)
        gate.set()


async def test_a_single_job_starts_before_the_next_claim(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fetch = Fetcher.fetch

    async def recorded_fetch(fetcher: Fetcher, limit: int, wait: float, **options: Any) -> list[Job]:
        order.append("ask")
        return await fetch(fetcher, limit, wait, **options)

    monkeypatch.setattr(Fetcher, "fetch", recorded_fetch)

    @app.task
    async def work() -> None:
        order.append("start")

    async with working(app):
        await until(lambda: order == ["ask"])
        await work.aenqueue()
        await until(lambda: len(order) == 3)
    assert order == ["ask", "start", "ask"]


async def test_claims_and_settlements_are_batched(app: App) -> None:
    @app.task
    async def work() -> None:
        return

    await work.aenqueue_many([()] * 2000)
    claims, settles = Stage(app.broker, "claim"), Stage(app.broker, "settle")
    worker = await run_until_idle(app, concurrency=100)
    assert worker.done == 2000
    assert sum(settles.sizes) >= 2000  # With releases, if the jobs of a claim are not started in time.
    assert len(settles.calls) <= 200
    assert len(claims.calls) <= 200


async def test_an_idle_worker_is_woken_by_a_new_job_and_does_not_poll(app: App) -> None:
    started = asyncio.Event()

    @app.task
    async def work() -> None:
        started.set()

    claims = Stage(app.broker, "claim")
    async with working(app):
        await until(lambda: len(claims.calls) == 1)
        await pause(0.1)
        assert len(claims.calls) == 1, "an idle worker polls"
        delays = []
        for _ in range(10):
            started.clear()
            asked = SYSTEM.elapsed()
            await work.aenqueue()
            await with_timeout(started.wait())
            delays.append(SYSTEM.elapsed() - asked)
        assert sorted(delays)[2] < 0.25, sorted(delays)


async def test_a_job_from_another_broker_starts_promptly(app: App, outside: Broker) -> None:
    started = asyncio.Event()

    @app.task(name="work")
    async def work() -> None:
        started.set()

    async with working(app):
        await pause(0.1)
        await outside.enqueue_job(work.bind().new_job())
        await with_timeout(started.wait(), 10)


async def test_all_queues_are_served_including_later_ones(app: App, outside: Broker) -> None:
    seen: list[str] = []

    @app.task(name="work")
    async def work(n: str) -> None:
        seen.append(n)

    await work.using(queue="early").aenqueue("early")
    async with working(app, queues=()):
        await until(lambda: seen == ["early"])
        await work.using(queue="a new one").aenqueue("late")
        await until(lambda: seen == ["early", "late"])
        await outside.enqueue_job(work.using(queue="b").bind("outside").new_job())
        await until(lambda: seen[2:] == ["outside"])


async def test_queues_are_served_in_the_order_given(app: App) -> None:
    seen: list[str] = []

    @app.task
    async def work(queue: str) -> None:
        seen.append(queue)

    for queue in ("c", "a", "b"):
        await work.using(queue=queue).aenqueue(queue)
    await run_until_idle(app, queues=("b", "a"), concurrency=1)
    assert seen == ["b", "a"]


@pytest.mark.parametrize(
    "options",
    [
        {"queues": "default"},
        {"queues": ("",)},
        {"concurrency": 0},
        {"concurrency": True},
        {"unknown_task": "ignore"},
        {"lease": 0},
        {"max_jobs": 0},
        {"threads": 0},
        {"pool_processes": True},
        {"shutdown_timeout": -1},
    ],
    ids=str,
)
def test_invalid_options_are_refused_at_once(app: App, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options)).replace("queues", "queue")) as refused:
        Worker(app, **options)  # type: ignore[arg-type]
    assert (
        isinstance(refused.value, ConfigError) or "shutdown_timeout" in options or options["queues"] == ("",)
    )
