"""The bytes that a job adds to the server's log, in large batches.

The bounds are some percent above the measured values. A lock before each update, an insert that expects
conflicts, or updates that find no room in the page of the job exceed them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import psycopg

from dayjob import Broker, BrokerConfig, NewJob, Retention, Settlement
from tests.support.servers.postgres import with_options
from tests.support.servers.private_postgres import private_server

JOBS = 1000
ENQUEUE, CLAIM, ACK, KEPT_ACK = 415, 525, 70, 510

Reply = TypeVar("Reply")


async def test_the_bytes_in_the_log_per_job_are_bounded() -> None:
    async with private_server(autovacuum="off") as server:
        with psycopg.connect(server.url, autocommit=True) as console:

            def position() -> int:
                row = console.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
                assert row is not None
                return int(row[0])

            async def costs(work: Awaitable[Reply], most: int) -> Reply:
                before = position()
                reply = await work
                cost = (position() - before) / JOBS
                assert cost <= most, f"{cost:.0f} bytes per job"
                return reply

            for schema, retention, ack in (("removed", 0, ACK), ("kept", 3600, KEPT_ACK)):
                config = BrokerConfig(duties=False, retention=Retention(done=retention))
                async with Broker(with_options(server.url, schema=schema), config=config) as broker:
                    await broker.enqueue("warm", b"")
                    jobs = [NewJob("q", b"%064d" % number, task="task") for number in range(JOBS)]
                    await costs(broker.enqueue_many(jobs), ENQUEUE)
                    claimed = await costs(broker.claim("q", limit=JOBS, worker="w" * 20), CLAIM)
                    settlements = [Settlement.ack(job, result=b"null") for job in claimed]
                    assert len(settlements) == JOBS
                    await costs(broker.settle_many(settlements), ack)
