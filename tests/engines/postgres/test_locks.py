"""Batches with the same jobs lock them in one order, and the timeouts of a role do not apply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dayjob import App, Broker, BrokerConfig, Job, NewJob, Retention, Settlement
from dayjob.engines.base import Progress, SettleOp
from dayjob.engines.postgres import writes
from dayjob.engines.postgres.rows import ack_columns
from dayjob.runtime import entropy
from tests.support.servers.postgres import schema_of
from tests.support.servers.private_postgres import private_server
from tests.support.workers import run_until_idle

QUIET = BrokerConfig(duties=False, retention=Retention(done=0))

ROUNDS = 20


async def test_a_batch_of_acks_is_sent_in_the_order_of_the_locks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []

    def columns(ops: Sequence[SettleOp]) -> tuple[Any, ...]:
        sent.extend(op.key for op in ops)
        return tuple(ack_columns(ops))

    monkeypatch.setattr(writes, "ack_columns", columns)
    await broker.enqueue_many([NewJob("q") for _ in range(5)])
    jobs = await broker.claim("q", limit=5)
    await broker.settle_many([Settlement.ack(job) for job in reversed(jobs)])
    assert sent == sorted(job.key for job in jobs)


@pytest.mark.slow
async def test_batches_with_the_same_jobs_in_different_orders_never_deadlock() -> None:
    def shuffled(jobs: list[Job]) -> list[Job]:
        return sorted(jobs, key=lambda _: entropy.fraction())

    # Shorter than the lock timeout, so that a deadlock is detected.
    async with private_server(deadlock_timeout="10ms") as server:
        async with Broker(server.url, config=QUIET) as worker, Broker(server.url, config=QUIET) as heartbeat:
            for settle in (Settlement.release, Settlement.ack):
                await worker.enqueue_many([NewJob("q") for _ in range(300)])
                for _ in range(ROUNDS if settle is Settlement.release else 1):
                    jobs = await worker.claim("q", limit=300, lease=60)
                    reports = [Progress(job.key, job.claim, 0.5, "") for job in shuffled(jobs)]
                    await asyncio.gather(
                        heartbeat.renew_many(shuffled(jobs), 60),
                        worker.record_progress(reports),
                        worker.settle_many([settle(job) for job in shuffled(jobs)]),
                    )
        assert await server.fetch("SELECT sum(deadlocks)::int FROM pg_stat_database") == [(0,)]


async def test_the_statement_timeout_of_a_role_fails_no_large_batch() -> None:
    async with private_server() as server:
        async with Broker(server.url, config=QUIET):
            pass
        await server.fetch("ALTER ROLE dayjob SET statement_timeout = '5ms'")
        async with Broker(f"{server.url}?timeout=30", config=QUIET) as broker:
            await broker.enqueue_many([NewJob("q", bytes(2000)) for _ in range(4000)])
            assert (await broker.stats("q")).pending == 4000


async def test_a_worker_that_runs_until_idle_waits_for_a_due_job_that_another_client_has_locked(
    url: str, tmp_path: Path, console: psycopg.Connection[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The duties of another process promote the job at the same time."""
    app = App(url, config=QUIET)

    @app.task
    async def work() -> str:
        return "done"

    async with app:
        await work.using(delay=0.001).aenqueue()
        looks: list[int | None] = []
        next_due = app.broker._session.promote.next_due

        async def look() -> int | None:
            looks.append(await next_due())
            if looks == [0]:
                console.execute("ROLLBACK")
            return looks[-1]

        monkeypatch.setattr(app.broker._session.promote, "next_due", look)
        console.execute("BEGIN")
        console.execute(f"SELECT id FROM {schema_of(tmp_path)}.jobs FOR UPDATE")
        worker = await run_until_idle(app)
    assert looks[0] == 0
    assert worker.done == 1
