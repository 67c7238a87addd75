"""The quarantine of a claimed job is a call of its own, so the claim may have ended before it."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob import Broker, QueueStats
from dayjob.engines.record import Corrupt
from dayjob.engines.redis import record
from tests.support.arrange import claim_one


async def test_a_quarantine_after_the_claim_has_ended_does_not_end_the_next_claim(
    broker: Broker, other: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.enqueue("q")
    engine: Any = broker._engine
    run, claimed_job, next_claims = engine._client.run_idempotent, record.claimed_job, []

    def corrupt(*_: Any) -> Any:
        monkeypatch.setattr(record, "claimed_job", claimed_job)
        raise Corrupt("headers")

    async def end_the_claim(name: str, *given: Any, **named: Any) -> Any:
        if name == "quarantine":
            monkeypatch.setattr(engine._client, "run_idempotent", run)
            assert await other.reap() == 1
            next_claims.append(await claim_one(other))
        return await run(name, *given, **named)

    monkeypatch.setattr(record, "claimed_job", corrupt)
    monkeypatch.setattr(engine._client, "run_idempotent", end_the_claim)
    assert await broker.claim("q", lease=1e-6) == []
    assert await broker.stats("q") == QueueStats(running=1)
    await broker.ack(next_claims[0])
