"""The objects that only a garbage collection frees: members of reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_of(package: str) -> Iterator[list[str]]:
    """Collect nothing during the block. Then list the types of that package in unreachable cycles."""
    found: list[str] = []
    gc.collect()
    flags, enabled = gc.get_debug(), gc.isenabled()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        names = (f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
        found += [name for name in names if name.startswith(f"{package}.")]
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()
        if enabled:
            gc.enable()
