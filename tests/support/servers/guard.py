"""Runs a PostgreSQL server for as long as somebody holds its lifeline; the main program of a process.

The lifeline is a file on which every user of the server holds a shared lock. The system takes the locks
back from users that end, in whatever way, so the exclusive lock that the guard waits for comes when the
last of them is gone. Then the server stops at once and its folder is removed.

It says ``ready`` and the server's process id, or why there is none, in one line on its standard output.
Signals are passed on to the server.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)

PATIENCE = 3000
"""How often it looks whether the server is ready, every 20 ms or so."""


def main(folder: Path, data: Path, command: list[str], user: int | None) -> int:
    """``user`` is who runs the server, if it isn't who runs this."""
    owner = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    with (folder / "log").open("ab") as log:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_die_with_parent, **owner
        )  # type: ignore[call-overload]

    def pass_on(number: int, _: FrameType | None) -> None:
        server.send_signal(number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    abandoned = threading.Event()

    def watch() -> None:
        with (folder / "lifeline").open("ab") as lifeline:
            fcntl.flock(lifeline, fcntl.LOCK_EX)
            abandoned.set()
            server.send_signal(signal.SIGQUIT)
            server.wait()

    threading.Thread(target=watch, daemon=True).start()
    print(_readiness(server, data, folder / "log"), flush=True)
    status: int = server.wait()
    if abandoned.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _readiness(server: subprocess.Popen[bytes], data: Path, log: Path) -> str:
    for _ in range(PATIENCE):
        try:
            status = server.wait(0.02)
        except subprocess.TimeoutExpired:
            if _is_ready(data, server.pid):
                return f"ready {server.pid}"
        else:
            return f"it ended with {status}: {log.read_text()[-2000:]!r}"
    server.send_signal(signal.SIGQUIT)
    return f"it is not ready: {log.read_text()[-2000:]!r}"


def _is_ready(data: Path, pid: int) -> bool:
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _die_with_parent() -> None:
    """On Linux the server also ends if the guard is killed."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGQUIT)


if __name__ == "__main__":
    _folder, _data, _command, _user = json.loads(sys.argv[1])
    sys.exit(main(Path(_folder), Path(_data), _command, _user))
