"""The quarantine of a claimed job is a commit of its own, so the claim may have ended before it."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob import Broker, BrokerConfig, QueueStats
from dayjob.engines.postgres import rows
from dayjob.engines.record import Corrupt
from tests.support.arrange import claim_one


async def test_a_quarantine_after_the_claim_has_ended_does_not_end_the_next_claim(
    url: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.enqueue("q")
    engine: Any = broker._engine
    fetch, claimed_job, next_claims = engine._database.fetch, rows.claimed_job, []

    def corrupt(*_: Any) -> Any:
        monkeypatch.setattr(rows, "claimed_job", claimed_job)
        raise Corrupt("headers")

    async def end_the_claim(name: str, *given: Any) -> Any:
        if name == "quarantine":
            monkeypatch.setattr(engine._database, "fetch", fetch)
            async with Broker(url, config=BrokerConfig(duties=False)) as other:
                assert await other.reap() == 1
                next_claims.append(await claim_one(other))
        return await fetch(name, *given)

    monkeypatch.setattr(rows, "claimed_job", corrupt)
    monkeypatch.setattr(engine._database, "fetch", end_the_claim)
    assert await broker.claim("q", lease=1e-6) == []
    assert await broker.stats("q") == QueueStats(running=1)
    await broker.ack(next_claims[0])
