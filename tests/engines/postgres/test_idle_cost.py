"""The cost of an idle worker for the server: at most two connections and 0.3 transactions a second."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from dayjob import Broker, BrokerConfig
from dayjob.broker.leader_election import renewal_of, term_of
from dayjob.duties import BEATS
from dayjob.engines.postgres import notifier
from dayjob.engines.postgres.database import Pool
from tests.support.workers import until

Console = psycopg.Connection[tuple[Any, ...]]


def test_an_idle_follower_sends_less_than_one_transaction_in_three_seconds() -> None:
    """The other tests show that nothing else is sent."""
    dead_after = 15
    term = term_of(dead_after)
    heartbeats = BEATS / dead_after
    reads_of_the_lead = 1 / (term - renewal_of(term) / 2)
    looks = 1 / notifier.CHECK
    checks = looks / notifier._LOOKS_PER_CHECK
    assert heartbeats + reads_of_the_lead + looks + checks <= 0.3


async def test_an_idle_claim_sends_one_statement_a_look_and_a_follower_none(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "CHECK", 0.01)
    async with Broker(url, config=BrokerConfig(duties=False)) as leader:
        await leader.lead()
        await _count_statements(url, monkeypatch)


async def _count_statements(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(url) as idle:
        claiming = asyncio.create_task(idle.claim("q", wait=3600))
        looks: list[str] = []
        look_again = idle._engine.signals.look_again

        def counted() -> None:
            looks.append("look")
            look_again()

        statements: list[str] = []
        run = Pool.run

        async def counted_run(self: Pool, work: Any, **options: Any) -> Any:
            statements.append("statement")
            return await run(self, work, **options)

        monkeypatch.setattr(idle._engine.signals, "look_again", counted)
        await until(lambda: looks)
        monkeypatch.setattr(Pool, "run", counted_run)
        looks.clear()
        await until(lambda: len(looks) >= 30)
        assert 0 < len(statements) <= len(looks) + 3, "one claim a look, and one read of the lead"
        claiming.cancel()
        await asyncio.wait({claiming})


async def test_the_pool_of_an_idle_process_keeps_one_connection(broker: Broker, console: Console) -> None:
    pool = broker._engine._database.pool  # type: ignore[attr-defined]
    pids = await asyncio.gather(
        *(pool.run(lambda connection: connection.fetchval("SELECT pg_backend_pid()")) for _ in range(4))
    )

    def left() -> int:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)"
        [(count,)] = console.execute(sql, [list(set(pids))]).fetchall()
        return int(count)

    pool._idle.trim()
    pool._idle.trim()
    await until(lambda: left() == 1)
    assert (await broker.enqueue("q")).created
