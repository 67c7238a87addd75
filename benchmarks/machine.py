"""The processors of this machine: the time that they were busy, and how much of it was for other work.

Linux only. Elsewhere both are 0.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def busy_seconds() -> float:
    """Return the busy time of all processors since boot, with the time that a hypervisor took."""
    stat = _PROC / "stat"
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, *rest = map(int, stat.read_text().splitlines()[0].split()[1:])
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")


class OtherLoad:
    """The load from processes that do not belong to a run.

    Those of the run are this process, its descendants, and the servers that work in its folder: PostgreSQL
    detaches itself, but each of its processes has the folder of its data as the working directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._last = self._read()

    def share(self) -> float:
        """Return the share of all processors that others used since the last call, from 0 to 1."""
        before, self._last = self._last, self._read()
        wall, busy, own = (now - then for now, then in zip(self._last, before, strict=True))
        return min(max(busy - own, 0.0) / (wall * (os.cpu_count() or 1)), 1.0)

    def _read(self) -> tuple[float, float, float]:
        return time.perf_counter(), busy_seconds(), self._own_seconds()

    def _own_seconds(self) -> float:
        """Return the processor time of the processes of the run, and of their children that have ended."""
        parents: dict[int, int] = {}
        used: dict[int, float] = {}
        for pid, fields in _processes():
            parents[pid] = int(fields[1])
            used[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return sum(seconds for pid, seconds in used.items() if self._is_own(pid, parents))

    def _is_own(self, pid: int, parents: dict[int, int]) -> bool:
        ancestor = pid
        while ancestor in parents:
            if ancestor == os.getpid():
                return True
            ancestor = parents[ancestor]
        try:
            return (_PROC / str(pid) / "cwd").readlink().is_relative_to(self._folder)
        except OSError:  # It has ended, or belongs to another user.
            return False


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Yield the pid of each process, and the fields of its ``stat`` after its name."""
    for folder in _PROC.glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text("utf-8", "replace")
        except OSError:
            continue
        yield int(folder.name), text[text.rindex(")") + 2 :].split()
