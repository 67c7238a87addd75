"""A copy by SQLite's own backup of a queue in use: it is complete, and a queue of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from dayjob import Broker, BrokerConfig, JobState
from tests.support.arrange import KEEP_ALL, cancelled, dead, done, running
from tests.support.observe import check_counters, everything

KEEPING = BrokerConfig(duties=False, retention=KEEP_ALL)


async def test_a_backup_of_a_queue_in_use_has_every_commit_and_can_be_opened(path: Path, url: str) -> None:
    copy = path.with_name("copy.db")
    async with Broker(url, config=KEEPING) as broker:
        await dead(broker)
        await done(broker)
        await cancelled(broker)
        held = await running(broker, payload=b"held")
        await broker.enqueue("q", b"later", delay=3600, dedup_key="taken", kv={b"k": b"v"})
        await broker.enqueue("q", b"next", headers={"h": "x"})
        await broker.pause("paused")
        assert path.with_name("jobs.db-wal").stat().st_size > 0, "commits are in the log alone"
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        before = await everything(broker)
        await broker.enqueue("q", b"after the copy")
        async with Broker(f"sqlite:///{copy}", config=KEEPING) as other:
            assert await everything(other) == before
            await check_counters(other)
            assert await other.kv_get(b"k") == b"v"
            assert not (await other.enqueue("q", dedup_key="taken")).created
            [job] = await other.claim("q", limit=10)
            assert job.payload == b"next"
            await other.ack(job)
            await other.ack(held)
        original = {job.payload: job.state for job in await broker.jobs() if job.payload}
        assert original == {
            b"held": JobState.RUNNING,
            b"later": JobState.SCHEDULED,
            b"next": JobState.PENDING,
            b"after the copy": JobState.PENDING,
        }
