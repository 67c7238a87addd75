"""The memory of a process that only runs a worker: garbage collection, and the heaps of the allocator."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

from dayjob.runtime.process import MEBIBYTE, rss

THRESHOLDS = (50_000, 20, 50)

CHECK_INTERVAL = 0.01
"""Seconds between two readings of the memory."""

GROWTH = 64 * MEBIBYTE
"""The process may grow by this much, or by a quarter, before its garbage is collected."""

_M_ARENA_MAX = -8
"""The parameter of glibc's ``mallopt``."""


class MemoryWatch:
    """Collects garbage when the memory of the process has grown.

    A few cycles that hold large objects can use gigabytes before their number reaches a threshold.
    """

    def __init__(self) -> None:
        self.check_at = 0.0
        self._limit = rss() + GROWTH

    def check(self, now: float) -> None:
        self.check_at = now + CHECK_INTERVAL
        if rss() > self._limit:
            gc.collect()
            used = rss()
            self._limit = used + max(GROWTH, used // 4)


_watch: MemoryWatch | None = None


def collect_less_often() -> None:
    """Exclude the imported modules from collections, and collect less often: by memory, not only by number.

    A worker creates many objects that live as long as a job, and few cycles. At the default thresholds it
    spends a fifth of its time in collections. The setting is global, so only ``dayjob worker`` uses it. It
    needs a system that shows the memory of a process.
    """
    global _watch
    if not Path("/proc/self/statm").exists():
        return
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    _watch = MemoryWatch()


def limit_heaps() -> None:
    """Let the allocator have one heap for each processor, not eight, unless ``MALLOC_ARENA_MAX`` is set.

    With glibc each thread prefers a heap of its own, and each heap keeps its free memory. SlateDB has many
    threads: its worker was larger by a fifth. The setting is global, so only ``dayjob worker`` uses it. Other
    allocators have no such parameter.
    """
    if sys.platform == "linux" and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, os.cpu_count() or 1)


def run_ended(now: float) -> None:
    """Collect garbage if the memory has grown. Called after each run, with the elapsed time of the clock."""
    if _watch is not None and now >= _watch.check_at:
        _watch.check(now)
