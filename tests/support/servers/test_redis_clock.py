"""The shifted clock of a Redis server: dayjob reads it in scripts and in commands."""

from __future__ import annotations

import pytest

from dayjob import Broker, BrokerConfig
from dayjob.engines.redis import client as redis_client
from dayjob.engines.redis import scripts
from dayjob.model.durations import SECOND
from tests.support.servers.redis import client, running_server
from tests.support.servers.redis_clock import read_shifted_clock, set_clock

YEAR = 365 * 24 * 3600


async def test_scripts_and_commands_read_the_shifted_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "_lean", scripts._lean)
    monkeypatch.setattr(redis_client, "packed", redis_client.packed)
    read_shifted_clock()
    try:
        async with (
            running_server() as server,
            Broker(server.url, config=BrokerConfig(duties=False)) as broker,
        ):
            right, _ = await broker._engine.documents("none")
            with client(server.url) as connection:
                set_clock(connection, YEAR)
            wrong, _ = await broker._engine.documents("none")
            job = await broker.get((await broker.enqueue("q")).id)
            assert job is not None
            assert round((wrong - right) / SECOND / YEAR) == 1
            assert abs(job.enqueued_us - wrong) < 60 * SECOND
    finally:
        scripts.script.cache_clear()
