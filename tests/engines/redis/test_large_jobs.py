"""Large payloads: claims are bounded by bytes, and a slow transfer is no failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from dayjob import Broker, BrokerConfig, Job, NewJob
from dayjob.engines.base import BATCH_BYTES, ClaimRequest, Progress
from dayjob.engines.redis import connection as redis_connection
from dayjob.runtime.clock import SYSTEM
from tests.engines.redis.conftest import QUIET
from tests.support.arrange import KEEP_ALL, claim_one
from tests.support.servers.proxy import Proxy, proxied
from tests.support.servers.redis import Server, client, running_server
from tests.support.waiting import with_timeout

MEGABYTE = 1_000_000
SMALL = 10_000


async def enqueue_large(broker: Broker, number: int, size: int = MEGABYTE) -> None:
    for index in range(number):
        await broker.enqueue("q", bytes([index]) * size)


def order(jobs: list[Job]) -> list[int]:
    return [job.payload[0] for job in jobs]


async def test_a_claim_stops_at_the_byte_limit_and_the_next_ones_return_the_rest(broker: Broker) -> None:
    await enqueue_large(broker, 20)
    found: list[list[Job]] = []
    while jobs := await broker.claim("q", limit=100):
        assert sum(len(job.payload) for job in jobs) <= BATCH_BYTES
        found.append(jobs)
    assert [len(jobs) for jobs in found] == [8, 8, 4]
    assert [number for jobs in found for number in order(jobs)] == list(range(20))


async def test_small_jobs_behind_large_ones_are_claimed_in_order(broker: Broker) -> None:
    await enqueue_large(broker, 9)
    await broker.enqueue_many([NewJob("q", bytes([100 + index])) for index in range(100)])
    first = await broker.claim("q", limit=1000)
    assert order(first) == list(range(8))
    second = await broker.claim("q", limit=1000)
    assert order(second) == [8, *range(100, 200)]


async def test_the_byte_limit_ends_a_request_before_its_next_queue(broker: Broker) -> None:
    await enqueue_large(broker, 9)
    await broker.enqueue("r", b"r")
    assert len(await broker.claim(["q", "r"], limit=100)) == 8
    assert [job.queue for job in await broker.claim(["q", "r"], limit=100)] == ["q", "r"]


async def test_each_request_of_a_batch_gets_a_job(broker: Broker) -> None:
    """A request without jobs would wait for a notification, although jobs are pending."""
    await enqueue_large(broker, 12)
    requests = [ClaimRequest((("q", 60_000_000),), limit, "w") for limit in (100, 1, 100)]
    found = await broker._engine.claim(requests)
    assert [order(jobs) for jobs in found] == [list(range(8)), [8], [9]]


async def test_waiting_claims_get_all_large_jobs(broker: Broker) -> None:
    waiting = [asyncio.create_task(broker.claim("q", limit=2, wait=20)) for _ in range(8)]
    await enqueue_large(broker, 16)
    found = [job for jobs in await with_timeout(asyncio.gather(*waiting)) for job in jobs]
    found += await broker.claim("q", limit=100)
    found += await broker.claim("q", limit=100)
    assert sorted(order(found)) == list(range(16))


async def test_only_the_enqueue_writes_the_payload(server: Server, broker: Broker) -> None:
    """A renewal that rewrote the payload would write megabytes to the append-only file and to replicas."""
    with client(server.url) as connection:

        async def written(change: Awaitable[object]) -> int:
            before: int = connection.info("persistence")["aof_current_size"]
            await change
            after: int = connection.info("persistence")["aof_current_size"]
            return after - before

        assert await written(broker.enqueue("q", bytes(MEGABYTE))) > MEGABYTE
        job = await claim_one(broker)
        assert await written(broker.renew(job)) < SMALL
        assert await written(broker.record_progress([Progress(job.key, job.claim, 0.5, "half")])) < SMALL
        assert await written(broker.nack(job, "boom", delay=1e-6)) < SMALL
        assert await written(broker.promote()) < SMALL
        assert await written(broker.reschedule(job.id, priority=5)) < SMALL
        job = await claim_one(broker, lease=1e-6)
        assert await written(broker.reap()) < SMALL
        assert await written(broker.release(await claim_one(broker))) < SMALL
        assert await written(broker.dead_letter(await claim_one(broker), "no good")) < SMALL
        assert await written(broker.requeue_dead("q")) < SMALL
        job = await claim_one(broker)
        assert len(job.payload) == MEGABYTE
        assert await written(broker.ack(job)) < SMALL


@pytest.mark.parametrize("size", [0, 1, 1024, 1025])
async def test_a_payload_around_the_limit_is_kept_with_the_record_or_apart(
    server: Server, broker: Broker, size: int
) -> None:
    await broker.enqueue("q", b"x" * size)
    with client(server.url) as connection:
        assert connection.hlen("{dayjob}:payloads") == (size > 1024)
    job = await claim_one(broker)
    listed = await broker.get(job.id)
    assert listed is not None
    assert job.payload == listed.payload == b"x" * size
    await broker.ack(job)


async def test_a_large_result_is_read_and_written_only_with_its_job(server: Server) -> None:
    async with Broker(server.url, config=BrokerConfig(duties=False, retention=KEEP_ALL)) as broker:
        await broker.enqueue("q")
        job = await claim_one(broker)
        await broker.ack(job, result=bytes(MEGABYTE))
        stored = await broker.get(job.id)
        assert stored is not None
        assert stored.result == bytes(MEGABYTE)
        with client(server.url) as connection:
            assert connection.hstrlen("{dayjob}:jobs", job.key) < 1000
            assert await broker.sweep_done(0) == 1
            assert not connection.exists("{dayjob}:results")


@pytest.mark.parametrize("direction", ["request", "reply"])
async def test_a_transfer_that_takes_longer_than_the_limit_of_silence_succeeds(
    broker: Broker, proxy: Proxy, direction: str
) -> None:
    """A try may be silent for one second here, and the transfer takes two."""
    job = NewJob("q", bytes(MEGABYTE))
    async with Broker(proxy.url("dayjob", "&timeout=1"), config=QUIET) as slow:
        await (slow if direction == "request" else broker).enqueue("q")
        begun = SYSTEM.elapsed()
        proxy.bytes_per_second = 2 * MEGABYTE
        if direction == "request":
            assert len(await with_timeout(slow.enqueue_many([job] * 4))) == 4
        else:
            await broker.enqueue_many([job] * 4)
            assert len(await with_timeout(slow.claim("q", limit=5))) == 5
        assert SYSTEM.elapsed() - begun > 1.5
        proxy.bytes_per_second = None


async def test_each_part_of_a_long_request_restarts_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A try may be silent for three seconds here, and the request takes four. The link buffers little."""
    monkeypatch.setattr(redis_connection, "_SLOWEST", 16 * MEGABYTE)
    async with running_server() as server, proxied(server.socket) as proxy:
        proxy.limit_buffers()
        async with Broker(proxy.url("dayjob", "&timeout=2"), config=QUIET) as slow:
            await slow.enqueue("q")
            begun = SYSTEM.elapsed()
            proxy.bytes_per_second = 4 * MEGABYTE
            assert len(await with_timeout(slow.enqueue_many([NewJob("q", bytes(MEGABYTE))] * 16))) == 16
            assert SYSTEM.elapsed() - begun > 3.5
            proxy.bytes_per_second = None
