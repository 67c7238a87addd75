"""Which process is which, and whether it still runs: judged on the same host only, and never wrongly dead.

A process is named by its host (this boot of the machine, and the process namespace, as in a container),
its pid, and its start time, so that a pid used again is not taken for the process that had it before.
"""

from __future__ import annotations

import os
import platform
import uuid
from functools import cache
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")


class Process(Struct, frozen=True):
    host: str
    pid: int
    started: str


def this_process() -> Process:
    pid = os.getpid()
    return Process(this_host(), pid, _status(pid)[1])


@cache
def this_host() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
        return f"{boot}/{namespace}"
    except OSError:
        return f"{platform.node()}/{uuid.getnode():x}"


def is_gone(pid: int, started: str) -> bool:
    """Whether the process of this host that had the pid and the start time has ended."""
    state, now_started = _status(pid)
    return state in "ZX" or "" != now_started != started


def _status(pid: int) -> tuple[str, str]:
    """The state letter and start time of a process; where only its existence can be told, an empty time."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except FileNotFoundError:
        return ("R", "") if _answers(pid) else ("X", "gone")
    except OSError:
        return "R", ""
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], fields[19]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
