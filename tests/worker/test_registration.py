"""A worker is registered from before its first claim until it has stopped, and again if declared dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from dayjob import App, Broker, BrokerConfig, Context, EngineUnavailable, Job, JobState, Worker
from dayjob.events import Event
from dayjob.runtime.clock import SYSTEM
from dayjob.worker.registration import Registration
from tests.support.workers import (
    KEEP_ALL,
    MakeApp,
    first_run_waits,
    record,
    run_until_idle,
    until,
    with_timeout,
    working,
)


async def names(broker: Broker) -> list[str]:
    return [worker.id for worker in await broker.workers()]


async def declare_dead(broker: Broker) -> None:
    """Declare a worker dead, as the leader does after missed heartbeats."""
    registry = broker._session.worker_registry

    async def marked() -> bool:
        """A heartbeat may come in between."""
        [seen] = (await registry.live())[1]
        gone = replace(seen.member, gone=True)
        return await registry._write(gone.id, seen.document.value, gone)

    await until(marked)
    assert await broker.reclaim(trust_silence=False) >= 0


@pytest.fixture
def impatient(make_app: MakeApp) -> App:
    """An app whose workers send three heartbeats a second."""
    return make_app(config=BrokerConfig(dead_after=1, retention=KEEP_ALL))


async def test_a_worker_is_listed_while_it_runs(app: App, outside: Broker) -> None:
    @app.task(name="work", queue="q")
    async def work() -> None: ...

    async with working(app, queues=("q", "r"), concurrency=7, name="ada") as worker:
        await until(lambda: worker.id and names(outside))
        [info] = await outside.workers()
        assert info.id == worker.id
        assert info.id.startswith("ada-")
        assert (info.name, info.app, info.slots) == ("ada", "dayjob", 7)
        assert (info.queues, info.tasks) == (("q", "r"), ("work",))
        assert info.pid > 0
        assert info.host
        assert info.version
    assert await names(outside) == []


async def test_each_start_has_a_new_id(app: App) -> None:
    seen = set()
    worker = Worker(app, name="ada")
    for _ in range(3):
        await with_timeout(worker.run_until_idle())
        seen.add(worker.id)
    seen.add((await run_until_idle(app, name="ada")).id)
    assert len(seen) == 4


async def test_jobs_have_the_id_of_their_worker(app: App, outside: Broker) -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    @app.task
    async def work(ctx: Context) -> None:
        started.set()
        await finish.wait()

    handle = await work.aenqueue()
    async with working(app) as worker:
        await with_timeout(started.wait())
        job = await record(outside, handle.id)
        assert (job.worker, job.state) == (worker.id, JobState.RUNNING)
        [reason] = (await outside.explain(handle.id)).reasons
        assert f"on worker {worker.id}" in reason.text
        finish.set()


async def test_a_worker_is_registered_before_its_first_claim_and_until_its_last_settlement(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def record_calls(owner: type, method: str) -> None:
        original = getattr(owner, method)

        async def recorded(self: Any, *args: Any, **options: Any) -> Any:
            if self is not outside:
                order.append(method)
            return await original(self, *args, **options)

        monkeypatch.setattr(owner, method, recorded)

    for method in ("register", "declare", "claim", "settle_many", "deregister"):
        record_calls(Broker, method)

    @app.task
    async def work() -> None: ...

    await work.aenqueue()
    await run_until_idle(app)
    assert order[:3] == ["register", "declare", "claim"]
    assert order[-1] == "deregister"
    assert "settle_many" in order


async def test_a_worker_declares_the_schedules_of_its_tasks(app: App, outside: Broker) -> None:
    ran = asyncio.Event()

    @app.task(name="tick", every=0.1)
    async def tick(ctx: Context) -> None:
        ran.set()

    async with working(app):
        await with_timeout(ran.wait())
        [schedule] = await outside.schedules()
        assert (schedule.id, schedule.app, schedule.every) == ("tick", "dayjob", 0.1)
    assert len(await outside.schedules()) == 1, "it stays while no worker is registered"


@pytest.mark.slow
async def test_heartbeats_keep_a_worker_alive_beyond_dead_after(impatient: App, outside: Broker) -> None:
    """Where only one process can open the storage, heartbeats come once a minute."""
    started, finish = asyncio.Event(), asyncio.Event()

    @impatient.task
    async def work(ctx: Context) -> None:
        started.set()
        await finish.wait()

    handle = await work.aenqueue()
    async with working(impatient, lease=60) as worker:
        await with_timeout(started.wait())
        started_at = SYSTEM.elapsed()

        async def long_enough() -> bool:
            assert await outside.reclaim() == 0
            assert await names(outside) == [worker.id]
            return SYSTEM.elapsed() - started_at > 1.5

        await until(long_enough)
        finish.set()
        await with_timeout(handle.await_end())
    assert (await record(outside, handle.id)).attempts == 1


@pytest.mark.parametrize("pool", ["coroutine", "thread"])
async def test_a_worker_that_was_declared_dead_loses_its_runs_and_continues_under_a_new_id(
    impatient: App, outside: Broker, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = impatient
    monkeypatch.setattr("dayjob.worker.registration.ALONE_INTERVAL", 0.3)
    contexts = first_run_waits(app, pool)
    lost: list[str] = []

    @app.on("job.lost")
    async def on_event(event: Event) -> None:
        lost.append(event.id)

    async with working(app, lease=60) as worker:
        handle = await app.tasks["work"].aenqueue()
        await until(lambda: contexts)
        old = worker.id
        await declare_dead(outside)
        result = await with_timeout(handle.aresult())
        await until(lambda: worker.id != old)
        await until(lambda: contexts[0].cancelled)
        assert contexts[0].cancelled.reason == "lost"
        await until(lambda: handle.id in lost)
        assert await names(outside) == [worker.id]
        again = await app.tasks["work"].aenqueue()
        await until(lambda: contexts[-1].job.id == again.id)
        assert (await record(outside, again.id)).worker == worker.id
        contexts[-1].cancelled.set("cancel")
        await with_timeout(again.await_end())
    job = await record(outside, handle.id)
    assert (job.state, result) == (JobState.DONE, f"epoch {job.epoch}")
    assert job.attempts >= 2
    assert {failure.worker for failure in job.errors} == {old}
    assert await names(outside) == []


async def test_claims_under_way_with_the_old_id_are_released(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs: list[int] = []

    @app.task
    async def work(ctx: Context) -> None:
        epochs.append(ctx.epoch)

    worker = Worker(app)
    claim = Broker.claim
    taken: list[list[Job]] = []

    async def replaced_meanwhile(self: Broker, *args: Any, **options: Any) -> list[Job]:
        jobs = await claim(self, *args, **options)
        if jobs and not taken:
            taken.append(jobs)
            worker._fetcher.worker = "new-id"
        return jobs

    monkeypatch.setattr(Broker, "claim", replaced_meanwhile)
    handle = await work.aenqueue()
    await with_timeout(worker.run_until_idle())
    assert len(epochs) == 1
    assert epochs[0] > taken[0][0].epoch, "the claim under the old id was given back and not run"
    job = await record(outside, handle.id)
    assert (job.state, job.attempts, job.worker) == (JobState.DONE, 1, "new-id")


async def test_claims_of_the_old_id_are_reclaimed_though_the_first_try_fails(
    app: App, outside: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration = Registration(app, "ada", ("q",), 5)
    await registration.join(outside)
    old = registration.id
    await declare_dead(outside)
    await outside.enqueue("q")
    [job] = await outside.claim("q", worker=old, lease=60)
    replaced: list[str] = []
    due = registration.beat_at

    async def fails(workers: list[str]) -> int:
        raise EngineUnavailable("no answer")

    monkeypatch.setattr(outside, "reclaim_from", fails)
    with pytest.raises(EngineUnavailable):
        await registration.beat(outside, 0, replaced.append)
    monkeypatch.undo()
    assert replaced == [old]
    assert registration.beat_at == due, "it is due as before, and tries again at once"
    await registration.beat(outside, 0, replaced.append)
    assert replaced == [old]
    assert registration._old_ids == []
    assert (await record(outside, job.id)).state is JobState.PENDING
    assert await names(outside) == [registration.id]
    await registration.leave(outside)
    assert await names(outside) == []


async def test_a_worker_that_registers_again_declares_its_removed_schedules_again(
    app: App, outside: Broker
) -> None:
    @app.task(name="tick", every=3600)
    def tick() -> None: ...

    registration = Registration(app, "ada", ("q",), 5)
    await registration.join(outside)
    await outside.declare(app.name, app.recurring())
    await declare_dead(outside)
    assert await outside.unschedule("tick")
    await registration.beat(outside, 0, lambda old: None)
    assert [schedule.id for schedule in await outside.schedules()] == ["tick"]


async def test_two_workers_of_one_app_are_registered_separately(app: App, outside: Broker) -> None:
    async with working(app, name="ada") as first, working(app, name="ada") as second:
        await until(lambda: first.id and second.id)

        async def both() -> bool:
            return sorted(await names(outside)) == sorted([first.id, second.id])

        await until(both)
        assert first.id != second.id
