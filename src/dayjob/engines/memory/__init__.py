"""The memory engine: the reference that defines the semantics."""

from __future__ import annotations

from dayjob.engines.base import Engine
from dayjob.engines.memory.engine import MemoryEngine
from dayjob.engines.memory.store import MemoryStore
from dayjob.engines.registry import Location
from dayjob.errors import ConfigError
from dayjob.runtime.clock import SYSTEM, Clock

_shared: dict[str, MemoryStore] = {}


def create(location: Location, clock: Clock | None) -> Engine:
    """``memory://`` is private to its broker; ``memory://name`` is shared by name within the process."""
    location.done("memory:// takes none")
    name = location.parts.netloc
    if location.parts.path.strip("/"):
        raise ConfigError(f"the URL {location.shown!r} has a path: write memory:// or memory://name")
    return MemoryEngine(_shared.setdefault(name, MemoryStore()) if name else MemoryStore(), clock or SYSTEM)
