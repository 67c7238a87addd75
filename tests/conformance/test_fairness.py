"""Fair queues: tenants take turns within a priority, by their weights."""

from __future__ import annotations

from dayjob import Broker, NewJob, QueueConfig
from tests.support.arrange import OpenBroker, quiet
from tests.support.flow import claim_jobs, limited_broker

CONFIG = quiet(queues={"q": QueueConfig(fair="tenant", weights={"big": 3})})


async def tenants(broker: Broker, limit: int = 10) -> list[str | None]:
    return [job.tenant for job in await claim_jobs(broker, limit=limit)]


async def test_a_flood_of_one_tenant_does_not_hold_up_another(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    await broker.enqueue_many([NewJob("q", tenant="flood")] * 50)
    await broker.enqueue_many([NewJob("q", tenant="quiet")] * 3)
    assert (await tenants(broker, 6)).count("quiet") == 3


async def test_tenants_rotate(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    for tenant in ("a", "b", "c"):
        await broker.enqueue_many([NewJob("q", tenant=tenant)] * 3)
    assert await tenants(broker) == ["a", "b", "c"] * 3


async def test_a_tenant_that_was_idle_saves_no_turns(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    await broker.enqueue_many([NewJob("q", tenant="a")] * 20)
    assert len(await tenants(broker, 10)) == 10
    await broker.enqueue_many([NewJob("q", tenant="b")] * 10)
    assert (await tenants(broker, 6)).count("b") in (3, 4)


async def test_weights_share_the_turns(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    await broker.enqueue_many([NewJob("q", tenant="small")] * 20 + [NewJob("q", tenant="big")] * 20)
    assert (await tenants(broker, 12)).count("big") == 9


async def test_priority_comes_before_turns(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    await broker.enqueue_many([NewJob("q", tenant="a")] * 3)
    await broker.enqueue_many([NewJob("q", tenant="b", priority=5000)] * 3)
    assert await tenants(broker) == ["a", "a", "a", "b", "b", "b"]


async def test_jobs_of_one_tenant_keep_their_order(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    ids = [each.id for each in await broker.enqueue_many([NewJob("q", tenant="a")] * 5)]
    assert [job.id for job in await claim_jobs(broker)] == ids


async def test_jobs_without_a_tenant_share_one_turn(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    await broker.enqueue_many([NewJob("q")] * 10)
    await broker.enqueue("q", tenant="a")
    assert "a" in await tenants(broker, 2)


async def test_turns_survive_a_reopening_and_a_sweep(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    await broker.enqueue_many([NewJob("q", tenant="a")] * 10)
    await tenants(broker, 5)
    await broker.sweep()
    if broker.capabilities.persistent:
        await broker.close()
        broker = await open_broker(CONFIG)
    await broker.enqueue("q", tenant="b")
    assert "b" in await tenants(broker, 2)


async def test_other_queues_have_no_turns(open_broker: OpenBroker) -> None:
    broker = await limited_broker(open_broker, CONFIG)
    job = await broker.get((await broker.enqueue("other", tenant="a")).id)
    assert job is not None
    assert job.turn == 0
