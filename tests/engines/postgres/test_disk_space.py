"""The space of removed jobs: it is used again, and only an explicit vacuum returns it to the disk."""

from __future__ import annotations

from dayjob import Broker, BrokerConfig, NewJob, Retention, Settlement
from tests.support.servers.private_postgres import PrivateServer

JOBS = 2000


async def test_the_empty_end_of_a_table_is_returned_to_the_disk_by_vacuum_truncate_only(
    server: PrivateServer,
) -> None:
    async def size() -> int:
        [(bytes_,)] = await server.fetch("SELECT pg_relation_size('dayjob.jobs')")
        return int(bytes_)

    config = BrokerConfig(duties=False, retention=Retention(done=0))
    async with Broker(server.url, config=config) as broker:
        await broker.enqueue_many([NewJob("q", bytes(1000)) for _ in range(JOBS)])
        backlog = await size()
        assert backlog > JOBS * 1000
        await broker.settle_many([Settlement.ack(job) for job in await broker.claim("q", limit=JOBS)])
        await server.fetch("VACUUM dayjob.jobs")
        assert await size() >= backlog
        await server.fetch("VACUUM (TRUNCATE) dayjob.jobs")
        assert await size() < backlog / 10
        await broker.enqueue("q")
        assert len(await broker.claim("q", limit=JOBS)) == 1
