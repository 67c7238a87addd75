"""The cost of idle workers for their storage: connections, and one heartbeat for all workers of a process."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dayjob import App, BrokerConfig, Context, Worker
from dayjob.broker import worker_registry
from dayjob.runtime.clock import block
from dayjob.worker import heartbeat
from tests.support.staging import Stage
from tests.support.workers import KEEP_ALL, MakeApp, until, with_timeout, working


@pytest.fixture
def lively(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> App:
    """An app whose workers send many heartbeats a second, also where only one process has the storage."""
    monkeypatch.setattr("dayjob.worker.registration.ALONE_INTERVAL", 0.1)
    monkeypatch.setattr("dayjob.worker.registration.BEATS", 150)
    monkeypatch.setattr("dayjob.worker.heartbeat.SHORTEST_INTERVAL", 0.01)
    return make_app(config=BrokerConfig(dead_after=15, retention=KEEP_ALL, duties=False))


@pytest.fixture
def own_brokers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the workers whose heartbeat has created a broker of its own."""
    created: list[str] = []
    create = Worker._heartbeat_broker

    def counted(self: Worker) -> Any:
        created.append(self.id)
        return create(self)

    monkeypatch.setattr(Worker, "_heartbeat_broker", counted)
    return created


def beats(stage: Stage) -> list[list[str]]:
    """Return the workers whose heartbeats each commit has stored."""
    return [
        [write.name for write in writes]
        for writes, *_ in stage.calls
        if all(write.kind == worker_registry.KIND and write.expected and write.value for write in writes)
    ]


async def test_heartbeats_and_renewals_use_the_connections_of_the_worker(
    lively: App, own_brokers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "RESPONSE", 60.0)  # The loop of a test may be late.
    started, finish = threading.Event(), threading.Event()

    @lively.task
    def work(ctx: Context) -> None:
        started.set()
        finish.wait(60)

    async with working(lively, lease=60) as worker:
        stage = Stage(lively.broker, "compare_and_set")
        renewals = Stage(lively.broker, "renew")
        handle = await work.aenqueue()
        await until(started.is_set)
        [run] = worker._runs.values()
        run.renew_at = 0.0
        await until(lambda: len(beats(stage)) >= 3 and renewals.calls)
        finish.set()
        await with_timeout(handle.aresult())
    assert own_brokers == []


async def test_one_commit_stores_the_heartbeats_of_all_workers_that_share_a_broker(
    lively: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "RESPONSE", 60.0)
    async with working(lively) as one, working(lively) as two, working(lively) as three:
        await until(lambda: one.ready and two.ready and three.ready)
        stage = Stage(lively.broker, "compare_and_set")
        ids = sorted([one.id, two.id, three.id])
        await until(lambda: [sorted(each) for each in beats(stage)[-3:]] == [ids] * 3)


async def test_one_commit_stores_the_heartbeats_of_the_workers_of_several_apps_on_one_storage(
    lively: App, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "RESPONSE", 60.0)
    other = make_app(config=lively.config)
    async with working(lively) as one:
        if not lively.broker.capabilities.multi_process:
            pytest.skip("another app has another storage, or can't open it")
        async with working(other) as two:
            await until(lambda: one.ready and two.ready)
            stages = [Stage(app.broker, "compare_and_set") for app in (lively, other)]
            ids = sorted([one.id, two.id])

            def stored() -> list[list[str]]:
                return [sorted(each) for stage in stages for each in beats(stage)]

            await until(lambda: stored().count(ids) >= 3)


async def test_a_worker_that_was_declared_dead_does_not_stop_the_heartbeats_of_the_others(
    lively: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "RESPONSE", 60.0)
    async with working(lively) as one, working(lively) as two:
        await until(lambda: one.ready and two.ready)
        registry = lively.broker._session.worker_registry
        before = (one.id, two.id)

        async def remove_first() -> bool:
            """A heartbeat may come in between."""
            [seen] = [seen for seen in (await registry.live())[1] if seen.member.id == before[0]]
            return await registry._write(before[0], seen.document.value, None)

        await until(remove_first)
        await until(lambda: one.id != before[0])
        assert two.id == before[1]


async def test_the_thread_closes_its_own_broker_when_the_loop_responds_again(
    lively: App, own_brokers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "OWN_KEPT", 0.0)
    monkeypatch.setattr(heartbeat, "RESPONSE", 0.05)

    @lively.task
    async def busy() -> None:
        while not own_brokers:
            block(0.01)

    async with working(lively) as worker:
        await with_timeout((await busy.aenqueue()).aresult())
        monkeypatch.setattr(heartbeat, "RESPONSE", 60.0)
        assert worker._heartbeat is not None
        thread = worker._heartbeat
        await until(lambda: thread._own is None)
