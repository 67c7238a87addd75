"""What the doctor says of a PostgreSQL server's settings."""

from __future__ import annotations

from typing import Any

import pytest

from dayjob.engines.postgres.diagnosis import _settings

WELL: dict[str, Any] = {
    "version": 180_000, "shown": "18.0", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
    "autovacuum": "on", "max_connections": 100, "standby": False, "connections": 5, "oldest": 1.0,
}  # fmt: skip


def test_a_server_with_its_defaults_is_well() -> None:
    assert {diagnostic.level for diagnostic in _settings(WELL)} == {"ok"}


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
        ({"connections": 95}, "connections", "warning"),
    ],
)
def test_each_setting_that_endangers_jobs_is_told_of(change: dict[str, Any], check: str, level: str) -> None:
    [diagnostic] = [each for each in _settings({**WELL, **change}) if each.level != "ok"]
    assert (diagnostic.check, diagnostic.level) == (check, level)
    assert diagnostic.remedy
