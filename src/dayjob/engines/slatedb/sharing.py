"""One handle for each database in a process: SlateDB would let the second one fence the first."""

from __future__ import annotations

import os
from threading import Lock
from typing import Any

from msgspec.structs import replace

from dayjob.engines.slatedb.core import Core
from dayjob.engines.slatedb.place import Place
from dayjob.errors import ConfigError, EngineFenced

_cores: dict[Any, Core] = {}
_lock = Lock()
_lost: set[Any] = set()
"""What was taken over from this process: it does not take it back by itself, or the two would never end."""
_inherited = False


def acquire(place: Place) -> Core:
    """The open or opening core of the database, shared by all who ask for it."""
    if _inherited:
        raise ConfigError(
            f"{place.url}: this process was forked from one that had SlateDB open, whose threads did not "
            "come along: start processes with the 'spawn' method"
        )
    with _lock:
        core = _cores.get(place.identity)
        if core is not None and isinstance(core.failure, EngineFenced):
            _lost.add(place.identity)
        if place.identity in _lost:
            place = replace(place, take_over=False)
        if core is None or core.users == 0 or core.failure is not None:
            ending = core.closed if core is not None and core.failure is None else None
            core = _cores[place.identity] = Core(place, ending)
        core.users += 1
        return core


def release(core: Core) -> bool:
    """Whether that was the last one, so that the core now ends."""
    with _lock:
        core.users -= 1
        if core.users > 0:
            return False
    core.end()
    return True


def forget(core: Core) -> None:
    """A core that has ended need not be waited for."""
    with _lock:
        if isinstance(core.failure, EngineFenced):
            _lost.add(core.place.identity)
        if _cores.get(core.place.identity) is core:
            del _cores[core.place.identity]


def find(place: Place) -> Core | None:
    with _lock:
        return _cores.get(place.identity)


def _in_child() -> None:
    global _cores, _lock, _inherited
    _inherited = _inherited or bool(_cores)
    _cores, _lock = {}, Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
