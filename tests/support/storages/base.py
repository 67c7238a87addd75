"""The data that the suite needs to test an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class EngineUnderTest:
    """How to reach an engine's storage, and how to harm it."""

    name: str

    url: Callable[[Path], str]
    """The URL of a fresh storage that belongs to the directory; the same directory, the same storage."""

    corrupt: Mapping[str, Callable[[Path, str], None]] = field(default_factory=dict)
    """Ways to make the stored record of a job undecodable. Needed if jobs are stored in encoded form."""

    unusable: Mapping[str, Callable[[Path], str]] = field(default_factory=dict)
    """URLs that can't be opened, by the reason: each creates the obstacle and returns the URL."""

    connect: Callable[[Path], AbstractContextManager[Any]] | None = None
    """A user's own connection to the storage, with an open transaction. Needed for transactional enqueue."""

    snapshot: Callable[[Path], Callable[[], None]] | None = None
    """Copy the storage, closed by all, and return a function that restores the copy. Needed if persistent."""

    after: Callable[[Path], None] = lambda directory: None
    """Called when a test is over, its brokers closed: checks that no unexpected data is left."""

    def __str__(self) -> str:
        return self.name
