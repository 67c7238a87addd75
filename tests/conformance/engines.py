"""The engines under test. A new one is one entry in ``ENGINES``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class EngineUnderTest:
    """How to reach an engine's storage, and how to harm it."""

    name: str

    url: Callable[[Path], str]
    """The URL of a fresh storage that belongs to the directory; the same directory, the same storage."""

    corrupt: Callable[[Path, str], None] | None = None
    """Make the stored record of the job with this id undecodable. Needed if jobs are stored in encoded form."""

    unusable: dict[str, Callable[[Path], str]] = field(default_factory=dict)
    """URLs that can't be opened, by the reason: each makes what is in the way and returns the URL."""

    def __str__(self) -> str:
        return self.name


def memory_url(directory: Path) -> str:
    return f"memory://{directory.name}"


def sqlite_url(directory: Path) -> str:
    return f"sqlite:///{directory}/jobs.db"


ENGINES: list[EngineUnderTest] = [
    EngineUnderTest("memory", memory_url),
    EngineUnderTest("sqlite", sqlite_url),
]
