"""Diagnostics of the settings of a PostgreSQL server."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob.engines.postgres.diagnosis import _settings

HEALTHY: dict[str, Any] = {
    "version": 180_000, "shown": "18.0", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
    "autovacuum": "on", "max_connections": 100, "standby": False, "connections": 5, "oldest": 1.0,
    "notifications": 0.0,
}  # fmt: skip


def test_default_settings_are_ok() -> None:
    assert {diagnostic.level for diagnostic in _settings(HEALTHY)} == {"ok"}


@pytest.mark.parametrize(
    ("change", "check", "level"),
    [
        ({"version": 130_000}, "version", "error"),
        ({"standby": True}, "role", "error"),
        ({"fsync": "off"}, "durability", "error"),
        ({"synchronous_commit": "off"}, "durability", "warning"),
        ({"full_page_writes": "off"}, "durability", "warning"),
        ({"autovacuum": "off"}, "vacuum", "error"),
        ({"oldest": 7200.0}, "vacuum", "warning"),
        ({"notifications": 0.51}, "notifications", "warning"),
        ({"connections": 95}, "connections", "warning"),
    ],
)
def test_a_setting_that_endangers_jobs_is_reported_with_a_remedy(
    change: dict[str, Any], check: str, level: str
) -> None:
    [diagnostic] = [each for each in _settings({**HEALTHY, **change}) if each.level != "ok"]
    assert (diagnostic.check, diagnostic.level) == (check, level)
    assert diagnostic.remedy
