"""The doctor's findings about the settings of a Redis server."""

from __future__ import annotations

import pytest

from dayjob.engines.redis.diagnosis import _diagnostics, settings_risks

HEALTHY = {
    "redis_version": "7.2",
    "role": "master",
    "aof_enabled": "1",
    "used_memory": "1000",
    "maxmemory": "0",
}


def levels(found: dict[str, str], settings: dict[str, str] | None = None) -> dict[str, str]:
    return {
        diagnostic.check: diagnostic.level
        for diagnostic in _diagnostics(found, settings_risks(settings or {}))
    }


def test_a_durable_server_has_no_findings() -> None:
    assert set(levels(HEALTHY).values()) == {"ok"}


@pytest.mark.parametrize(
    ("settings", "finding"),
    [
        ({"save": "", "appendonly": "no"}, "a restart of the server loses every job"),
        ({"maxmemory-policy": "allkeys-lru"}, "a full server may drop all jobs"),
    ],
)
def test_settings_that_lose_jobs_are_errors_with_a_remedy(settings: dict[str, str], finding: str) -> None:
    [diagnostic] = [
        each for each in _diagnostics(HEALTHY, settings_risks(settings)) if each.check == "durability"
    ]
    assert diagnostic.level == "error"
    assert finding in diagnostic.text
    assert diagnostic.remedy is not None
    assert "set" in diagnostic.remedy


def test_snapshots_only_a_replica_and_full_memory_are_reported() -> None:
    assert levels({**HEALTHY, "aof_enabled": "0"})["durability"] == "warning"
    assert levels({**HEALTHY, "role": "slave"})["role"] == "error"
    assert levels({**HEALTHY, "used_memory": "95", "maxmemory": "100"})["memory"] == "warning"
    assert levels({**HEALTHY, "used_memory": "50", "maxmemory": "100"})["memory"] == "ok"
