"""The memory engine under test."""

from __future__ import annotations

from pathlib import Path

from tests.support.storages.base import EngineUnderTest


def memory_url(directory: Path) -> str:
    return f"memory://{directory.name}"


MEMORY = EngineUnderTest(
    "memory", memory_url, unusable={"unknown option": lambda _: "memory://x?colour=blue"}
)
