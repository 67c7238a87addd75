"""Runs a command until standard input closes, which happens when the parent process ends."""

from __future__ import annotations

import subprocess
import sys

if __name__ == "__main__":
    server = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        restore_signals=False,  # Python ignores SIGXFSZ, so writes beyond a limit fail.
    )  # fmt: skip
    try:
        sys.stdin.buffer.read()
    finally:
        server.kill()
        server.wait()
