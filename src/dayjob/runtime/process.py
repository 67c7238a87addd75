"""The identity of a process, whether it has ended, and its memory: for processes of this host only.

The identity is the host (the boot id, and the process namespace of a container), the pid and the start time.
A reused pid therefore never looks like the earlier process. If the system does not show it, a process counts
as running.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import uuid
from functools import cache
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")

pid = os.getpid()
"""The pid of this process, also after a fork. Reading it needs no system call."""


MEBIBYTE = 2**20


class Process(Struct, frozen=True):
    host: str
    pid: int
    started: str


def this_process() -> Process:
    pid = os.getpid()
    return Process(this_host(), pid, started(pid))


@cache
def this_host() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
        return f"{boot}/{namespace}"
    except OSError:
        return f"{platform.node()}/{uuid.getnode():x}"


def is_gone(pid: int, started: str) -> bool:
    """Return whether the process of this host with the pid and start time has ended."""
    state, now_started = _status(pid)
    return state in "ZX" or "" != now_started != started


def started(pid: int) -> str:
    """Return the start time of a process of this host. It is empty if the system hides it."""
    return _status(pid)[1]


def is_alive(pid: int, started: str) -> bool:
    """Return whether the process of this host is known to run: it has not ended, and is not stopped."""
    state, now_started = _status(pid)
    return state not in "ZXTt" and "" != now_started == started


def _status(pid: int) -> tuple[str, str]:
    """Return the state letter and start time of a process. The time is empty if the system hides it."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except FileNotFoundError:
        return ("R", "") if _exists(pid) else ("X", "gone")
    except OSError:
        return "R", ""
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], fields[19]


def _forked() -> None:
    global pid
    pid = os.getpid()


os.register_at_fork(after_in_child=_forked)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def rss() -> int:
    """Return the resident memory of this process in bytes; the peak, where the system has only that."""
    try:
        pages = int((_PROC / "self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
