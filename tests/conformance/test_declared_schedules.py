"""Schedules declared by code, the wake-up of the recur duty, and bad input, stored or given."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from dayjob import App, Broker, BrokerConfig, Closed, Context, PayloadTooLarge, Recurring
from dayjob.broker.schedules import KIND, LONGEST_WAIT, UNDECLARED_FOR
from dayjob.engines.base import DocumentWrite
from tests.support.arrange import OpenBroker, quiet
from tests.support.registered_workers import elsewhere
from tests.support.waiting import LONG, WatchedClock, with_timeout

FOREVER = 10**15


async def ids(broker: Broker) -> list[str]:
    return [each.id for each in await broker.schedules()]


async def arrive(broker: Broker, id: str, *schedules: str, app: str = "app") -> Any:
    """Register a worker whose code declares these schedules."""
    member = await broker.register(
        elsewhere(id, app=app, tasks=("t",), schedules=schedules, dead_after=FOREVER)
    )
    await broker.declare(app, [Recurring(each, every=3600, task="t", queue="q") for each in schedules])
    return member


async def pass_by(broker: Broker, clock: WatchedClock, seconds: float) -> None:
    """Advance the clock in steps, with a reconciliation after each."""
    for _ in range(round(seconds / 5)):
        clock.advance(5)
        await broker.recur()


# Declared by code.


async def test_a_declared_schedule_is_owned_by_its_app(broker: Broker) -> None:
    await arrive(broker, "w", "a", "b")
    await broker.schedule(Recurring("mine", every=60))
    assert [(each.id, each.app) for each in await broker.schedules()] == [
        ("a", "app"), ("b", "app"), ("mine", None)
    ]  # fmt: skip


async def test_declaring_again_keeps_last_and_next_time(broker: Broker, clock: WatchedClock) -> None:
    await arrive(broker, "w", "a")
    clock.advance(3600)
    await broker.recur()
    before = await broker.schedules()
    assert before[0].last_at == clock.time
    clock.advance(100)
    await arrive(broker, "w2", "a")
    assert await broker.schedules() == before


async def test_workers_that_declare_concurrently_agree(open_broker: OpenBroker) -> None:
    brokers = [await open_broker() for _ in range(4)]
    declared = [Recurring(str(number), every=60, queue="q") for number in range(20)]
    await with_timeout(asyncio.gather(*(broker.declare("app", declared) for broker in brokers)))
    assert len(await ids(brokers[0])) == 20


async def test_a_schedule_no_longer_declared_is_removed_after_a_grace_time(
    broker: Broker, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    old = await arrive(broker, "old", "kept", "dropped")
    await broker.schedule(Recurring("mine", every=3600, queue="q"))
    await arrive(broker, "new", "kept")
    await broker.deregister(old)
    await broker.recur()
    await pass_by(broker, clock, UNDECLARED_FOR - 5)
    assert await ids(broker) == ["dropped", "kept", "mine"]
    with caplog.at_level(logging.INFO, "dayjob.schedules"):
        await pass_by(broker, clock, 10)
    assert await ids(broker) == ["kept", "mine"]
    assert "schedule 'dropped' is removed: the code of app 'app' no longer declares it" in caplog.text


async def test_no_schedule_is_removed_while_old_and_new_workers_run(
    broker: Broker, clock: WatchedClock
) -> None:
    old = await arrive(broker, "old", "kept", "dropped")
    await arrive(broker, "new", "kept", "added")
    await pass_by(broker, clock, 5 * UNDECLARED_FOR)
    assert await ids(broker) == ["added", "dropped", "kept"]
    await broker.deregister(old)
    await pass_by(broker, clock, 2 * UNDECLARED_FOR)
    assert await ids(broker) == ["added", "kept"]


async def test_an_old_worker_that_returns_in_time_keeps_its_schedule(
    broker: Broker, clock: WatchedClock
) -> None:
    """A crash loop during a deploy: the grace time starts over."""
    old = await arrive(broker, "old", "dropped")
    await arrive(broker, "new", "kept")
    for number in range(3):
        await broker.deregister(old)
        await pass_by(broker, clock, UNDECLARED_FOR - 10)
        assert await ids(broker) == ["dropped", "kept"]
        old = await arrive(broker, f"old-{number}", "dropped")
        await pass_by(broker, clock, 5)
    assert await ids(broker) == ["dropped", "kept"]


async def test_no_schedule_is_removed_while_no_worker_of_its_app_is_alive(
    broker: Broker, clock: WatchedClock
) -> None:
    gone = await arrive(broker, "w", "a")
    await arrive(broker, "other", "b", app="another app")
    await broker.deregister(gone)
    await pass_by(broker, clock, 10 * UNDECLARED_FOR)
    assert await ids(broker) == ["a", "b"]


async def test_a_schedule_no_longer_declared_does_not_fire(broker: Broker, clock: WatchedClock) -> None:
    old = await arrive(broker, "old", "dropped")
    await arrive(broker, "new")
    await broker.deregister(old)
    clock.advance(3600)
    await broker.recur()
    assert await broker.jobs() == []


async def test_a_manual_schedule_that_replaces_a_declared_one_stays(
    broker: Broker, clock: WatchedClock
) -> None:
    old = await arrive(broker, "old", "a")
    await broker.schedule(Recurring("a", every=60, queue="q"))
    await arrive(broker, "new")
    await broker.deregister(old)
    await pass_by(broker, clock, 2 * UNDECLARED_FOR)
    assert await ids(broker) == ["a"]


async def test_tasks_declare_their_schedules(url: str, broker: Broker, clock: WatchedClock) -> None:
    app = App(url, name="shop")

    @app.task(name="tick", cron="* * * * *", queue="ticks")
    async def tick(ctx: Context, who: str = "you") -> None: ...

    @app.handler(name="raw", queue="raw", every=60)
    def raw(job: Any) -> None: ...

    await broker.declare(app.name, app.recurring())
    assert [(each.id, each.queue, each.task, each.app) for each in await broker.schedules()] == [
        ("raw", "raw", "", "shop"), ("tick", "ticks", "tick", "shop")
    ]  # fmt: skip
    clock.advance(60)
    await broker.recur()
    assert (await broker.stats("ticks")).pending == 1
    assert (await broker.stats("raw")).pending == 1


# With duties.


async def test_the_recur_duty_fires_a_schedule_at_its_time(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    busy = await open_broker(BrokerConfig(promote_interval=7, duties=True))
    await busy.schedule(Recurring("s", every=2.25, queue="q"))
    waiting = asyncio.create_task(busy.claim("q", wait=LONG))
    await clock.until_waiting()
    await clock.until_waiting_for(2.25)
    clock.advance(2.25)
    [job] = await with_timeout(waiting)
    assert job.headers["dayjob-due"] == clock.time.isoformat()
    await clock.until_waiting_for(2.25)


async def test_a_change_by_another_broker_wakes_the_recur_duty(
    open_broker: OpenBroker, clock: WatchedClock
) -> None:
    """The duty would poll in five seconds. The change wakes it earlier."""
    await open_broker(BrokerConfig(promote_interval=7, duties=True))
    other = await open_broker()
    await clock.until_waiting_for(LONGEST_WAIT / 1_000_000)
    await other.schedule(Recurring("s", every=2.25, queue="q"))
    await clock.until_waiting_for(2.25)
    await other.schedule(Recurring("s", every=1.75, queue="q"))
    await clock.until_waiting_for(1.75)
    await other.declare("app", [Recurring("sooner", every=1.25, queue="q")])
    await clock.until_waiting_for(1.25)
    await other.unschedule("sooner")
    await clock.until_waiting_for(1.75)


# Bad input.


@pytest.mark.parametrize("method", ["unschedule", "pause_schedule", "resume_schedule"])
@pytest.mark.parametrize("id", ["", "a\0b", "\ud800", "x" * 1025, 5, None, b"x"], ids=repr)
async def test_a_bad_schedule_id_is_refused(broker: Broker, method: str, id: Any) -> None:
    await broker.schedule(Recurring("s", every=60))
    with pytest.raises((TypeError, ValueError), match="schedule id"):
        await getattr(broker, method)(id)
    assert await ids(broker) == ["s"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"queue": ""}, ValueError),
        ({"queue": "x" * 201}, ValueError),
        ({"queue": 5}, TypeError),
        ({"task": "x" * 1025}, ValueError),
        ({"task": "t\0"}, ValueError),
        ({"payload": "text"}, TypeError),
        ({"payload": b"x" * 101}, PayloadTooLarge),
        ({"task": "t", "args": {"n": "x" * 101}}, PayloadTooLarge),
        ({"task": "t", "args": {"n": object()}}, TypeError),
        ({"priority": -1}, ValueError),
        ({"priority": "high"}, (TypeError, ValueError)),
        ({"max_attempts": 0}, ValueError),
        ({"headers": {"a": 5}}, TypeError),
        ({"headers": {"a": "x" * 65_500}}, ValueError),
        ({"tenant": ""}, ValueError),
    ],
)
async def test_a_schedule_whose_job_would_be_refused_is_not_stored(
    open_broker: OpenBroker, options: dict[str, Any], error: Any
) -> None:
    broker = await open_broker(quiet(max_payload=100))
    with pytest.raises(error):
        await broker.schedule(Recurring("s", every=60, **options))
    with pytest.raises(error):
        await broker.declare("app", [Recurring("fine", every=60), Recurring("s", every=60, **options)])
    assert await broker.schedules() == []


async def test_schedule_accepts_only_a_recurring(broker: Broker) -> None:
    for wrong in (None, "s", {"id": "s"}):
        with pytest.raises(TypeError, match="pass a Recurring"):
            await broker.schedule(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x80", b'{"id": "bad"}', b"\x81\xa2id\x05"], ids=repr)
async def test_an_undecodable_schedule_affects_no_other_and_is_kept(
    broker: Broker, clock: WatchedClock, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.schedule(Recurring("well", every=60, queue="q"))
    assert await broker._engine.compare_and_set([DocumentWrite(KIND, "bad", None, value)])
    for _ in range(3):
        clock.advance(60)
        await broker.recur()
    assert await ids(broker) == ["well"]
    assert len(await broker.jobs()) == 3
    assert caplog.text.count("schedule 'bad' can't be decoded") == 1
    assert not await broker.pause_schedule("bad")
    assert not await broker.resume_schedule("bad")
    _, documents = await broker._engine.documents(KIND)
    assert [document.value for document in documents if document.name == "bad"] == [value]


async def test_an_undecodable_schedule_can_be_removed_or_replaced(
    broker: Broker, clock: WatchedClock
) -> None:
    for id in ("a", "b", "c"):
        await broker._engine.compare_and_set([DocumentWrite(KIND, id, None, b"\xc1")])
    assert await broker.unschedule("a")
    assert not await broker.unschedule("a")
    await broker.schedule(Recurring("b", every=60, queue="q"))
    await broker.declare("app", [Recurring("c", every=60, queue="q")])
    assert await ids(broker) == ["b", "c"]
    assert not await broker.unschedule("a")


async def test_a_closed_broker_raises_closed(broker: Broker) -> None:
    await broker.close()
    for call in (
        broker.schedule(Recurring("s", every=5)), broker.declare("app", []), broker.unschedule("s"),
        broker.schedules(), broker.trigger("s"), broker.pause_schedule("s"), broker.resume_schedule("s"),
        broker.recur(),
    ):  # fmt: skip
        with pytest.raises(Closed):
            await call
