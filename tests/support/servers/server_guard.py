"""The main program of a process that runs a PostgreSQL server while any process holds its lifeline.

The lifeline is a file on which every user of the server holds a shared lock. The system releases the locks
of processes that end in any way. The guard waits for the exclusive lock and gets it after the last user ends.
Then it stops the server and removes its folder.

The guard prints one line: ``ready`` and the process id of the server, or the error. It forwards signals to
the server.
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

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)

READY_CHECKS = 3000
"""The most checks that the server is ready, one every 20 ms."""


def main(folder: Path, data: Path, command: list[str], user: int | None) -> int:
    """Run the server as ``user``, or as the user of this process."""
    owner = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    with (folder / "log").open("ab") as log:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_die_with_parent, **owner
        )  # type: ignore[call-overload]

    def forward(number: int, _: FrameType | None) -> None:
        server.send_signal(number)

    for number in FORWARDED:
        signal.signal(number, forward)
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
    for _ in range(READY_CHECKS):
        try:
            status = server.wait(0.02)
        except subprocess.TimeoutExpired:
            if _is_ready(data, server.pid):
                return f"ready {server.pid}"
        else:
            return f"the server ended with {status}: {log.read_text()[-2000:]!r}"
    server.send_signal(signal.SIGQUIT)
    return f"the server is not ready: {log.read_text()[-2000:]!r}"


def _is_ready(data: Path, pid: int) -> bool:
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _die_with_parent() -> None:
    """On Linux, the server also ends when the guard is killed."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGQUIT)


if __name__ == "__main__":
    _folder, _data, _command, _user = json.loads(sys.argv[1])
    sys.exit(main(Path(_folder), Path(_data), _command, _user))
