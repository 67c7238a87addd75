"""What the doctor says of a Redis server's settings."""

from __future__ import annotations

import pytest

from dayjob.engines.redis.diagnosis import _facts
from dayjob.engines.redis.opening import settings_dangers

WELL = {"redis_version": "7.2", "role": "master", "aof_enabled": "1", "used_memory": "1000", "maxmemory": "0"}


def levels(found: dict[str, str], settings: dict[str, str] | None = None) -> dict[str, str]:
    return {
        diagnostic.check: diagnostic.level for diagnostic in _facts(found, settings_dangers(settings or {}))
    }


def test_a_durable_server_is_well() -> None:
    assert set(levels(WELL).values()) == {"ok"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"save": "", "appendonly": "no"}, "a restart of the server loses every job"),
        ({"maxmemory-policy": "allkeys-lru"}, "a full server may drop all jobs"),
    ],
)
def test_settings_that_lose_jobs_are_errors_with_a_remedy(settings: dict[str, str], said: str) -> None:
    [diagnostic] = [each for each in _facts(WELL, settings_dangers(settings)) if each.check == "durability"]
    assert diagnostic.level == "error"
    assert said in diagnostic.text
    assert diagnostic.remedy is not None
    assert "set" in diagnostic.remedy


def test_snapshots_alone_a_replica_and_little_memory_are_told_of() -> None:
    assert levels({**WELL, "aof_enabled": "0"})["durability"] == "warning"
    assert levels({**WELL, "role": "slave"})["role"] == "error"
    assert levels({**WELL, "used_memory": "95", "maxmemory": "100"})["memory"] == "warning"
    assert levels({**WELL, "used_memory": "50", "maxmemory": "100"})["memory"] == "ok"
