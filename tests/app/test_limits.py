"""Limits of tasks: the buckets and units of a call, and the charges of a run."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob import App, ConfigError, Context, Job, Limit, Worker
from tests.support.waiting import turns, with_timeout

STRIPE = Limit("stripe", rate=100, per=60, burst=10)
CUSTOMER = Limit("customer", running=1, key=lambda customer, **_: customer)


def charge_app() -> tuple[App, Any]:
    app = App("memory://", name="shop")

    @app.task(limits=[STRIPE, CUSTOMER])
    async def charge(customer: str, cents: int = 5) -> None: ...

    return app, charge


async def stored(app: App, id: str) -> Job:
    job = await (await app.opened()).get(id)
    assert job is not None
    return job


async def test_a_call_takes_room_by_name_and_key() -> None:
    app, charge = charge_app()
    async with app:
        first = await charge.aenqueue("acme", 7)
        second = await charge.aenqueue(cents=7, customer="beta")
        assert (await stored(app, first.id)).limits == (("stripe", 1), ("customer:acme", 1))
        assert (await stored(app, second.id)).limits == (("stripe", 1), ("customer:beta", 1))


async def test_units_are_an_option_of_the_call() -> None:
    app, charge = charge_app()
    async with app:
        handle = await charge.using(units={"stripe": 10}).aenqueue("acme")
        assert dict((await stored(app, handle.id)).limits)["stripe"] == 10


async def test_units_above_the_size_are_refused_at_enqueue() -> None:
    app, charge = charge_app()
    async with app:
        with pytest.raises(ValueError, match="units=11 of limit 'stripe', which admits 10 at most"):
            await charge.using(units={"stripe": 11}).aenqueue("acme")


@pytest.mark.parametrize(
    "limits",
    ["stripe", [1], [Limit(running=1)], [STRIPE, STRIPE], [Limit(f"l{n}", running=1) for n in range(9)]],
)
def test_bad_limits_of_a_task_are_refused(limits: Any) -> None:
    with pytest.raises(ConfigError, match="limit"):
        App("memory://", name="shop").task(limits=limits)(charge_app)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "a"},
        {"name": "a:b", "running": 1},
        {"name": "queue", "running": 1},
        {"name": "a", "running": 0},
        {"name": "a", "rate": 1.5},
        {"name": "a", "running": 1, "burst": 2},
        {"name": "a", "rate": 1, "per": 0},
        {"name": "a", "running": 1, "key": "customer"},
    ],
)
def test_bad_limits_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Limit(**options)


def test_two_declarations_of_a_limit_must_agree() -> None:
    app, _ = charge_app()
    app.task(limits=[Limit("stripe", rate=1)], name="other")(charge_app)
    with pytest.raises(ConfigError, match="declared as"):
        app.limits()


async def test_a_worker_declares_limits_and_runs_by_them() -> None:
    app = App("memory://", name="shop")
    running, most = 0, 0

    @app.task(limits=[Limit("api", running=2)])
    async def call() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await turns(5)
        running -= 1

    async with app:
        broker = await app.opened()
        await broker.declare_limits("shop", app.limits())
        handles = [await call.aenqueue() for _ in range(20)]
        await with_timeout(Worker(app).run_until_idle())
        assert [info.settings.running for info in await broker.limits()] == [2]
        stats = await broker.stats("default")
        assert (stats.done, stats.limited, most) == (len(handles), 0, 2)


async def test_a_charge_replaces_the_units_of_the_run() -> None:
    app = App("memory://", name="shop")

    @app.task(limits=[Limit("tokens", rate=1000, per=3600, burst=1000)])
    async def summarise(ctx: Context) -> None:
        ctx.charge("tokens", 100)
        with pytest.raises(ValueError, match="no limit of job"):
            ctx.charge("other", 1)

    async with app:
        await summarise.using(units={"tokens": 1000}).aenqueue()
        await summarise.using(units={"tokens": 900}).aenqueue()
        await with_timeout(Worker(app).run_until_idle())
        broker = await app.opened()
        assert (await broker.stats("default")).done == 2, "100 + 900 units fit into the burst"


async def test_a_recurring_task_keeps_its_limits() -> None:
    app = App("memory://", name="shop")

    @app.task(limits=[Limit("api", running=1)], every=60)
    async def poll() -> None: ...

    async with app:
        broker = await app.opened()
        await broker.declare("shop", app.recurring())
        id = (await broker.trigger(poll.name)).id
        assert (await stored(app, id)).limits == (("api", 1),)
