"""Cancel requests are delivered, even if the records of other jobs are damaged or change."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from dayjob import Broker, LeaseLost, NewJob
from dayjob.engines.redis.client import Client
from dayjob.engines.redis.keys import Keys
from tests.engines.redis.waiting_claims import engine_of
from tests.support.servers.redis import Server, client
from tests.support.servers.redis_audit import DAMAGED
from tests.support.waiting import with_timeout

KEYS = Keys("dayjob")


async def test_a_job_that_ends_during_the_read_is_left_out(
    broker: Broker, other: Broker, monkeypatch: Any
) -> None:
    await broker.enqueue_many([NewJob("q"), NewJob("q")])
    ended, running = await broker.claim("q", limit=2)
    for job in (ended, running):
        await other.cancel(job.id)
    run = Client.run_idempotent

    async def end_one_first(client: Client, verb: str, *arguments: Any, **options: Any) -> Any:
        if verb == "cancel_requests":
            with suppress(LeaseLost):  # The duty reads them, too.
                await other.ack(ended)
        return await run(client, verb, *arguments, **options)

    monkeypatch.setattr(Client, "run_idempotent", end_one_first)
    assert await engine_of(broker).cancel_requests() == [(running.key, running.claim)]


async def test_requests_for_damaged_and_missing_jobs_do_not_stop_the_delivery(
    server: Server, broker: Broker, other: Broker
) -> None:
    await broker.enqueue_many([NewJob("q"), NewJob("q")])
    damaged, healthy = await broker.claim("q", limit=2)
    await other.cancel(damaged.id)
    with client(server.url) as connection:
        DAMAGED.add(damaged.key)
        connection.hset(KEYS.jobs, damaged.key, b"garbage")
        connection.sadd(KEYS.cancel_requests, b"x" * 16)
        await other.cancel(healthy.id)
        await with_timeout(healthy.cancel_token.wait())
        assert connection.smembers(KEYS.cancel_requests) == {damaged.key, healthy.key}
        connection.zadd(KEYS.leases, {damaged.key: 1})
        await other.reap()
        await other.claim("q")
        assert [job.id for job in await other.dead_jobs()] == [damaged.id]
        await other.purge_dead()
        assert connection.smembers(KEYS.cancel_requests) == {healthy.key}


async def test_a_damaged_history_of_failures_does_not_stop_a_batch(server: Server, broker: Broker) -> None:
    """The history is parsed when the next failure is added."""
    await broker.enqueue_many([NewJob("q"), NewJob("q")])
    jobs = await broker.claim("q", limit=2, lease=1e-6)
    await broker.nack(jobs[0], "boom", delay=0)
    await broker.claim("q", lease=1e-6)
    with client(server.url) as connection:
        record = connection.hget(KEYS.jobs, jobs[0].key)
        connection.hset(KEYS.jobs, jobs[0].key, record.replace(b"\0\0\0\x12", b"\0\0\0\x0f"))
    assert await broker.reap() == 2
    first = await broker.get(jobs[0].id)
    assert first is not None
    assert [failure.message for failure in first.errors] == ["lease expired"]
